"""`sglang-eagle3 stacks --server PID`: where each process of a server is, now.

What the watch of a start tells of a stall, on demand and of a server that serves too. Nothing is
ended by it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

from sglang_eagle3_patch.settings import PREFIX
from sglang_eagle3_patch.startup.board import Board, below, users_folder
from sglang_eagle3_patch.startup.gpus import gpu_lines
from sglang_eagle3_patch.startup.processes import descendants, process
from sglang_eagle3_patch.startup.stacks import stacks_of, waits_at


class NotOurs(RuntimeError):
    """The process can't be looked at; the text says why and what to do."""


def add_parser(commands: Any) -> None:
    """Add the command to the subparsers of `sglang-eagle3`."""
    parser = commands.add_parser("stacks", help="where each process of a server is, now")
    parser.add_argument(
        "--server", metavar="PID", type=int, required=True, help="the server's main process"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the stacks; 0 when some could be read, 1 when none, 2 without such a process."""
    try:
        text, found = described(arguments.server)
    except NotOurs as problem:
        print(f"sglang-eagle3 stacks: {problem}", file=sys.stderr)
        return 2
    print(text)
    return 0 if found else 1


def described(server: int) -> tuple[str, bool]:
    """Return what there is to tell of the processes of the server, and whether any has stacks.

    Raises `NotOurs` when there is no such process or it is another user's.
    """
    root = process(server)
    if root is None or not root.runs:
        raise NotOurs(f"there is no process {server}. Fix: give the pid of the server's launcher")
    pids = [server, *(child.pid for child in descendants(server))]
    folders = _folders(server, pids)
    starting = {entry.pid: entry.text for folder in folders for entry in Board(folder).running()}
    lines, found = [], False
    for pid in pids:
        title = _title(pid)
        if "resource_tracker" in title:
            continue
        text = stacks_of(pid, folders)
        place = waits_at(text)
        found = found or bool(place)
        lines.append(
            f"{title} (pid {pid})"
            + (f", {starting[pid]}" if pid in starting else "")
            + (f", is at {place}" if place else "")
        )
        lines += [f"  {line}" for line in text.splitlines()]
    return "\n".join([*lines, *gpu_lines()]), found


def _folders(server: int, pids: list[int]) -> list[Path]:
    """Return where the processes may answer a signal: as their variables say, else the default."""
    status_dir, temporary = f"{PREFIX}_STATUS_DIR", "TMPDIR"
    folders: dict[Path, None] = {}
    for pid in pids:
        place = Path(f"/proc/{pid}")
        try:
            # A launcher sets the variable for those that it starts.
            pairs = (place / "environ").read_text(errors="replace").split("\0")
            user = place.stat().st_uid
        except PermissionError as error:
            raise NotOurs(
                f"process {pid} is another user's ({error.strerror}). Fix: run this as the user "
                f"that started {server}, or as root"
            ) from error
        except OSError:
            continue  # it has ended since
        variables = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
        named = [users_folder(Path(variables.get(temporary) or tempfile.gettempdir()), user)]
        if variables.get(status_dir):
            named.append(below(variables[status_dir]))
        # Not a folder that somebody else put there.
        folders.update({folder: None for folder in named if _owner(folder) in (0, user)})
    return list(folders)


def _owner(folder: Path) -> int | None:
    try:
        return folder.lstat().st_uid
    except OSError:
        return None


def _title(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
    except OSError:
        words = []
    return " ".join(words).strip()[:100] or "a process"
