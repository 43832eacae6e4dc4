"""Which of a target's files are opened to compare embeddings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.kimi import Size, write_draft, write_target
from sglang_eagle3_patch.checkpoint.header import INDEX, files_with
from sglang_eagle3_patch.commands.doctor_inputs import CannotJudge, find_draft

ENDING = "embed_tokens.weight"
SMALL = Size(layers=3, experts=2, shards=3, hidden=64, intermediate=96, expert_intermediate=32)


def shards(folder: Path, *names: str) -> list[Path]:
    for name in names:
        (folder / name).touch()
    return [folder / name for name in names]


@pytest.mark.parametrize("indent", [None, 2])
def test_the_index_tells(tmp_path: Path, indent: int | None) -> None:
    _, second, third = shards(tmp_path, "1.safetensors", "2.safetensors", "3.safetensors")
    listed = {
        "embed_tokens.weight_scale": "1.safetensors",
        f"model.{ENDING}": "2.safetensors",
        "norm.weight": "1.safetensors",
        f"vision.{ENDING}": "3.safetensors",
        f"lost.{ENDING}": "../../4.safetensors",
    }
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": listed}, indent=indent))
    assert files_with(tmp_path, ENDING) == [second, third]


def test_without_an_index_it_can_be_any(tmp_path: Path) -> None:
    files = shards(tmp_path, "1.safetensors", "2.safetensors")
    assert files_with(tmp_path, ENDING) == files
    (tmp_path / INDEX).mkdir()
    assert files_with(tmp_path, ENDING) == files


@pytest.mark.parametrize(("embedding", "opened"), [(False, 0), (True, 1)])
def test_the_doctor_opens_no_other(tmp_path: Path, embedding: bool, opened: int) -> None:
    """So that a target of hundreds of gigabytes costs no more than a small one."""
    target = write_target(tmp_path / "target", SMALL)
    draft = find_draft(str(write_draft(tmp_path / "draft", SMALL, embedding=embedding)))
    *others, last = sorted(target.glob("*.safetensors"))
    for file in others if opened else (*others, last):
        file.write_bytes(b"broken")
    values = draft.values(str(target))
    assert values is not None
    assert values.embedding_differs is (False if opened else None)
    if opened:
        last.write_bytes(b"broken")
        with pytest.raises(CannotJudge, match="truncated"):
            draft.values(str(target))
