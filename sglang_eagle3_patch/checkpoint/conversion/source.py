"""The tensors of a checkpoint as bytes: where they lie, and how they are read piece by piece."""

from __future__ import annotations

import os
import sys
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from sglang_eagle3_patch.checkpoint.header import (
    DTYPE_BITS,
    CheckpointUnreadable,
    TensorHeader,
    read_file_header,
    weight_files,
)
from sglang_eagle3_patch.checkpoint.vocab_map import LARGEST_MAP

PIECE = 8 << 20
"""Bytes that are held in memory at a time."""

# Little-endian bytes of 1.0.
_ONE = {"BF16": b"\x80\x3f", "F16": b"\x00\x3c", "F32": b"\x00\x00\x80\x3f"}
_INTEGERS = {"I8": "b", "U8": "B", "BOOL": "B", "I16": "h", "I32": "i", "I64": "q"}


class Transform(Protocol):
    """A change of a tensor's bytes that keeps their number and can be made piece by piece."""

    @property
    def unit(self) -> int:
        """How many bytes must be handed over together; pieces are multiples of it."""

    @property
    def says(self) -> str:
        """What is done, in a few words."""

    def __call__(self, at: int, piece: bytes, /) -> bytes:
        """Return what becomes of the bytes that begin `at` bytes into the tensor."""


@dataclass(frozen=True)
class Stored:
    """One tensor of a checkpoint: its bytes lie in `file` from `begin` on, or in `buffer`."""

    name: str
    header: TensorHeader
    file: Path
    begin: int = 0
    buffer: Callable[[], memoryview] | None = None

    def pieces(self, transform: Transform | None = None) -> Iterator[bytes]:
        """Return the tensor's bytes in pieces of about `PIECE`, after `transform`.

        Raises `CheckpointUnreadable` when the file ends before the tensor does.
        """
        unit = transform.unit if transform else 1
        step = max(PIECE // unit, 1) * unit
        if self.buffer is not None:
            data = self.buffer()
            read: Iterator[bytes] = (
                bytes(data[at : at + step]) for at in range(0, len(data), step)
            )
        else:
            read = self._read(step)
        at = 0
        for piece in read:
            yield transform(at, piece) if transform else piece
            at += len(piece)

    def _read(self, step: int) -> Iterator[bytes]:
        with self.file.open("rb") as stream:
            os.posix_fadvise(stream.fileno(), self.begin, self.header.size, os.POSIX_FADV_WILLNEED)
            stream.seek(self.begin)
            left = self.header.size
            while left:
                piece = stream.read(min(step, left))
                if len(piece) != min(step, left):
                    raise CheckpointUnreadable(f"{self.file} became shorter while it was read")
                left -= len(piece)
                yield piece

    def integers(self) -> list[int]:
        """Return the values of a tensor of integers.

        Raises `CheckpointUnreadable` for another dtype, and for more than a vocabulary has.
        """
        code = _INTEGERS.get(self.header.dtype)
        if code is None:
            raise CheckpointUnreadable(
                f"{self.file}: {self.name} is {self.header.dtype}, and should hold integers. "
                "Fix: take it from the trainer anew."
            )
        if self.header.size > LARGEST_MAP:
            raise CheckpointUnreadable(
                f"{self.file}: {self.name} has {self.header.size} bytes, more than a map of any "
                "vocabulary. Fix: take it from the trainer anew."
            )
        values = array(code, b"".join(self.pieces()))
        if sys.byteorder == "big":
            values.byteswap()
        return values.tolist()

    def is_all_ones(self) -> bool:
        """Whether every value is exactly 1.0; False for a dtype that isn't a usual float."""
        one = _ONE.get(self.header.dtype)
        return one is not None and all(
            piece == one * (len(piece) // len(one)) for piece in self.pieces()
        )


@dataclass(frozen=True)
class AbsoluteToOffset:
    """Makes offsets of target ids: `offset = target id - draft id`."""

    dtype: str

    @property
    def unit(self) -> int:
        """Bytes of one id."""
        return DTYPE_BITS[self.dtype] // 8

    @property
    def says(self) -> str:
        """What is done."""
        return "target ids made offsets"

    def __call__(self, at: int, piece: bytes) -> bytes:
        """Subtract from each id its place."""
        ids = array(_INTEGERS[self.dtype], piece)
        if sys.byteorder == "big":
            ids.byteswap()
        first = at // self.unit
        offsets = array(ids.typecode, (value - first - i for i, value in enumerate(ids)))
        if sys.byteorder == "big":
            offsets.byteswap()
        return offsets.tobytes()


@dataclass(frozen=True)
class BlockOrder:
    """Puts the equal blocks of every row in another order: block `i` becomes block `order[i]`'s.

    `block` is a block's size in bytes.
    """

    order: tuple[int, ...]
    block: int

    @property
    def unit(self) -> int:
        """Bytes of one row."""
        return self.block * len(self.order)

    @property
    def says(self) -> str:
        """What is done."""
        return f"column blocks in the order {list(self.order)}"

    def __call__(self, _at: int, piece: bytes) -> bytes:
        """Reorder whole rows."""
        view, block = memoryview(piece), self.block
        return b"".join(
            view[row + source * block : row + (source + 1) * block]
            for row in range(0, len(piece), self.unit)
            for source in self.order
        )


def stored_tensors(folder: Path) -> dict[str, Stored]:
    """Return the tensors of a folder's safetensors files by name, without reading them.

    Raises `CheckpointUnreadable` for a file that can't be read, and for a tensor that two files
    hold: which of them counts depends on the reader.
    """
    found: dict[str, Stored] = {}
    for file in weight_files(folder):
        header = read_file_header(file)
        for name, tensor in header.tensors.items():
            if name in found:
                raise CheckpointUnreadable(
                    f"{name} is in {found[name].file} and in {file}. "
                    "Fix: leave only the files of one checkpoint in the folder."
                )
            found[name] = Stored(name, tensor, file, header.begins[name])
    return found
