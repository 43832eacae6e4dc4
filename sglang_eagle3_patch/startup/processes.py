"""The processes of this machine, as `/proc` tells of them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Process:
    """One process: who started it, its state (`R`, `S`, `Z`, …), the processor seconds that it and
    its children that ended have used."""

    pid: int
    parent: int
    state: str
    seconds: float

    @property
    def runs(self) -> bool:
        """Whether it is more than the entry of one that ended and nobody waited for."""
        return self.state not in ("Z", "X")


def process(pid: int) -> Process | None:
    """Return the process `pid`, or None when there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        # The name in parentheses may hold anything, parentheses too.
        values = text.rpartition(")")[2].split()
        ticks = sum(map(int, values[11:15]))
        return Process(pid, int(values[1]), values[0], ticks / os.sysconf("SC_CLK_TCK"))
    except (OSError, ValueError, IndexError):
        return None


def runs(pid: int) -> bool:
    """Whether there is such a process."""
    found = process(pid)
    return found is not None and found.runs


def descendants(pid: int) -> list[Process]:
    """Return the processes that `pid` started, and those that they did, that run now."""
    pids = (int(folder.name) for folder in Path("/proc").iterdir() if folder.name.isdigit())
    every = [found for found in map(process, pids) if found is not None and found.runs]
    found, parents = [], {pid}
    while parents:
        children = [other for other in every if other.parent in parents]
        found += children
        parents = {child.pid for child in children}
    return found
