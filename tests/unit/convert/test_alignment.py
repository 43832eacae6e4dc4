"""Where the bytes are put: the kernel copies whole pages only between equal places in a page."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from sglang_eagle3_patch.checkpoint.conversion import streaming
from sglang_eagle3_patch.checkpoint.header import read_file_header
from tests.unit.checkpoint import drafts
from tests.unit.convert import written

HEADERS = drafts.top() | drafts.layer("midlayer.")


def with_header_of(file: Path, multiple: int, rest: int) -> None:
    """Pad the header, so that the data begin at a multiple and `rest`."""
    data = file.read_bytes()
    end = 8 + struct.unpack("<Q", data[:8])[0]
    text = data[8:end] + b" " * ((rest - end) % multiple)
    file.write_bytes(struct.pack("<Q", len(text)) + text + data[end:])


@pytest.mark.parametrize("rest", [0, 8, 4088, 1496])
def test_the_data_lie_in_their_pages_as_before(rest: int, tmp_path: Path) -> None:
    source = written.write(tmp_path / "in", drafts.flat(drafts.SGLANG), HEADERS)
    with_header_of(source / "model.safetensors", 4096, rest)
    plan = written.convert(source, tmp_path / "out").plan
    header = read_file_header(tmp_path / "out" / "model.safetensors")
    largest = max(plan.moves, key=lambda move: move.source.header.size)
    assert (header.begins[largest.name] - largest.source.begin) % 4096 == 0
    assert min(header.begins.values()) % 8 == 0


@pytest.mark.parametrize("rest", [1, 4])
def test_a_source_that_is_not_aligned_is(rest: int, tmp_path: Path) -> None:
    """safetensors begins the data at a multiple of 8; files of others need not."""
    source = written.write(tmp_path / "in", drafts.flat(drafts.SGLANG), HEADERS)
    with_header_of(source / "model.safetensors", 8, rest)
    written.convert(source, tmp_path / "out")
    header = read_file_header(tmp_path / "out" / "model.safetensors")
    assert min(header.begins.values()) % 8 == 0


def test_pieces_end_at_whole_blocks_of_the_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streaming, "PIECE", 1000)
    (tmp_path / "source").write_bytes(bytes(range(256)) * 20)
    pieces: list[int] = []
    with (tmp_path / "target").open("xb") as target:
        target.write(bytes(300))
        target.flush()
        streaming.copy_bytes(tmp_path / "source", 17, 5000, target, pieces.append)
    assert pieces == [700, 1000, 1000, 1000, 1000, 283]
    copied = (tmp_path / "target").read_bytes()[300:]
    assert copied == (tmp_path / "source").read_bytes()[17:5000]
