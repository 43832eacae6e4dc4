"""Small values of a local checkpoint: vocabulary maps and norms, by their bytes.

Read with the standard library alone: `d2t`, `t2d`, and the one-dimensional weights.
"""

from __future__ import annotations

import array
import struct
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from sglang_eagle3_patch.checkpoint.header import TensorHeader, read_file_header
from sglang_eagle3_patch.checkpoint.layouts import canonical_name
from sglang_eagle3_patch.checkpoint.vocab_map import LARGEST_MAP

# Rows of two embeddings that are compared: enough to tell a trained table from a copy.
_ROWS = 16
_CODES = {"F64": "d", "F32": "f", "I64": "q", "I32": "i", "I16": "h", "I8": "b", "U8": "B"}
_SHORTS = {"BF16": "H", "F16": "H"}


@dataclass(frozen=True)
class SmallValues:
    """The values, by canonical name; a float is a float whatever its dtype was.

    `embedding_differs`: whether the first rows of the draft's embedding are other than the
    target's; None where both aren't at hand in one dtype.
    """

    d2t: tuple[Any, ...] | None = None
    t2d: tuple[bool, ...] | None = None
    vectors: dict[str, tuple[float, ...]] = field(default_factory=dict)
    embedding_differs: bool | None = None


def read_small_values(files: list[Path], target_files: list[Path]) -> SmallValues:
    """Return the small values of a draft's safetensors files, whose headers are known to be sound.

    `target_files` are the target's, for its embedding alone. Raises OSError, or
    `CheckpointUnreadable` for a file whose header is broken.
    """
    found = small_values(
        (name, tensor, partial(_bytes, file, begin, tensor.size))
        for file in files
        for name, tensor, begin in _tensors(file)
    )
    return replace(found, embedding_differs=embedding_differs(files, target_files))


def small_values(
    tensors: Iterable[tuple[str, TensorHeader, Callable[[], bytes]]],
) -> SmallValues:
    """Return the small values among tensors, each given by name, header and how to get its bytes.

    No embedding is looked at. Raises what getting the bytes does.
    """
    d2t = t2d = None
    vectors: dict[str, tuple[float, ...]] = {}
    for name, tensor, get in tensors:
        canonical = canonical_name(name)
        if tensor.size > LARGEST_MAP:
            continue
        if canonical == "d2t":
            d2t = _numbers(tensor.dtype, get())
        elif canonical == "t2d":
            marks = _numbers(tensor.dtype, get())
            t2d = None if marks is None else tuple(map(bool, marks))
        elif len(tensor.shape) == 1 and canonical.endswith(".weight"):
            numbers = _numbers(tensor.dtype, get())
            if numbers is not None:
                vectors[canonical] = tuple(map(float, numbers))
    return SmallValues(d2t, t2d, vectors)


def embedding_differs(files: list[Path], target_files: list[Path]) -> bool | None:
    """Return whether the first rows of the embedding in `files` are other than the target's; None
    where both aren't there in one dtype. Raises OSError and `CheckpointUnreadable`."""
    own, targets = _first_rows(files), _first_rows(target_files)
    if own is None or targets is None or own[0] != targets[0]:
        return None
    return own[1] != targets[1]


def _first_rows(files: list[Path]) -> tuple[str, bytes] | None:
    for file in files:
        for name, tensor, begin in _tensors(file):
            shape = tensor.shape
            if name.endswith("embed_tokens.weight") and len(shape) == 2 and shape[0]:
                size = min(tensor.size, tensor.size // shape[0] * _ROWS, LARGEST_MAP)
                return f"{tensor.dtype}{shape[1]}", _bytes(file, begin, size)
    return None


def _tensors(file: Path) -> Iterator[tuple[str, TensorHeader, int]]:
    header = read_file_header(file)
    for name, tensor in header.tensors.items():
        yield name, tensor, header.begins[name]


def _bytes(file: Path, begin: int, size: int) -> bytes:
    with file.open("rb") as stream:
        stream.seek(begin)
        return stream.read(size)


def _numbers(dtype: str, raw: bytes) -> tuple[float, ...] | None:
    if dtype == "BOOL":
        return tuple(raw)
    if dtype == "F16":
        return struct.unpack(f"<{len(raw) // 2}e", raw)
    code = _CODES.get(dtype) or _SHORTS.get(dtype)
    if code is None:
        return None
    values: array.array[Any] = array.array(code, raw)
    if sys.byteorder == "big":
        values.byteswap()
    if dtype == "BF16":
        # The upper half of a float32.
        wide = array.array("I", (value << 16 for value in values))
        return tuple(array.array("f", wide.tobytes()))
    return tuple(values)
