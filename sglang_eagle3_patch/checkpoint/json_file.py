"""Reads JSON that strangers wrote: bounded in size, and nothing in it is read in two ways."""

from __future__ import annotations

import json
import math
import re
import stat
from pathlib import Path
from typing import Any, NoReturn

# A config is a few kilobytes; the largest index known, of a trillion parameters, 20 MB.
LONGEST_CONFIG = 10_000_000
LONGEST_INDEX = 32_000_000
_LFS_POINTER = b"version https://git-lfs.github.com/spec/"
# Every integer of a config or a header fits 64 bits.
_LONGEST_INTEGER = 20
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


class CheckpointUnreadable(ValueError):
    """A checkpoint file is missing, truncated or not what its name says; the text names it."""


def read_json_object(file: Path, longest: int = LONGEST_CONFIG) -> dict[str, Any]:
    """Return the object that `file` holds.

    Raises `CheckpointUnreadable` naming the file and what is wrong with it: it is missing, no
    regular file, longer than `longest` bytes, a Git LFS pointer, or not one JSON object.
    """
    text = read_bounded(file, longest)
    refuse_lfs_pointer(file, text)
    value = parse_json(file, text)
    if not isinstance(value, dict):
        raise CheckpointUnreadable(
            f"{file} holds {type(value).__name__}, no object. Fix: fetch it again."
        )
    return value


def read_bounded(file: Path, longest: int) -> bytes:
    """Return the bytes of `file`. Raises `CheckpointUnreadable` when it can't be read, is no
    regular file or longer than `longest` bytes."""
    try:
        size = regular_size(file)
        if size > longest:
            raise CheckpointUnreadable(
                f"{file} has {size} bytes, more than the {longest} that such a file may have. "
                "Fix: fetch it again from its source."
            )
        with file.open("rb") as stream:
            return stream.read(size)
    except OSError as error:
        raise CheckpointUnreadable(f"{file} can't be read: {error.strerror or error}") from error


def printable(text: str) -> str:
    """Return `text` in one line, so that what strangers wrote can't steer a terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def regular_size(file: Path) -> int:
    """Return the size of `file` in bytes. Raises OSError, or `CheckpointUnreadable` for a folder,
    a pipe or a device, of which reading may never end."""
    try:
        status = file.stat()
    except ValueError as error:  # a null byte in the name
        raise CheckpointUnreadable(f"{str(file)!r} is no file name ({error})") from error
    if not stat.S_ISREG(status.st_mode):
        raise CheckpointUnreadable(f"{file} is no regular file. Fix: fetch the checkpoint again.")
    return status.st_size


def refuse_lfs_pointer(file: Path, begin: bytes) -> None:
    """Raise `CheckpointUnreadable` when a file that begins so only points to the real one."""
    if begin.startswith(_LFS_POINTER):
        raise CheckpointUnreadable(
            f"{file} is a Git LFS pointer, not the file itself. "
            "Fix: run `git lfs pull` in its folder."
        )


def parse_json(file: Path, text: bytes) -> Any:
    """Return the JSON value in `text`, which came from `file`.

    Raises `CheckpointUnreadable` for text that is no JSON, and for what readers take differently:
    a key twice in one object, NaN and infinities, integers of more than 64 bits, half a character.
    """
    try:
        value = json.loads(
            text.decode("utf-8"),
            object_pairs_hook=_object,
            parse_constant=_refuse_constant,
            parse_float=_finite,
            parse_int=_integer,
        )
        if _SURROGATE.search(text):
            # Half of a pair is no character: it could be neither printed nor written again.
            json.dumps(value, ensure_ascii=False).encode()
        return value
    except (ValueError, RecursionError) as error:
        reason = "it nests too deeply" if isinstance(error, RecursionError) else error
        raise CheckpointUnreadable(
            f"{file} holds no proper JSON ({reason}). Fix: fetch it again."
        ) from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {twice[:100]!r} is there twice")
    return found


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON number")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:30]} is too large a number")
    return number


def _integer(text: str) -> int:
    if len(text) > _LONGEST_INTEGER:
        raise ValueError(f"an integer of {len(text)} digits")
    return int(text)
