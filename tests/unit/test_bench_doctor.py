"""The checkpoints that the doctor is measured on, small: they are what they are said to be."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from bench import doctor as bench
from bench import processes
from bench.kimi import Size, target_tensors, write_draft, write_target
from sglang_eagle3_patch.checkpoint.header import INDEX, read_file_header, read_header
from sglang_eagle3_patch.commands.doctor import judge

SMALL = Size(layers=8, experts=3, shards=4, hidden=64, intermediate=96, expert_intermediate=32)


def test_the_target_is_of_kimis_size() -> None:
    tensors = target_tensors(Size())
    assert 207_000 < len(tensors) < 209_000
    assert 590e9 < sum(tensor.size for tensor in tensors.values()) < 600e9


def test_the_draft_is_of_its_size_and_takes_no_room(tmp_path: Path) -> None:
    file = write_draft(tmp_path / "draft", Size()) / "model.safetensors"
    parameters = sum(
        math.prod(tensor.shape) for name, tensor in read_header(file).items() if "weight" in name
    )
    assert 1.15e9 < parameters < 1.25e9
    assert file.stat().st_size > 2 * parameters
    assert file.stat().st_blocks * 512 < 1_000_000


def test_the_index_lists_what_the_shards_hold(tmp_path: Path) -> None:
    folder = write_target(tmp_path / "target", SMALL)
    index = json.loads((folder / INDEX).read_text())
    shards = sorted(folder.glob("*.safetensors"))
    held = {name: file.name for file in shards for name in read_file_header(file).tensors}
    assert len(shards) == SMALL.shards
    assert index["weight_map"] == held
    assert held.keys() == target_tensors(SMALL).keys()
    assert held["language_model.model.embed_tokens.weight"] == shards[-1].name


@pytest.mark.parametrize("embedding", [False, True])
def test_the_doctor_finds_nothing_wrong(tmp_path: Path, embedding: bool) -> None:
    """A pair that is refused early would be judged in less time than a sound one."""
    draft = write_draft(tmp_path / "draft", SMALL, embedding=embedding)
    target = write_target(tmp_path / "target", SMALL)
    judgement = judge(str(draft), str(target), bench.RELEASE, [])
    assert (judgement.plugin.outcome, judgement.stock.outcome) == ("serves", "serves")


@pytest.mark.parametrize(
    ("seconds", "megabytes", "met"), [(1.5, 64.0, True), (1.6, 1.0, False), (0.1, 65.0, False)]
)
def test_the_goals(seconds: float, megabytes: float, met: bool) -> None:
    assert bench.within_goals(processes.Summary(seconds, 0.1, 0.1, 30.0, megabytes)) is met


def test_what_a_process_takes(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(3_000_000))
    order: list[str] = []
    rows = processes.in_turn(
        {"cat": ["cat", str(tmp_path / "file")], "sleep": ["sleep", "0.05"]}, 2, order.append
    )
    assert 3.0 < rows["cat"].read_mb < 3.5
    assert rows["sleep"].read_mb < 0.5
    assert rows["sleep"].minimum_s >= 0.05
    assert order == ["sleep", "cat", "cat", "sleep", "sleep", "cat"]


def test_a_command_that_fails_is_no_measurement() -> None:
    with pytest.raises(RuntimeError, match="false failed with 1"):
        processes.run(["false"])
