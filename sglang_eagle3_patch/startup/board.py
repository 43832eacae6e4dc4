"""What the ranks of one node tell one another of their starts: a small file for each.

A rank that waits for another one must not be told of as stalled while that one moves, and a rank
whose interpreter is held by native code can't speak for itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from sglang_eagle3_patch.startup.processes import runs
from sglang_eagle3_patch.whole_file import replacing

_LONGEST = 100_000  # bytes; what is longer is not ours


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One rank's start. `moved` and `since` are of the node's monotonic clock, in seconds."""

    pid: int
    name: str
    port: int | None
    parent: int
    stage: str  # its name; "" between two stages
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
        folder = Path(status_dir) / "startup"
        folder.mkdir(parents=True, exist_ok=True)
        return folder
    folder = Path(tempfile.gettempdir()) / f"sglang-eagle3-patch-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to somebody else")
    return folder


class Board:
    """The entries of one folder; `own` is this process's file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.own = folder / f"rank-{socket.gethostname()}-{os.getpid()}.json"

    def write(self, entry: Entry) -> None:
        """Put the entry in the place of the one before. Raises `OSError`."""
        with replacing(self.own) as stream:
            stream.write(json.dumps(asdict(entry)).encode())

    def read(self, server: tuple[str, int | None, int]) -> list[Entry]:
        """Return the entries of the server's ranks that still run, in the order of their names."""
        found = [entry for entry in self.all() if entry.server == server and runs(entry.pid)]
        return sorted(found, key=lambda entry: (len(entry.name), entry.name, entry.pid))

    def all(self) -> list[Entry]:
        """Return every entry that can be read; what is none of ours is passed over."""
        found = []
        for file in self.folder.glob("rank-*.json"):
            with contextlib.suppress(OSError, ValueError, TypeError, RecursionError):
                if file.stat().st_size <= _LONGEST:
                    found.append(Entry(**json.loads(file.read_text(encoding="utf-8"))))
        return found

    def claim(self, entry: Entry, moved: float) -> bool:
        """Whether this process is the first of its server to tell of the stall since `moved`."""
        name = f"told-{entry.host}-{entry.port}-{entry.parent}-{moved:.2f}"
        try:
            (self.folder / name).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def clear(self) -> None:
        """Remove this process's files, and what processes of this node left that are gone."""
        host = socket.gethostname()
        with contextlib.suppress(OSError):
            self.own.unlink(missing_ok=True)
        for file in self.folder.glob(f"*-{host}-*"):
            pid = file.stem.rpartition("-")[2]
            # A stall that was told is named by the process that started the ranks.
            pid = file.name.split("-")[-2] if file.name.startswith("told-") else pid
            if pid.isdigit() and not runs(int(pid)):
                with contextlib.suppress(OSError):
                    file.unlink()
