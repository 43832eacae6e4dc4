"""What the ranks of one node tell one another of their starts: a small file for each.

A rank that waits for another one must not be told of as stalled while that one moves, and a rank
whose interpreter is held by native code can't speak for itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from sglang_eagle3_patch.startup.processes import process, runs
from sglang_eagle3_patch.whole_file import replacing

_LONGEST = 100_000  # bytes; what is longer is not ours


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One rank's start. `moved` and `since` are of the node's monotonic clock, in seconds."""

    pid: int
    began: int  # its process, in the kernel's ticks since the boot
    name: str
    port: int | None
    parent: int
    stage: str  # its name; "" between two stages
    last: str  # the name of the stage that ended last, or ""
    text: str  # the same with what of it is done
    since: float
    moved: float
    idle: bool = False
    log: tuple[str, ...] = ()
    host: str = ""

    @property
    def server(self) -> tuple[str, int | None, int]:
        """What the ranks of one server on one node have in common."""
        return self.host, self.port, self.parent


def folder_for(status_dir: str | None) -> Path:
    """Return the folder of the entries, which is made: below the status folder, or the user's own
    below the system's temporary one.

    Raises `OSError` when it can't be made or is somebody else's.
    """
    if status_dir:
        folder = below(status_dir)
        folder.mkdir(parents=True, exist_ok=True)
        return folder
    folder = users_folder(Path(tempfile.gettempdir()), os.getuid())
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to somebody else")
    return folder


def below(status_dir: str) -> Path:
    """Return the folder of the servers that were told of a status folder."""
    return Path(status_dir) / "startup"


def users_folder(temporary: Path, user: int) -> Path:
    """Return the folder of a user's servers that were told of none."""
    return temporary / f"sglang-eagle3-patch-{user}"


def in_order(ranks: list[Entry]) -> list[Entry]:
    """Return the ranks in the order of their names."""
    return sorted(ranks, key=lambda rank: (len(rank.name), rank.name, rank.pid))


class Board:
    """The entries of one folder; `own` is this process's file."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.folder, self._clock = folder, clock
        self.own = folder / f"rank-{socket.gethostname()}-{os.getpid()}.json"

    def write(self, entry: Entry) -> None:
        """Put the entry in the place of the one before. Raises `OSError`."""
        with replacing(self.own) as stream:
            stream.write(json.dumps(asdict(entry)).encode())

    def read(self, server: tuple[str, int | None, int]) -> list[Entry]:
        """Return the entries of the server's ranks that still run, in the order of their names.

        Raises `OSError`.
        """
        return in_order([entry for entry in self.running() if entry.server == server])

    def running(self) -> list[Entry]:
        """Return the entries of this node's processes that still run. Raises `OSError`."""
        host = socket.gethostname()
        found = [e for e in self._all() if e.host == host and runs(e.pid, e.began)]
        # What is ahead of the clock was written before the machine was started anew.
        now = self._clock()
        return [entry for entry in found if max(entry.moved, entry.since) <= now]

    def _all(self) -> list[Entry]:
        """Return every entry that can be read; what is none of ours is passed over."""
        found = []
        for file in self.folder.glob("rank-*.json"):
            with contextlib.suppress(OSError, ValueError, TypeError, RecursionError):
                if file.stat().st_size <= _LONGEST:
                    found.append(Entry(**json.loads(file.read_text(encoding="utf-8"))))
        return found

    def claim(self, entry: Entry, moved: float) -> bool:
        """Whether this process is the first of its server to tell of the stall since `moved`.

        Raises `OSError`.
        """
        name = f"told-{entry.host}-{entry.port}-{entry.parent}-{moved:.2f}"
        try:
            (self.folder / name).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def clear(self) -> None:
        """Remove this process's files, and what processes of this node left that are gone."""
        with contextlib.suppress(OSError):
            self.own.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            for file in list(self.folder.iterdir()):
                if self._is_left_over(file.name):
                    with contextlib.suppress(OSError):
                        file.unlink()

    def _is_left_over(self, name: str) -> bool:
        host = re.escape(socket.gethostname())
        if found := re.fullmatch(rf"rank-{host}-(\d+)\.json", name):
            there = process(int(found[1]))
            return there is None or not there.runs
        if found := re.fullmatch(rf"stacks-{host}-(\d+)-(\d+)\.txt", name):
            return not runs(int(found[1]), int(found[2]))
        if found := re.fullmatch(rf"told-{host}-(\w+)-(\d+)-[\d.]+", name):
            # The process that started the ranks may be the machine's first, which never ends.
            servers = {(str(rank.port), str(rank.parent)) for rank in self.running()}
            return found.groups() not in servers
        return False
