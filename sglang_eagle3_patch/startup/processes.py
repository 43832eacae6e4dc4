"""The processes of this machine, as `/proc` tells of them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Process:
    """One process: who started it, its state (`R`, `S`, `Z`, …), the processor seconds that it and
    its children that ended have used, and when it began, in the kernel's ticks since the boot."""

    pid: int
    parent: int
    state: str
    seconds: float
    began: int

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
        seconds = ticks / os.sysconf("SC_CLK_TCK")
        return Process(pid, int(values[1]), values[0], seconds, int(values[19]))
    except (OSError, ValueError, IndexError):
        return None


def runs(pid: int, began: int) -> bool:
    """Whether there is such a process, and it is the one that began then: numbers come again."""
    found = process(pid)
    return found is not None and found.runs and found.began == began


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
