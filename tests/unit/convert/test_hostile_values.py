"""Tensors and words that a stranger wrote: refused in one line, before they fill the memory."""

from __future__ import annotations

import argparse
import json
import struct
import tracemalloc
from pathlib import Path
from types import ModuleType

import pytest

from sglang_eagle3_patch.checkpoint.conversion.convert import plan_conversion
from sglang_eagle3_patch.checkpoint.header import CheckpointUnreadable, TensorHeader
from sglang_eagle3_patch.commands import convert, doctor
from tests.unit.checkpoint import drafts
from tests.unit.convert import written

HEADERS = drafts.top() | drafts.layer("midlayer.")
CONFIG = drafts.flat(drafts.SGLANG)


@pytest.mark.parametrize("name", ["d2t", "t2d"])
def test_a_map_of_a_billion_tokens_is_not_read(name: str, tmp_path: Path) -> None:
    headers = HEADERS | {name: TensorHeader("I64", (10**9,))}
    folder = written.write(tmp_path / "in", CONFIG, {}, {})
    entries, at = {}, 0
    for tensor, header in headers.items():
        place = [at, at := at + header.size]
        entries[tensor] = {"dtype": header.dtype, "shape": header.shape, "data_offsets": place}
    text = json.dumps(entries).encode()
    with (folder / "model.safetensors").open("wb") as stream:
        stream.write(struct.pack("<Q", len(text)) + text)
        stream.truncate(8 + len(text) + at)  # a hole: nothing is on the disk
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointUnreadable, match=f"{name} has 8000000000 bytes, more than"):
            plan_conversion(folder, written.options())
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("command", [convert, doctor])
def test_words_of_a_config_do_not_steer_the_terminal(
    command: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evil = "evil\n\x1b[2J\u202e"
    config = CONFIG | {"architectures": [evil], "hidden_act": evil, evil: 1}
    source = written.write(tmp_path / "in", config, HEADERS)
    parser = argparse.ArgumentParser()
    command.add_parser(parser.add_subparsers())
    word = command.__name__.rpartition(".")[2]
    out = [str(tmp_path / "out")] if command is convert else []
    parsed = parser.parse_args([word, str(source), *out])
    assert parsed.run(parsed) == 1
    told = "".join(capsys.readouterr())
    assert "vil\\n\\x1b[2J" in told
    assert all(line.isprintable() for line in told.splitlines())
