"""Tells when speculation does nothing, or much less than it did.

Only verify steps that proposed drafts count: adaptive speculation has others. Two things are seen:
nothing is accepted (over the last `steps` verify steps the accept length is at most 1.05), and a
collapse (over five times as many, fewer than half as many drafts are accepted as in all that came
before, of which there must be ten times as many).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

# At or below it speculation does nothing but cost time.
DEAD_LENGTH = 1.05
DEAD = 0.05  # the same in drafts accepted per verify step
ALIVE = 0.10  # where the alarm ends, so that it does not flicker
COLLAPSED, RECOVERED = 0.5, 0.75  # of the drafts accepted per verify step before
_BLOCKS, _BLOCKS_BEFORE = 5, 10


@dataclass(frozen=True, kw_only=True)
class Change:
    """The alarm went on or off. Accept lengths count the bonus token; `before` is that of all
    that came before a collapse, None where nothing is accepted at all."""

    on: bool
    steps: int
    accept_length: float
    before: float | None


class Alarm:
    """Watches verify steps; `change` is what it said last, None before it ever spoke."""

    def __init__(self, steps: int = 200) -> None:
        self._steps = steps
        self._last: deque[tuple[int, int]] = deque()  # accepted, verifies of each step
        self._accepted = self._verifies = 0  # over `_last`
        self._block = [0, 0, 0]  # accepted, verifies, steps of the block that is being filled
        self._blocks: deque[tuple[int, int]] = deque()  # the last whole ones
        self._history = [0, 0, 0]  # accepted, verifies, blocks of those before them
        self._normal: float | None = None  # drafts per verify step before the collapse
        self.change: Change | None = None

    @property
    def on(self) -> bool:
        """Whether the alarm is on."""
        return self.change is not None and self.change.on

    def add(self, accepted: int, verifies: int) -> Change | None:
        """Take one verify step of a batch that proposed drafts; return a change if it makes one.

        `accepted` drafts in all, without bonus tokens, in `verifies` requests.
        """
        self._last.append((accepted, verifies))
        self._accepted += accepted
        self._verifies += verifies
        if len(self._last) > self._steps:
            gone_accepted, gone_verifies = self._last.popleft()
            self._accepted -= gone_accepted
            self._verifies -= gone_verifies
        self._block[0] += accepted
        self._block[1] += verifies
        self._block[2] += 1
        block_is_whole = self._block[2] == self._steps
        if block_is_whole:
            self._end_block()
        if len(self._last) < self._steps:
            return None
        return self._judge_last() or (self._judge_blocks() if block_is_whole else None)

    def _end_block(self) -> None:
        self._blocks.append((self._block[0], self._block[1]))
        self._block = [0, 0, 0]
        if len(self._blocks) > _BLOCKS:
            accepted, verifies = self._blocks.popleft()
            if not self.on:  # what an alarm is about must not become normal
                self._history[0] += accepted
                self._history[1] += verifies
                self._history[2] += 1

    def _judge_last(self) -> Change | None:
        rate = self._accepted / self._verifies
        if not self.on and rate <= DEAD:
            return self._change(True, self._steps, rate)
        if self.on and self._normal is None and rate >= ALIVE:
            return self._change(False, self._steps, rate)
        return None

    def _judge_blocks(self) -> Change | None:
        if len(self._blocks) < _BLOCKS or self._history[2] < _BLOCKS_BEFORE:
            return None
        rate = sum(a for a, _ in self._blocks) / sum(v for _, v in self._blocks)
        steps = self._steps * _BLOCKS
        normal = self._history[0] / self._history[1]
        if not self.on and rate < COLLAPSED * normal:
            self._normal = normal
            return self._change(True, steps, rate)
        if self.on and self._normal is not None and rate >= RECOVERED * self._normal:
            change = self._change(False, steps, rate)
            self._normal = None
            return change
        return None

    def _change(self, on: bool, steps: int, rate: float) -> Change:
        before = None if self._normal is None else 1 + self._normal
        if not on:  # nor must what it was about be seen as a collapse
            self._blocks.clear()
            self._block = [0, 0, 0]
        self.change = Change(on=on, steps=steps, accept_length=1 + rate, before=before)
        return self.change
