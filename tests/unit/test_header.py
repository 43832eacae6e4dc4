"""Headers are read without torch, and a broken file is named, not crashed on."""

from __future__ import annotations

import contextlib
import json
import struct
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from sglang_eagle3_patch.checkpoint.header import (
    CheckpointUnreadable,
    TensorHeader,
    read_folder,
    read_header,
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    tensors = {"fc.weight": torch.zeros(4, 12, dtype=torch.bfloat16), "d2t": torch.zeros(7).long()}
    save_file(tensors, path)
    return path


def test_names_dtypes_and_shapes(file: Path) -> None:
    assert read_header(file) == {
        "fc.weight": TensorHeader("BF16", (4, 12)),
        "d2t": TensorHeader("I64", (7,)),
    }


@pytest.mark.parametrize("keep", [0, 5, 8, 40, -1])
def test_a_truncated_file_is_named(file: Path, keep: int) -> None:
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(CheckpointUnreadable, match=rf"{file}.*Fix: fetch it again"):
        read_header(file)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointUnreadable, match=r"gone.safetensors can't be read"):
        read_header(tmp_path / "gone.safetensors")


@given(st.binary(max_size=200))
def test_garbage_never_raises_anything_else(tmp_path_factory: pytest.TempPathFactory, data: bytes):
    path = tmp_path_factory.mktemp("garbage") / "x.safetensors"
    path.write_bytes(data)
    with contextlib.suppress(CheckpointUnreadable):
        read_header(path)


@given(
    st.recursive(
        st.none() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["dtype", "shape", "data_offsets", "x"]), inner, max_size=4
            )
        ),
        max_leaves=12,
    )
)
def test_a_hostile_header_never_raises_anything_else(
    tmp_path_factory: pytest.TempPathFactory, header: object
) -> None:
    path = tmp_path_factory.mktemp("hostile") / "x.safetensors"
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text)
    with contextlib.suppress(CheckpointUnreadable):
        read_header(path)


def test_shards_come_from_the_index(file: Path) -> None:
    index = file.parent / "model.safetensors.index.json"
    save_file({"stray": torch.zeros(1)}, file.parent / "stray.safetensors")
    index.write_text(json.dumps({"weight_map": {"fc.weight": file.name, "d2t": file.name}}))
    assert set(read_folder(file.parent)) == {"fc.weight", "d2t"}


def test_an_index_that_leaves_its_folder_is_refused(file: Path) -> None:
    index = file.parent / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"fc.weight": "../../etc/passwd"}}))
    with pytest.raises(CheckpointUnreadable, match=r"no file of its own folder"):
        read_folder(file.parent)


def test_an_index_with_a_missing_shard_is_refused(file: Path) -> None:
    index = file.parent / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"fc.weight": "model-00002.safetensors"}}))
    with pytest.raises(CheckpointUnreadable, match=r"model-00002.safetensors can't be read"):
        read_folder(file.parent)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"weight_map": 3}', '{"weight_map": {"a": {}}}'])
def test_an_index_that_is_none_is_refused(file: Path, text: str) -> None:
    index = file.parent / "model.safetensors.index.json"
    index.write_text(text)
    with pytest.raises(CheckpointUnreadable, match="index"):
        read_folder(file.parent)
