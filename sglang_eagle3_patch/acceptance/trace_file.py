"""The file of a trace on disk: one start line to each part, parts moved aside by size.

Written without a buffer of its own, so that kill -9 loses nothing that was handed over; a line
that a full disk or a kill has torn is closed off before anything else is written.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sglang_eagle3_patch.acceptance.trace_reader import FORMAT, part_path

_encoder = json.JSONEncoder(separators=(",", ":"))


class TraceFile:
    """One trace at `path`. `start` is what its start lines tell beside kind, format, time and
    process. At most `parts` files of `longest_part` bytes are kept, the one at `path` included."""

    def __init__(
        self, path: Path, start: Mapping[str, Any], *, longest_part: int, parts: int
    ) -> None:
        self.path = path
        told = {"kind": "start", "format": FORMAT, "time": time.time(), "pid": os.getpid()}
        self._start = {**told, **start}
        self._longest_part, self._parts = longest_part, parts
        self._descriptor: int | None = None
        self._size = 0
        self._begin = 0  # bytes of the start line that the part begins with, if it does
        self._started = False  # this process's start line is in the part
        self._was_open = False

    def write(self, lines: deque[bytes]) -> None:
        """Write the lines, each of which is taken out of `lines` once it is in the file whole.

        Raises `OSError` when the disk is full, the folder is gone, or nothing may be written.
        """
        try:
            while lines:
                self._have_room(len(lines[0]))
                self._write_some(lines)
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        """Let go of the file; the next write opens it anew, with a start line."""
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                os.close(self._descriptor)
        self._descriptor = None

    def _have_room(self, length: int) -> None:
        if self._descriptor is not None and not self._is_at_its_path(self._descriptor):
            self.close()
        if self._descriptor is None:
            self._open()
        if self._size + length > self._longest_part and self._size > self._begin:
            self.close()
            self._move_parts()
            self._open()
        if not self._started:
            self._write_start()

    def _write_some(self, lines: deque[bytes]) -> None:
        """Write as many lines as this part has room for, at least one."""
        room = self._longest_part - self._size
        fitting: list[bytes] = []
        for line in lines:
            room -= len(line)
            if fitting and room < 0:
                break
            fitting.append(line)
        data = b"".join(fitting)
        done = 0
        try:
            while done < len(data):
                done += self._write(data[done:])
        finally:
            for _ in range(data[:done].count(b"\n")):
                lines.popleft()

    def _open(self) -> None:
        if not self._was_open:
            # A folder that somebody removes later stays removed.
            self.path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        self._was_open, self._started = True, False
        self._size = os.fstat(self._descriptor).st_size
        self._begin = 0

    def _write_start(self) -> None:
        assert self._descriptor is not None
        torn = self._size > 0 and os.pread(self._descriptor, 1, self._size - 1) != b"\n"
        line = as_line(self._start)
        fresh = self._size == 0
        self._write(b"\n" + line if torn else line)
        self._started = True
        self._begin = self._size if fresh else 0

    def _write(self, data: bytes) -> int:
        assert self._descriptor is not None
        written = os.write(self._descriptor, data)
        self._size += written
        return written

    def _is_at_its_path(self, descriptor: int) -> bool:
        """Whether the open file is still the one at the path: not moved away, not removed."""
        try:
            return os.path.samestat(self.path.stat(), os.fstat(descriptor))
        except FileNotFoundError:
            return False

    def _move_parts(self) -> None:
        for age in range(self._parts - 1, 0, -1):
            with contextlib.suppress(FileNotFoundError):
                part_path(self.path, age - 1).replace(part_path(self.path, age))
        if self._parts == 1:
            self.path.unlink()


def as_line(told: Mapping[str, Any]) -> bytes:
    """Return what is told as a line of JSON."""
    return _encoder.encode(told).encode() + b"\n"
