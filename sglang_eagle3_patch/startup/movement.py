"""Signs that a process works on although none of its hooks tells: what it reads, whom it waits for.

Reading 600 GB of weights and building a kernel take longer than any patience; a collective that
never ends reads nothing, writes nothing and starts nobody, however busily it waits.
"""

from __future__ import annotations

import os
from pathlib import Path

from sglang_eagle3_patch.startup.processes import descendants

# Per look. Our own looks read and write less, and so do heartbeats of communication libraries.
LEAST_BYTES = 256 * 1024
LEAST_CHILD_SECONDS = 0.1
_COUNTED = ("rchar", "wchar", "read_bytes")


class Signs:
    """Compares what the kernel counts for this process with what it counted at the last look."""

    def __init__(self) -> None:
        self._bytes = bytes_moved()
        self._child_seconds: float | None = None

    def forget(self) -> None:
        """Take what was counted until now for no movement: our own doing."""
        self._bytes, self._child_seconds = bytes_moved(), None

    def moved(self) -> bool:
        """Whether much was read or written, or a child computed, since the last call."""
        if bytes_moved() - self._bytes >= LEAST_BYTES:
            self._child_seconds = None
            found = True
        else:
            before, self._child_seconds = self._child_seconds, child_seconds()
            found = before is not None and self._child_seconds - before >= LEAST_CHILD_SECONDS
        # After looking for children, which reads a file of every process of the machine.
        self._bytes = bytes_moved()
        return found


def bytes_moved() -> int:
    """Return the bytes this process and its children that ended have read and written; 0 where the
    kernel does not tell."""
    try:
        lines = Path("/proc/self/io").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    counts = dict(line.split(": ", 1) for line in lines)
    return sum(int(counts.get(name, 0)) for name in _COUNTED)


def child_seconds() -> float:
    """Return the processor time of the children that run now, their own children included."""
    return sum(child.seconds for child in descendants(os.getpid()))
