"""What strangers' checkpoints get from the commands: one line and a status, soon, in little memory.

`tests/unit/checkpoint/test_hostile_files.py` has many more for the readers below them.
"""

from __future__ import annotations

import json
import struct
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sglang_eagle3_patch import cli
from tests.unit.checkpoint import drafts
from tests.unit.checkpoint.test_hostile_files import LFS, not_root
from tests.unit.convert import written
from tests.unit.doctor.folders import write_target

HEADERS = drafts.top("embed_tokens.weight") | drafts.layer("midlayer.")
CONFIG = drafts.flat(drafts.SGLANG, norm_before_residual=False)
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
MEMORY, SECONDS = 20_000_000, 5.0


def header(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], object]:
    """Return what writes the weights again under a changed header."""

    def rewrite(folder: Path) -> None:
        raw = (folder / WEIGHTS).read_bytes()
        (length,) = struct.unpack("<Q", raw[:8])
        entries = json.loads(raw[8 : 8 + length])
        change(entries)
        text = json.dumps(entries).encode()
        (folder / WEIGHTS).write_bytes(struct.pack("<Q", len(text)) + text + raw[8 + length :])

    return rewrite


def weights(change: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    return lambda folder: (folder / WEIGHTS).write_bytes(change((folder / WEIGHTS).read_bytes()))


def text(name: str, content: str | bytes) -> Callable[[Path], object]:
    raw = content.encode() if isinstance(content, str) else content
    return lambda folder: (folder / name).write_bytes(raw)


def index(name: str) -> Callable[[Path], object]:
    return text(INDEX, json.dumps({"weight_map": {"fc.weight": name}}))


def loop(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    (folder / WEIGHTS).symlink_to(WEIGHTS)


def huge(name: str) -> Callable[[Path], object]:
    def write(folder: Path) -> None:
        with (folder / name).open("wb") as stream:
            stream.truncate(100_000_000)  # a hole: nothing is on the disk

    return write


def twice(raw: bytes) -> bytes:
    (length,) = struct.unpack("<Q", raw[:8])
    told = raw[8 : 8 + length].rstrip()[:-1] + b', "fc.weight": {}}'
    return struct.pack("<Q", len(told)) + told + raw[8 + length :]


UNREADABLE: dict[str, tuple[Callable[[Path], object], str]] = {
    "a truncated header": (weights(lambda raw: raw[:200]), "is truncated"),
    "a truncated file": (weights(lambda raw: raw[:-1]), "is truncated"),
    "a header longer than the file": (
        weights(lambda raw: struct.pack("<Q", 1 << 50) + raw[8:]),
        "is truncated or no safetensors file",
    ),
    "a key twice": (weights(twice), "the key 'fc.weight' is there twice"),
    "an overlap": (
        header(lambda h: h["norm.weight"].update(data_offsets=[0, 128])),
        "overlaps with",
    ),
    "offsets beyond the file": (
        header(lambda h: h["fc.weight"].update(data_offsets=[10**9, 10**9 + 24576])),
        "lies at bytes 1000000000",
    ),
    "a dtype of nobody": (header(lambda h: h["fc.weight"].update(dtype="BF17")), "no dtype"),
    "an absolute path in the index": (index("/etc/passwd"), "no file of its own folder"),
    "a path that leaves the folder": (index("../model.safetensors"), "no file of its own folder"),
    "a shard that is not there": (index("model-00002.safetensors"), "can't be read"),
    "a loop of symlinks": (loop, "can't be read: Too many levels"),
    "a config of 100 MB": (huge("config.json"), "100000000 bytes, more than"),
    "an index of 100 MB": (huge(INDEX), "100000000 bytes, more than"),
    "NaN in the config": (text("config.json", '{"rope_theta": NaN}'), "NaN is no JSON number"),
    "deep nesting": (text("config.json", "[" * 100_000), "nests too deeply"),
    "weights that are an LFS pointer": (text(WEIGHTS, LFS), "git lfs pull"),
    "a config that is an LFS pointer": (text("config.json", LFS), "git lfs pull"),
    "unreadable weights": (lambda folder: (folder / WEIGHTS).chmod(0), "can't be read"),
    "an unreadable config": (lambda folder: (folder / "config.json").chmod(0), "can't be read"),
}


def told_by(command: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    begun = time.monotonic()
    tracemalloc.start()
    try:
        status = cli.main(command)
        assert tracemalloc.get_traced_memory()[1] < MEMORY
    finally:
        tracemalloc.stop()
    assert time.monotonic() - begun < SECONDS
    captured = capsys.readouterr()
    return status, captured.out, captured.err


@pytest.mark.parametrize("word", ["doctor", "convert"])
@pytest.mark.parametrize("kind", UNREADABLE)
def test_what_cannot_be_read_exits_2_in_one_line(
    kind: str, word: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damage, reason = UNREADABLE[kind]
    draft = written.write(tmp_path / "draft", CONFIG, HEADERS)
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)  # so that root as nobody gets as far as the file
    damage(draft)
    command = [word, str(draft), *([str(tmp_path / "out")] if word == "convert" else [])]
    if "unreadable" in kind:
        with not_root():
            status, out, err = told_by(command, capsys)
    else:
        status, out, err = told_by(command, capsys)
    assert (status, out) == (2, "")
    assert err.count("\n") == 1
    assert reason in err
    assert not (tmp_path / "out").exists()


# What can be read is judged: an error of the draft's, with its remedy.
WRONG: dict[str, tuple[str, bytes, str, str]] = {
    "NaN in a norm": ("norm.weight", b"\xc0\x7f", "BF16", "hold NaN or infinity"),
    "a map of floats": ("d2t", bytes(8), "F64", "d2t is F64"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_what_can_be_read_and_is_wrong_is_judged(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, item, dtype, reason = WRONG[kind]
    values = written.values_of(HEADERS)
    values[name] = item * (len(values[name]) // len(item))
    draft = written.write(tmp_path / "draft", CONFIG, HEADERS, values)
    header(lambda entries: entries[name].update(dtype=dtype))(draft)
    target = write_target(tmp_path / "target")
    status, out, _ = told_by(["doctor", str(draft), "--target", str(target)], capsys)
    assert status == 1
    assert reason in out
    assert "remedy: " in out
    status, _, err = told_by(["convert", str(draft), str(tmp_path / "out")], capsys)
    assert status in (1, 2)
    assert reason in err
    assert err.count("\n") == 1
    assert not (tmp_path / "out").exists()
