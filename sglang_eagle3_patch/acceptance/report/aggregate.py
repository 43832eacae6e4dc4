"""Counts the records of a trace in one pass: memory does not grow with its length."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from sglang_eagle3_patch.acceptance.recorder import Tally
from sglang_eagle3_patch.acceptance.report.requests import RequestRanking
from sglang_eagle3_patch.acceptance.trace_reader import Dropped, Record, Start, Step, Unreadable

# Each a multiple of the one before, so that buckets merge whole.
_WIDTHS = (0.1, 0.5, 1, 5, 15, 60, 300, 900, 3600, 4 * 3600, 86400, 7 * 86400)
_MOST_BUCKETS = 120
# A hundredth apart: a median is off by half a percent at most.
_LOG_BIN = math.log(1.01)
# More than any server proposes or the clock shows (the year 5138): a line that says so is garbage.
_DEEPEST = 1024
_LAST_SECOND = 1e11


class Timeline:
    """Tallies over time, in buckets that widen once there are too many; any order will do."""

    def __init__(self) -> None:
        self.level = 0
        self.buckets: dict[int, Tally] = {}

    @property
    def seconds(self) -> float:
        """The width of a bucket."""
        beyond = max(0, self.level - len(_WIDTHS) + 1)
        return _WIDTHS[self.level - beyond] * float(2**beyond)

    def add(self, step: Step) -> None:
        """Count a step in the bucket of its time."""
        bucket = self.buckets.setdefault(int(step.time // self.seconds), Tally())
        bucket.add(step.accepted, _nodes(step))
        while len(self.buckets) > _MOST_BUCKETS:
            self._widen()

    def _widen(self) -> None:
        before = self.seconds
        self.level += 1
        factor = round(self.seconds / before)
        merged: dict[int, Tally] = {}
        for index, tally in self.buckets.items():
            merged.setdefault(index // factor, Tally()).merge(tally)
        self.buckets = merged

    def by_time(self) -> list[tuple[float, Tally]]:
        """Return (Unix seconds at which a bucket begins, its tally), by time."""
        return [(index * self.seconds, self.buckets[index]) for index in sorted(self.buckets)]


@dataclass
class Durations:
    """Seconds of steps, of which the median is wanted: counts in bins one hundredth apart."""

    bins: Counter[int] = field(default_factory=Counter)

    def add(self, seconds: float) -> None:
        """Count a duration above 0."""
        self.bins[math.floor(math.log(seconds) / _LOG_BIN)] += 1

    @property
    def count(self) -> int:
        """How many were counted."""
        return self.bins.total()

    def median(self) -> float | None:
        """Return the median in seconds, None without any."""
        left = self.count / 2
        for place in sorted(self.bins):
            left -= self.bins[place]
            if left <= 0:
                return math.exp((place + 0.5) * _LOG_BIN)
        return None


@dataclass
class Aggregate:
    """What a report is made of.

    `counts[proposed][accepted]` are requests' verify steps. Batch sizes are grouped by their
    `batch_group`; `durations` are by group and by the drafts that were proposed.
    """

    total: Tally = field(default_factory=Tally)
    counts: defaultdict[int, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))
    timeline: Timeline = field(default_factory=Timeline)
    ranks: defaultdict[int, Tally] = field(default_factory=lambda: defaultdict(Tally))
    batches: defaultdict[int, Tally] = field(default_factory=lambda: defaultdict(Tally))
    durations: defaultdict[tuple[int, int], Durations] = field(
        default_factory=lambda: defaultdict(Durations)
    )
    requests: RequestRanking = field(default_factory=RequestRanking)
    starts: set[Start] = field(default_factory=set)
    first: float = math.inf  # Unix seconds
    last: float = -math.inf
    dropped: int = 0
    unreadable: int = 0
    formats: Counter[str] = field(default_factory=Counter)  # that are not ours

    def add(self, record: Record) -> None:
        """Count a record."""
        match record:
            case Step():
                if _possible(record):
                    self._add_step(record)
                else:
                    self.unreadable += 1
            case Start():
                self.starts.add(record)
            case Dropped():
                self.dropped += record.records
            case Unreadable():
                self.unreadable += 1
                if record.format is not None:
                    self.formats[record.format] += 1

    def _add_step(self, step: Step) -> None:
        group = batch_group(step.batch)
        for tally in (self.total, self.ranks[step.rank], self.batches[group]):
            tally.add(step.accepted, _nodes(step))
        self.timeline.add(step)
        self.counts[step.proposed].update(step.accepted)
        self.first, self.last = min(self.first, step.time), max(self.last, step.time)
        if step.seconds is not None and 0 < step.seconds < math.inf:
            self.durations[group, step.proposed].add(step.seconds)
        for name, accepted in zip(step.requests or (), step.accepted, strict=False):
            self.requests.add(name, accepted)


def aggregate(records: Iterable[Record]) -> Aggregate:
    """Count a stream of records."""
    result = Aggregate()
    for record in records:
        result.add(record)
    return result


def batch_group(batch: int) -> int:
    """Return the group of a batch size: 0 for 1, 1 for 2, 2 for 3 to 4, 3 for 5 to 8, …"""
    return (batch - 1).bit_length()


def batch_range(group: int) -> tuple[int, int]:
    """Return the smallest and the largest batch size of a group."""
    return (2 ** (group - 1) + 1 if group else 1), 2**group


def batch_label(smallest: int, largest: int) -> str:
    """Return a range of batch sizes in words: `1` or `5 to 8`."""
    return str(smallest) if smallest == largest else f"{smallest} to {largest}"


def _nodes(step: Step) -> int:
    """Drafts that each request of a step proposed: where topk > 1 more than could be accepted."""
    start = step.start
    if start is not None and (start.topk or 1) > 1 and start.draft_tokens:
        return start.draft_tokens - 1
    return step.proposed


def _possible(step: Step) -> bool:
    """Whether a server could have written it: a damaged line can hold any number."""
    return (
        0 <= step.time < _LAST_SECOND
        and 0 <= step.proposed <= _DEEPEST
        and len(step.accepted) > 0
        and min(step.accepted) >= 0
        and max(step.accepted) <= step.proposed
    )
