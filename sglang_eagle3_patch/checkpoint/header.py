"""Reads names, dtypes and shapes from safetensors headers, without torch and without the weights.

File format: eight bytes, little-endian, give the length of a JSON header that follows them; the
tensors' bytes follow the header, without gaps.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sglang_eagle3_patch.checkpoint.json_file import (
    LONGEST_INDEX,
    parse_json,
    read_bounded,
    read_json_object,
    refuse_lfs_pointer,
    regular_size,
)

# Known to others by this module.
from sglang_eagle3_patch.checkpoint.json_file import CheckpointUnreadable as CheckpointUnreadable

# A header of a thousand tensors has 100 kB; safetensors itself would read 100 MB.
LONGEST_HEADER = 16_000_000
_MOST_SHARDS = 10_000
INDEX = "model.safetensors.index.json"
METADATA = "__metadata__"

# Bits of one element, by safetensors' word for its type.
DTYPE_BITS = {
    **dict.fromkeys(("F4",), 4),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    **dict.fromkeys(("BOOL", "U8", "I8"), 8),
    **dict.fromkeys(("F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 64),
}


@dataclass(frozen=True)
class TensorHeader:
    """One tensor as its file's header describes it; `dtype` in safetensors' words (`BF16`)."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """The tensor's bytes. Raises KeyError for a dtype that safetensors doesn't have."""
        return (math.prod(self.shape) * DTYPE_BITS[self.dtype] + 7) // 8


@dataclass(frozen=True)
class FileHeader:
    """The header of one safetensors file.

    `begins` is where each tensor's bytes begin in the file; `digest` is the SHA-256 of the
    header's JSON in hexadecimal.
    """

    tensors: Mapping[str, TensorHeader]
    begins: Mapping[str, int]
    metadata: Mapping[str, str]
    digest: str


def read_header(file: Path) -> dict[str, TensorHeader]:
    """Return the tensors of one safetensors file.

    Raises `CheckpointUnreadable` naming the file and what is wrong with it.
    """
    return dict(read_file_header(file).tensors)


def read_file_header(file: Path) -> FileHeader:
    """Return the whole header of one safetensors file.

    The tensors' bytes must fill the file without gaps or overlaps, as safetensors demands.
    Raises `CheckpointUnreadable` naming the file and what is wrong with it.
    """
    try:
        size = regular_size(file)
        with file.open("rb") as stream:
            prefix = stream.read(8)
            length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else -1
            if not 0 <= length <= min(size - 8, LONGEST_HEADER):
                refuse_lfs_pointer(file, prefix + stream.read(100))
                raise CheckpointUnreadable(
                    f"{file} is truncated or no safetensors file: {size} bytes, its header should "
                    f"have {length}. Fix: fetch it again."
                )
            text = stream.read(length)
    except OSError as error:
        raise CheckpointUnreadable(f"{file} can't be read: {error.strerror or error}") from error
    header = parse_json(file, text)
    if not isinstance(header, dict):
        raise CheckpointUnreadable(f"{file}: its header is no object. Fix: fetch it again.")
    metadata = header.pop(METADATA, None) or {}
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise CheckpointUnreadable(
            f"{file}: {METADATA} is no object of strings. Fix: fetch it again."
        )
    tensors, places = {}, {}
    for name, entry in header.items():
        tensors[name], places[name] = _tensor_header(file, name, entry, size - 8 - length)
    _refuse_gaps(file, places, size - 8 - length)
    begins = {name: 8 + length + begin for name, (begin, _) in places.items()}
    return FileHeader(tensors, begins, metadata, hashlib.sha256(text).hexdigest())


def read_folder(folder: Path) -> dict[str, TensorHeader]:
    """Return the tensors of all safetensors files of a checkpoint folder.

    With an index, exactly the shards it lists are read; without one, every `*.safetensors`, as
    SGLang does. A folder without safetensors files gives {}: pickled weights are not looked into.
    Raises `CheckpointUnreadable` for a shard that is missing or broken.
    """
    tensors: dict[str, TensorHeader] = {}
    for file in weight_files(folder):
        tensors.update(read_header(file))
    return tensors


def weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files that make up the checkpoint in `folder`, sorted by name.

    Raises `CheckpointUnreadable` for an index that can't be read or names other folders' files.
    """
    index = folder / INDEX
    if index.is_file():
        return [folder / name for name in _shards(index)]
    return sorted(folder.glob("*.safetensors"))


def files_with(folder: Path, ending: str) -> list[Path]:
    """Return the safetensors files in `folder` that can hold a tensor whose name ends so, sorted
    by name.

    The index tells, so that a target's 64 headers need not be read; it is searched as text, since
    to parse the names of 200 000 tensors takes longer than all else. Without an index, or with one
    that can't be read, it can be any file. A shard that is listed and not there is left out.
    """
    there = sorted(folder.glob("*.safetensors"))
    try:
        text = read_bounded(folder / INDEX, LONGEST_INDEX)
    except CheckpointUnreadable:
        return there
    named = re.findall(re.escape(ending).encode() + rb'"\s*:\s*"([^"]+)"', text)
    return [file for file in there if os.fsencode(file.name) in named]


def _shards(index: Path) -> list[str]:
    weight_map = read_json_object(index, LONGEST_INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(v, str) for v in weight_map.values()):
        raise CheckpointUnreadable(
            f"{index} is no index of shards: it has no weight_map of tensors to files. "
            "Fix: fetch it again."
        )
    names = sorted(set(weight_map.values()))
    if len(names) > _MOST_SHARDS:
        raise CheckpointUnreadable(
            f"{index} names {len(names)} files, more than any checkpoint has. Fix: fetch it again."
        )
    for name in names:
        if name in ("", "..") or "\0" in name or Path(name).name != name:
            raise CheckpointUnreadable(
                f"{index} names {name!r}, which is no file of its own folder. "
                "Fix: don't trust this checkpoint; fetch it again from its source."
            )
    return names


def _tensor_header(
    file: Path, name: str, entry: Any, data_size: int
) -> tuple[TensorHeader, tuple[int, int]]:
    if not name.isprintable():
        raise CheckpointUnreadable(
            f"{file}: {name[:100]!a} is no name of a tensor. Fix: fetch it again."
        )
    try:
        dtype, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
        if not isinstance(shape, list) or not all(
            type(size) is int and size >= 0 for size in (*shape, begin, end)
        ):
            raise ValueError("shape and data_offsets must be integers from 0")
        if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
            raise ValueError(f"{str(dtype)[:30]!r} is no dtype of safetensors")
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointUnreadable(
            f"{file}: the header of {name[:100]} is broken ({error}). Fix: fetch it again."
        ) from error
    if not begin <= end <= data_size:
        raise CheckpointUnreadable(
            f"{file} is truncated: {name[:100]} lies at bytes {begin} to {end} of {data_size}. "
            "Fix: fetch it again."
        )
    tensor = TensorHeader(dtype, tuple(shape))
    # A product of sizes grows with their number; more dimensions than this has no tensor.
    if len(shape) > 64 or tensor.size != end - begin:
        raise CheckpointUnreadable(
            f"{file}: {name[:100]} has {end - begin} bytes, which is not what {dtype} "
            f"{shape[:8]} takes. Fix: fetch it again."
        )
    return tensor, (begin, end)


def _refuse_gaps(file: Path, places: Mapping[str, tuple[int, int]], data_size: int) -> None:
    at, before = 0, "the header"
    for name, (begin, end) in sorted(places.items(), key=lambda place: place[1]):
        if begin != at:
            problem = "overlaps with" if begin < at else "leaves a gap after"
            raise CheckpointUnreadable(
                f"{file}: {name[:100]} {problem} {before[:100]}. Fix: fetch it again."
            )
        at, before = end, name
    if at != data_size:
        raise CheckpointUnreadable(
            f"{file} has {data_size - at} bytes behind its last tensor. Fix: fetch it again."
        )
