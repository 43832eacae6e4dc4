"""Tells when speculation does nothing, or much less than it did.

Only verify steps that proposed drafts count: adaptive speculation has others. Two things are seen:
nothing is accepted (over the last `steps` verify steps the accept length is at most 1.05), and a
collapse (over five times as many, fewer than half as many drafts are accepted as in all that came
before, of which there must be ten times as many). How many are accepted depends on how many can be,
so a collapse is judged among steps of one depth; it is over when that depth does as before, or,
where it is no longer in use, another one does as that one did.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

# At or below it speculation does nothing but cost time.
DEAD_LENGTH = 1.05
DEAD = 0.05  # the same in drafts accepted per verify step
ALIVE = 0.10  # where the alarm ends, so that it does not flicker
COLLAPSED, RECOVERED = 0.5, 0.75  # of the drafts accepted per verify step before
_BLOCKS, _BLOCKS_BEFORE = 5, 10


@dataclass(frozen=True, kw_only=True)
class Change:
    """The alarm went on or off. Accept lengths count the bonus token; `before` is that of all
    that came before a collapse, None where nothing is accepted at all. Of a collapse all of it is
    told of the steps of its depth."""

    on: bool
    steps: int
    accept_length: float
    before: float | None


@dataclass(slots=True)
class _OfDepth:
    """The verify steps in which as many drafts could be accepted: whole blocks and what is left."""

    accepted: int = 0  # of the block that is being filled
    verifies: int = 0
    steps: int = 0
    blocks: deque[tuple[int, int]] = field(default_factory=deque)  # accepted, verifies; the last
    history: list[int] = field(default_factory=lambda: [0, 0, 0])  # blocks before: also how many

    def add(self, accepted: int, verifies: int) -> None:
        self.accepted += accepted
        self.verifies += verifies
        self.steps += 1

    def end_block(self, *, becomes_history: bool) -> None:
        self.blocks.append((self.accepted, self.verifies))
        self.accepted = self.verifies = self.steps = 0
        if len(self.blocks) > _BLOCKS:
            accepted, verifies = self.blocks.popleft()
            if becomes_history:
                self.history[0] += accepted
                self.history[1] += verifies
                self.history[2] += 1

    def forget_blocks(self) -> None:
        self.blocks.clear()
        self.accepted = self.verifies = self.steps = 0


class Alarm:
    """Watches verify steps; `change` is what it said last, None before it ever spoke."""

    def __init__(self, steps: int = 200) -> None:
        self._steps = steps
        self._last: deque[tuple[int, int]] = deque()  # accepted, verifies of each step
        self._accepted = self._verifies = 0  # over `_last`
        self._depths: dict[int, _OfDepth] = {}
        self._collapsed: _OfDepth | None = None  # the depth that the alarm is about
        self.change: Change | None = None

    @property
    def on(self) -> bool:
        """Whether the alarm is on."""
        return self.change is not None and self.change.on

    def add(self, accepted: int, verifies: int, depth: int) -> Change | None:
        """Take one verify step of a batch that proposed drafts; return a change if it makes one.

        `accepted` drafts in all, without bonus tokens, in `verifies` requests, of each of which
        `depth` could be.
        """
        self._last.append((accepted, verifies))
        self._accepted += accepted
        self._verifies += verifies
        if len(self._last) > self._steps:
            gone_accepted, gone_verifies = self._last.popleft()
            self._accepted -= gone_accepted
            self._verifies -= gone_verifies
        of_depth = self._depths.get(depth)
        if of_depth is None:
            of_depth = self._depths[depth] = _OfDepth()
        of_depth.add(accepted, verifies)
        block_is_whole = of_depth.steps == self._steps
        if block_is_whole:  # what an alarm is about must not become normal
            of_depth.end_block(becomes_history=not self.on)
        if len(self._last) < self._steps:
            return None
        return self._judge_last() or (self._judge_blocks(of_depth) if block_is_whole else None)

    def _judge_last(self) -> Change | None:
        rate = self._accepted / self._verifies
        if not self.on and rate <= DEAD:
            return self._change(True, self._steps, rate)
        if self.on and self._collapsed is None and rate >= ALIVE:
            return self._change(False, self._steps, rate)
        return None

    def _judge_blocks(self, of_depth: _OfDepth) -> Change | None:
        if len(of_depth.blocks) < _BLOCKS or of_depth.history[2] < _BLOCKS_BEFORE:
            return None
        rate = sum(a for a, _ in of_depth.blocks) / sum(v for _, v in of_depth.blocks)
        steps = self._steps * _BLOCKS
        # Nothing becomes history while the alarm is on, so it still is what it was.
        normal = of_depth.history[0] / of_depth.history[1]
        change = None
        if not self.on and rate < COLLAPSED * normal:
            self._collapsed = of_depth
            change = self._change(True, steps, rate, normal)
        elif self._collapsed is not None and rate >= RECOVERED * normal:
            self._collapsed = None
            change = self._change(False, steps, rate, normal)
        if self._collapsed is of_depth:  # while it is in use, no other depth has the last word
            self._forget_blocks_of_all_but(of_depth)
        return change

    def _forget_blocks_of_all_but(self, kept: _OfDepth | None) -> None:
        for of_depth in self._depths.values():
            if of_depth is not kept:
                of_depth.forget_blocks()

    def _change(self, on: bool, steps: int, rate: float, normal: float | None = None) -> Change:
        before = None if normal is None else 1 + normal
        if not on:  # nor must what it was about be seen as a collapse
            self._forget_blocks_of_all_but(None)
        self.change = Change(on=on, steps=steps, accept_length=1 + rate, before=before)
        return self.change
