"""Reads names, dtypes and shapes from safetensors headers, without torch and without the weights.

File format: eight bytes, little-endian, give the length of a JSON header that follows them.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# The safetensors library itself refuses longer headers.
LONGEST_HEADER = 100_000_000
INDEX = "model.safetensors.index.json"


class CheckpointUnreadable(ValueError):
    """A checkpoint file is missing, truncated or not what its name says; the text names it."""


@dataclass(frozen=True)
class TensorHeader:
    """One tensor as its file's header describes it; `dtype` in safetensors' words (`BF16`)."""

    dtype: str
    shape: tuple[int, ...]


def read_header(file: Path) -> dict[str, TensorHeader]:
    """Return the tensors of one safetensors file.

    Raises `CheckpointUnreadable` naming the file and what is wrong with it.
    """
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            prefix = stream.read(8)
            length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else -1
            if not 0 <= length <= min(size - 8, LONGEST_HEADER):
                raise CheckpointUnreadable(
                    f"{file} is truncated or no safetensors file: {size} bytes, its header should "
                    f"have {length}. Fix: fetch it again."
                )
            header = json.loads(stream.read(length))
    except OSError as error:
        raise CheckpointUnreadable(f"{file} can't be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        if isinstance(error, CheckpointUnreadable):
            raise
        raise CheckpointUnreadable(
            f"{file} has no JSON header ({error}). Fix: fetch it again."
        ) from error
    if not isinstance(header, dict):
        raise CheckpointUnreadable(f"{file}: its header is no object. Fix: fetch it again.")
    return {
        name: _tensor_header(file, name, entry, size - 8 - length)
        for name, entry in header.items()
        if name != "__metadata__"
    }


def read_folder(folder: Path) -> dict[str, TensorHeader]:
    """Return the tensors of all safetensors files of a checkpoint folder.

    With an index, exactly the shards it lists are read; without one, every `*.safetensors`, as
    SGLang does. A folder without safetensors files gives {}: pickled weights are not looked into.
    Raises `CheckpointUnreadable` for a shard that is missing or broken.
    """
    index = folder / INDEX
    if index.is_file():
        files = [folder / name for name in _shards(index)]
    else:
        files = sorted(folder.glob("*.safetensors"))
    tensors: dict[str, TensorHeader] = {}
    for file in files:
        tensors.update(read_header(file))
    return tensors


def _shards(index: Path) -> list[str]:
    try:
        weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        names = sorted(set(weight_map.values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointUnreadable(
            f"{index} is no index of shards ({type(error).__name__}: {error}). Fix: fetch it again."
        ) from error
    for name in names:
        if not isinstance(name, str) or Path(name).name != name:
            raise CheckpointUnreadable(
                f"{index} names {name!r}, which is no file of its own folder. "
                "Fix: don't trust this checkpoint; fetch it again from its source."
            )
    return names


def _tensor_header(file: Path, name: str, entry: Any, data_size: int) -> TensorHeader:
    try:
        dtype, shape = str(entry["dtype"]), tuple(int(size) for size in entry["shape"])
        begin, end = (int(offset) for offset in entry["data_offsets"])
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointUnreadable(
            f"{file}: the header of {name} is broken ({error}). Fix: fetch it again."
        ) from error
    if not 0 <= begin <= end <= data_size or any(size < 0 for size in shape):
        raise CheckpointUnreadable(
            f"{file} is truncated: {name} lies at bytes {begin} to {end} of {data_size}. "
            "Fix: fetch it again."
        )
    return TensorHeader(dtype, shape)
