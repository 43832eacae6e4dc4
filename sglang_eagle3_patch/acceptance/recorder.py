"""Counters of verify steps, and the lines that tell them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class Tally:
    """Sums over verify steps: `verifies` counts requests' steps, a batch of eight adds eight."""

    steps: int = 0
    verifies: int = 0
    proposed: int = 0
    accepted: int = 0

    def add(self, accepted: Sequence[int], proposed_each: int) -> None:
        """Count one verify step of a batch: accepted drafts of each request, without the bonus.

        `proposed_each` is how many drafts each request proposed in the step: SGLang's draft tokens
        less one, so in a tree every node of it.
        """
        self.steps += 1
        self.verifies += len(accepted)
        self.proposed += proposed_each * len(accepted)
        self.accepted += sum(accepted)

    def merge(self, other: Tally) -> None:
        """Count what another tally has counted."""
        self.steps += other.steps
        self.verifies += other.verifies
        self.proposed += other.proposed
        self.accepted += other.accepted

    @property
    def accept_length(self) -> float:
        """Mean tokens per verify step, the bonus token included; 0 before the first."""
        return (self.accepted + self.verifies) / self.verifies if self.verifies else 0.0

    @property
    def accept_rate(self) -> float:
        """Accepted drafts / proposed drafts; 0 before the first."""
        return self.accepted / self.proposed if self.proposed else 0.0


@dataclass(slots=True)
class Recorder(Tally):
    """Counts since the process started; `histogram[k]` of the requests' verify steps accepted k
    drafts, the bonus token not counted."""

    histogram: Counter[int] = field(default_factory=Counter)

    def add(self, accepted: Sequence[int], proposed_each: int) -> None:
        """Count one verify step of a batch, as a tally does, and by accepted drafts."""
        Tally.add(self, accepted, proposed_each)
        count, left = 0, len(accepted)
        while left:
            times = accepted.count(count)
            self.histogram[count] += times
            left -= times
            count += 1

    def since(self, earlier: Recorder) -> Recorder:
        """Return what was counted after `earlier`, a copy of this recorder, was taken."""
        return Recorder(
            steps=self.steps - earlier.steps,
            verifies=self.verifies - earlier.verifies,
            proposed=self.proposed - earlier.proposed,
            accepted=self.accepted - earlier.accepted,
            histogram=self.histogram - earlier.histogram,
        )

    def copy(self) -> Recorder:
        """Return a recorder with the same counts."""
        return Recorder(
            self.steps, self.verifies, self.proposed, self.accepted, self.histogram.copy()
        )

    @property
    def reached(self) -> list[int]:
        """How many verify steps accepted a draft at each position, the first one first.

        In a tree a position is the depth along the accepted path.
        """
        reached = []
        beyond = self.verifies
        for position in range(max(self.histogram, default=0)):
            beyond -= self.histogram[position]
            reached.append(beyond)
        return reached

    @property
    def rate_by_position(self) -> list[float]:
        """Unconditional rate of each draft position: accepted there / verify steps."""
        return [count / self.verifies for count in self.reached]


def step_line(recorder: Recorder, accepted: Sequence[int]) -> str:
    """Return the line that tells one verify step, with the running numbers since start."""
    return (
        f"Verify step {recorder.steps}, #req: {len(accepted)}, accepted: {list(accepted)}, "
        f"accept len: {recorder.accept_length:.2f}, accept rate: {recorder.accept_rate:.2f}"
    )


def interval_line(interval: Recorder) -> str:
    """Return the line that sums up an interval, in the words of SGLang's own decode line."""
    positions = ", ".join(f"{rate:.2f}" for rate in interval.rate_by_position)
    return (
        f"Verify steps: {interval.steps}, accept len: {interval.accept_length:.2f}, "
        f"accept rate: {interval.accept_rate:.2f}, by position: [{positions}]"
    )
