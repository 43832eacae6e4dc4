"""Files that strangers wrote: whatever is in them, one clear line, in bounded time and memory."""

from __future__ import annotations

import contextlib
import json
import os
import re
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_eagle3_patch.checkpoint import header as headers
from sglang_eagle3_patch.checkpoint.header import (
    INDEX,
    CheckpointUnreadable,
    read_file_header,
    read_folder,
    read_header,
)
from sglang_eagle3_patch.checkpoint.json_file import LONGEST_CONFIG, printable
from sglang_eagle3_patch.checkpoint.locate import local_folder
from sglang_eagle3_patch.checkpoint.spec import DraftSpec
from sglang_eagle3_patch.commands.doctor_inputs import CannotJudge, find_draft, find_target

LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"


def entry(begin: int, end: int, dtype: Any = "U8", shape: Any = None) -> dict[str, Any]:
    return {
        "dtype": dtype,
        "shape": [end - begin] if shape is None else shape,
        "data_offsets": [begin, end],
    }


def packed(header: Any, data: bytes = bytes(8)) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


WHOLE = {"a": entry(0, 4), "b": entry(4, 8)}
# The file's bytes, and what must be said of it.
HEADERS: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "truncated"),
    "seven bytes": (b"1234567", "truncated"),
    "a length beyond the file": (struct.pack("<Q", 1 << 40) + b"{}", "truncated"),
    "a negative length": (struct.pack("<q", -1) + b"{}", "truncated"),
    "a header cut short": (packed(WHOLE)[:20], "truncated"),
    "no JSON": (packed(b"{nope"), "no proper JSON"),
    "no UTF-8": (packed(b'{"\xff": 1}'), "no proper JSON"),
    "a list": (packed([]), "no object"),
    "a key twice": (packed(b'{"a": 1, "a": 2}'), "the key 'a' is there twice"),
    "a nested key twice": (packed(b'{"a": {"dtype": "U8", "dtype": "I8"}}'), "'dtype'.*twice"),
    "NaN": (packed(b'{"a": NaN}'), "NaN is no JSON number"),
    "minus infinity": (packed(b'{"a": -Infinity}'), "-Infinity is no JSON number"),
    "a float without end": (packed(b'{"a": 1e999}'), "too large a number"),
    "an integer without end": (packed(b'{"a": ' + b"9" * 5000 + b"}"), "5000 digits"),
    "deep nesting": (packed(b"[" * 200_000), "nests too deeply"),
    "a name of two lines": (packed({"a\nb": entry(0, 8)}), r"'a\\nb' is no name of a tensor"),
    "a name that steers a terminal": (packed({"a\x1b[2J": entry(0, 8)}), "is no name of a tensor"),
    "half a character": (packed({"a\ud800": entry(0, 8)}), "no proper JSON"),
    "an entry that is none": (packed({"a": 3}), "header of a is broken"),
    "no offsets": (packed({"a": {"dtype": "U8", "shape": [8]}}), "header of a is broken"),
    "three offsets": (
        packed({"a": {"dtype": "U8", "shape": [8], "data_offsets": [0, 4, 8]}}),
        "header of a is broken",
    ),
    "offsets as words": (
        packed({"a": {"dtype": "U8", "shape": [8], "data_offsets": ["0", "8"]}}),
        "header of a is broken",
    ),
    "offsets that are true": (
        packed({"a": {"dtype": "U8", "shape": [1], "data_offsets": [False, True]}}),
        "header of a is broken",
    ),
    "a negative size": (packed({"a": entry(0, 8, shape=[-1, -8])}), "header of a is broken"),
    "a size as float": (packed({"a": entry(0, 8, shape=[8.0])}), "header of a is broken"),
    "a shape that is an object": (packed({"a": entry(0, 8, shape={})}), "header of a is broken"),
    "a dtype of nobody": (packed({"a": entry(0, 8, "BF17")}), "'BF17' is no dtype"),
    "a dtype that is a number": (packed({"a": entry(0, 8, 16)}), "'16' is no dtype"),
    "a dtype that is a list": (packed({"a": entry(0, 8, ["U8"])}), "is no dtype"),
    "too few bytes for the shape": (packed({"a": entry(0, 8, "F32", [4])}), "F32 .4. takes"),
    "too many bytes for the shape": (packed({"a": entry(0, 8, "F32", [1])}), "F32 .1. takes"),
    "a product beyond all bounds": (
        packed({"a": entry(0, 8, shape=[2**60] * 60)}),
        "not what U8",
    ),
    "a thousand dimensions": (packed({"a": entry(0, 8, shape=[2] * 1000)}), "not what U8"),
    "offsets beyond the file": (packed({"a": entry(0, 4), "b": entry(4, 9)}), "truncated: b"),
    "offsets the wrong way": (
        packed({"a": {"dtype": "U8", "shape": [4], "data_offsets": [8, 4]}}),
        "truncated: a",
    ),
    "an overlap": (packed({"a": entry(0, 5), "b": entry(4, 8)}), "b overlaps with a"),
    "twice the same bytes": (packed({"a": entry(0, 8), "b": entry(0, 8)}), "b overlaps with a"),
    "a gap": (packed({"a": entry(0, 3), "b": entry(4, 8)}), "b leaves a gap after a"),
    "a gap before the first": (packed({"a": entry(4, 8)}), "a leaves a gap after the header"),
    "bytes behind the last": (packed({"a": entry(0, 4)}), "4 bytes behind its last tensor"),
    "metadata that are none": (packed({"__metadata__": [1], **WHOLE}), "no object of strings"),
    "metadata of numbers": (packed({"__metadata__": {"a": 1}, **WHOLE}), "no object of strings"),
    "a Git LFS pointer": (LFS, r"Git LFS pointer.*git lfs pull"),
}


def refusal(read: Callable[[], Any], names: Path) -> str:
    with pytest.raises(CheckpointUnreadable) as raised:
        read()
    text = str(raised.value)
    assert str(names) in text
    assert "\n" not in text
    assert len(text) < 1000
    return text


@pytest.mark.parametrize("kind", HEADERS)
def test_a_broken_header(kind: str, tmp_path: Path) -> None:
    data, told = HEADERS[kind]
    file = tmp_path / "model.safetensors"
    file.write_bytes(data)
    assert re.search(told, refusal(lambda: read_header(file), file))


def test_a_whole_one(tmp_path: Path) -> None:
    """So that each of the above is about its own damage."""
    file = tmp_path / "model.safetensors"
    file.write_bytes(packed({"__metadata__": {"format": "pt"}, **WHOLE, "empty": entry(8, 8)}))
    found = read_file_header(file)
    assert set(found.tensors) == {"a", "b", "empty"}
    assert found.begins["b"] - found.begins["a"] == 4


def test_a_header_longer_than_any_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    with file.open("wb") as stream:
        stream.write(struct.pack("<Q", headers.LONGEST_HEADER + 1))
        stream.truncate(2 * headers.LONGEST_HEADER)  # a hole: nothing is on the disk
    refused_in_little_memory(lambda: read_header(file), file)


@pytest.mark.parametrize("name", ["config.json", INDEX])
def test_a_config_or_index_of_100_mb_is_not_read(name: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with (tmp_path / name).open("wb") as stream:
        stream.truncate(100_000_000)
    text = refused_in_little_memory(lambda: DraftSpec.read(tmp_path), tmp_path / name)
    assert "100000000 bytes, more than" in text


def refused_in_little_memory(read: Callable[[], Any], names: Path) -> str:
    tracemalloc.start()
    try:
        text = refusal(read, names)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()
    return text


# What is in the place of config.json, and what must be said of it.
CONFIGS: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "no proper JSON"),
    "a list": (b"[]", "holds list, no object"),
    "a key twice": (b'{"hidden_size": 1, "hidden_size": 2}', "'hidden_size' is there twice"),
    "NaN": (b'{"rms_norm_eps": NaN}', "NaN is no JSON number"),
    "infinity": (b'{"rope_theta": Infinity}', "Infinity is no JSON number"),
    "an integer without end": (b'{"rope_theta": 1' + b"0" * 400 + b"}", "401 digits"),
    "no UTF-8": (b'{"a": "\xff"}', "no proper JSON"),
    "half a character": (b'{"a": "\\ud800"}', "no proper JSON"),
    "deep nesting": (b'{"a":' * 100_000, "nests too deeply"),
    "a Git LFS pointer": (LFS, "git lfs pull"),
    "architectures as a number": (b'{"architectures": 5}', "architectures is no list of names"),
    "architectures of numbers": (b'{"architectures": [5]}', "architectures is no list of names"),
    "eagle_config as a list": (b'{"eagle_config": [1]}', "eagle_config is no object"),
    "rope as a number": (b'{"rope_parameters": 3}', "rope_parameters is no object"),
    "a nested rope as a number": (
        b'{"transformer_layer_config": {"rope_scaling": 3}}',
        "transformer_layer_config.rope_scaling is no object",
    ),
    "an activation as a list": (b'{"hidden_act": ["silu"]}', "hidden_act is no word"),
}


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_broken_config(kind: str, tmp_path: Path) -> None:
    data, told = CONFIGS[kind]
    file = tmp_path / "config.json"
    file.write_bytes(data)
    assert told in refusal(lambda: DraftSpec.read(tmp_path), file)


@pytest.mark.parametrize(
    "name", ["/etc/passwd", "../model.safetensors", "a/../../b", "..", ".", "", "a/b", "a\0b"]
)
def test_an_index_names_only_files_of_its_folder(name: str, tmp_path: Path) -> None:
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"a": name}}))
    refusal(lambda: read_folder(tmp_path), tmp_path)


@pytest.mark.parametrize("value", [3, None, ["a"], {"a": 1}, {"a": None}, {"a": ["b"]}])
def test_a_weight_map_that_is_none(value: Any, tmp_path: Path) -> None:
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": value}))
    text = refusal(lambda: read_folder(tmp_path), tmp_path / INDEX)
    assert "no weight_map of tensors to files" in text


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
@pytest.mark.parametrize("kind", ["folder", "pipe", "device", "loop", "dangling", "forbidden"])
@pytest.mark.timeout(10)  # a pipe that is opened waits for its writer
def test_what_is_no_file(name: str, kind: str, tmp_path: Path) -> None:
    file = tmp_path / name
    (tmp_path / "config.json").write_text("{}")
    file.unlink(missing_ok=True)
    as_somebody = contextlib.nullcontext()
    if kind == "folder":
        file.mkdir()
    elif kind == "pipe":
        os.mkfifo(file)
    elif kind == "device":
        file.symlink_to("/dev/zero")
    elif kind == "loop":
        file.symlink_to(file.name)
    elif kind == "dangling":
        file.symlink_to("nowhere")
    else:
        file.write_bytes(packed(WHOLE))
        file.chmod(0)
        as_somebody = not_root()
    with as_somebody:
        # Nobody may not even enter the folder, where root runs this.
        text = refusal(lambda: DraftSpec.read(tmp_path), tmp_path if kind == "forbidden" else file)
    assert ("can't be read" in text) == (kind in ("loop", "dangling", "forbidden"))


@contextlib.contextmanager
def not_root() -> Any:
    """Root may read anything: become nobody meanwhile."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("name", ["a" * 5000, "a\0b", "x/" * 3000, "\ud800"])
def test_names_that_are_no_paths_are_not_local(name: str) -> None:
    assert local_folder(name) is None
    for find in (find_draft, find_target):
        with pytest.raises(CannotJudge):
            find(name)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)
KEYS = [
    "architectures",
    "draft_vocab_size",
    "eagle_aux_hidden_state_layer_ids",
    "eagle_config",
    "fc_norm",
    "head_dim",
    "hidden_act",
    "hidden_size",
    "layer_types",
    "norm_before_fc",
    "norm_before_residual",
    "norm_output",
    "num_attention_heads",
    "num_hidden_layers",
    "num_key_value_heads",
    "rms_norm_eps",
    "rope_parameters",
    "rope_scaling",
    "rope_theta",
    "sliding_window",
    "speculators_model_type",
    "speculators_version",
    "target_hidden_size",
    "tie_word_embeddings",
    "transformer_layer_config",
    "vocab_size",
    "parallel_drafting",
    "target_model_type",
]
PROPERTIES = [name for name, value in vars(DraftSpec).items() if isinstance(value, property)]


@settings(max_examples=300, deadline=None)
@given(config=st.dictionaries(st.sampled_from(KEYS), JSON, max_size=8), nested=st.booleans())
def test_a_spec_of_any_config_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, config: dict[str, Any], nested: bool
) -> None:
    folder = tmp_path_factory.mktemp("config")
    if nested:
        config = {"speculators_model_type": "eagle3", "transformer_layer_config": config}
    (folder / "config.json").write_text(json.dumps(config))
    assert (folder / "config.json").stat().st_size < LONGEST_CONFIG
    (folder / "model.safetensors").write_bytes(packed({"fc.weight": entry(0, 8, shape=[2, 4])}))
    with contextlib.suppress(CheckpointUnreadable):
        spec = DraftSpec.read(folder)
        for name in PROPERTIES:
            getattr(spec, name)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["U8", "F32", "BF16", "F4", "X"]), st.integers(0, 9)), max_size=6
    ),
    st.integers(0, 40),
)
def test_a_header_is_read_only_if_its_tensors_fill_the_file(
    tmp_path_factory: pytest.TempPathFactory, tensors: list[tuple[str, int]], data: int
) -> None:
    header, at = {}, 0
    for number, (dtype, size) in enumerate(tensors):
        end = at + size * headers.DTYPE_BITS.get(dtype, 8) // 8
        header[str(number)] = entry(at, end, dtype, [size])
        at = end
    file = tmp_path_factory.mktemp("header") / "x.safetensors"
    file.write_bytes(packed(header, bytes(data)))
    odd = any(dtype == "F4" and size % 2 for dtype, size in tensors)
    if at == data and not odd and all(dtype != "X" for dtype, _ in tensors):
        assert len(read_header(file)) == len(tensors)
    else:
        refusal(lambda: read_header(file), file)


def test_an_index_of_more_files_than_any(tmp_path: Path) -> None:
    """Each would be asked for before the first one is found to be missing."""
    weight_map = {str(number): str(number) for number in range(10_001)}
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    assert "names 10001 files" in refusal(lambda: read_folder(tmp_path), tmp_path / INDEX)


@pytest.mark.parametrize("text", ["a\nb\x1b[2J\u202e\ud800", "é 漢"])
def test_what_strangers_wrote_is_printed_in_one_line(text: str) -> None:
    line = printable(text)
    assert line.isprintable()
    assert (line == text) == text.isprintable()


def test_a_whole_model_is_no_draft(tmp_path: Path) -> None:
    """Every rule looks through all tensors: a target given as the draft took minutes."""
    (tmp_path / "config.json").write_text("{}")
    header = {str(number): entry(0, 0) for number in range(20_001)}
    (tmp_path / "model.safetensors").write_bytes(packed(header, b""))
    text = refusal(lambda: DraftSpec.read(tmp_path), tmp_path)
    assert "20001 tensors: a whole model, no draft" in text
