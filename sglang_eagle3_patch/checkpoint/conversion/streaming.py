"""Copies a stretch of a file into another one, by the fastest call that works here."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from sglang_eagle3_patch.checkpoint.conversion.source import PIECE
from sglang_eagle3_patch.checkpoint.header import CheckpointUnreadable

Progress = Callable[[int], None]
"""Is told how many bytes more have been done."""


def copy_bytes(file: Path, at: int, end: int, stream: BinaryIO, progress: Progress) -> None:
    """Append the bytes `at` to `end` of `file` to `stream`, within the kernel where it can.

    Pieces end where a multiple of `PIECE` is in `stream`: the kernel then fills large blocks of
    its memory, and takes two thirds of the time. `stream` has nothing left to flush.
    Raises `CheckpointUnreadable` when `file` ends before, OSError when it can't be written.
    """
    ahead = at - stream.tell()
    with file.open("rb") as source:
        for copy in (_by_copy_file_range, _by_sendfile, _by_reading):
            while at < end:
                size = min(PIECE - (at - ahead) % PIECE, end - at)
                try:
                    done = copy(source.fileno(), stream.fileno(), at, size)
                except OSError as error:
                    if copy is _by_reading or error.errno not in _CANNOT:
                        raise
                    break
                if not done:
                    raise CheckpointUnreadable(f"{file} became shorter while it was read")
                at += done
                progress(done)


# Across file systems, or where the kernel or a file system has no such call.
_CANNOT = (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM)


def _by_copy_file_range(source: int, target: int, at: int, size: int) -> int:
    return os.copy_file_range(source, target, size, at)


def _by_sendfile(source: int, target: int, at: int, size: int) -> int:
    return os.sendfile(target, source, at, size)


def _by_reading(source: int, target: int, at: int, size: int) -> int:
    return os.write(target, os.pread(source, size, at))
