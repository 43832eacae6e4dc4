"""Where one process is in its start: written by hooks, read by the watch beside them.

A hook assigns attributes and reads a clock, nothing more: no lock, no log, no device. So it may sit
at the boundary of a batch size while graphs are captured.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from enum import Enum

TENSOR = "tensor"  # the one kind of item that is called by how many there were


class Stage(str, Enum):
    """The stages of a start, by the names they have in logs, JSON and tests."""

    RANKS = "joining the other ranks"
    TARGET_WEIGHTS = "target weights"
    DRAFT_WEIGHTS = "draft weights"
    TARGET_POOLS = "target memory pools"
    DRAFT_POOLS = "draft memory pools"
    TARGET_ATTENTION = "target attention backend"
    DRAFT_ATTENTION = "draft attention backend"
    KERNELS = "kernel warm-up"
    TARGET_PREFILL_GRAPHS = "target prefill graph capture"
    TARGET_GRAPHS = "target graph capture"
    DRAFT_PREFILL_GRAPHS = "draft prefill graph capture"
    DRAFT_GRAPHS = "draft decode graph capture"
    DRAFT_EXTEND_GRAPHS = "draft-extend graph capture"
    FIRST_BATCH = "first batch (the server's warm-up request)"


class Progress:
    """The stage of this process, what of it is done, and when it last moved on.

    Times are those of `clock`, in seconds; Linux's monotonic clock is one for all processes.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.started = clock()
        self.stage: Stage | None = None
        self.since = self.changed = self.started
        self.last: Stage | None = None  # the stage that ended last
        # What is begun: its kind, its number or size, how many there were before, and when.
        self.mark: tuple[str, int, int, float] | None = None
        self.idle = False  # started, and waiting for its first request
        self.seconds: dict[Stage, float] = {}
        self.memory = ""  # at the last boundary of two stages

    @contextlib.contextmanager
    def within(self, stage: Stage, memory: Callable[[], str] | None = None) -> Iterator[None]:
        """Be in `stage` for a block; within itself it is one stage.

        `memory` is read at the end of an outermost stage alone: another one may be a capture.
        """
        if self.stage is stage:
            yield
            return
        outer, outer_since = self.stage, self.since
        began = self._clock()
        self.mark, self.stage = None, stage
        self.since = self.changed = began
        try:
            yield
        finally:
            now = self._clock()
            self.seconds[stage] = self.seconds.get(stage, 0.0) + now - began
            if memory is not None and outer is None:
                self.memory = memory()
            self.last, self.mark = stage, None
            self.stage, self.since = (outer, outer_since) if outer else (None, now)
            self.changed = now

    def begin(self, kind: str, number: int) -> None:
        """Note that an item of the stage is begun: `batch size` 64, `tensor` 1."""
        before = self.mark[2] + 1 if self.mark else 0
        self.mark = (kind, number, before, self._clock())

    @property
    def moved(self) -> float:
        """When a stage was last begun or ended, or an item begun."""
        mark = self.mark
        return max(self.changed, mark[3]) if mark else self.changed

    def text(self) -> str:
        """Return the stage and the item in it, for a message."""
        stage, mark = self.stage, self.mark
        if stage is None:
            if self.idle:
                return "started, waiting for a request"
            return f"after {self.last.value}" if self.last else "before its first stage"
        if mark is None:
            return stage.value
        kind, number, done, _ = mark
        return f"{stage.value}, {kind} {number}" + (f" ({done} done)" if kind != TENSOR else "")

    def summary(self) -> str:
        """Return how long each stage took, in the order in which they were first begun."""
        return ", ".join(f"{stage.value} {seconds:.1f} s" for stage, seconds in self.ordered())

    def ordered(self) -> list[tuple[Stage, float]]:
        """Return the stages that ended, with their seconds, in the order of a start."""
        return [(stage, self.seconds[stage]) for stage in Stage if stage in self.seconds]
