"""The report as data: every rendering of it shows these values and computes none."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from sglang_eagle3_patch.acceptance.recorder import Tally
from sglang_eagle3_patch.acceptance.report.advice import Speedup, advise
from sglang_eagle3_patch.acceptance.report.aggregate import (
    Aggregate,
    Durations,
    batch_label,
    batch_range,
)
from sglang_eagle3_patch.acceptance.report.requests import LEAST_STEPS, RequestAcceptance
from sglang_eagle3_patch.acceptance.report.speedup import Position, positions
from sglang_eagle3_patch.acceptance.trace_reader import Launch

FORMAT = 1  # of the JSON


@dataclass(frozen=True, kw_only=True)
class Setting(Launch):
    """What start lines say of their processes, and how many processes said it."""

    processes: int


@dataclass(frozen=True)
class Provenance:
    """Where the numbers are from. Times are Unix seconds, UTC; `dropped` steps were never written,
    `unreadable` lines were passed over."""

    files: list[str]
    first: float
    last: float
    settings: list[Setting]
    ranks: list[int]
    dropped: int
    unreadable: int


@dataclass(frozen=True)
class Acceptance:
    """Means over some verify steps: `steps` of batches, `verifies` of requests."""

    steps: int
    verifies: int
    accept_length: float
    accept_rate: float


@dataclass(frozen=True)
class Moment(Acceptance):
    """Acceptance from `time` (Unix seconds) on, for the width of a bucket."""

    time: float


@dataclass(frozen=True)
class RankAcceptance(Acceptance):
    """Acceptance of a data-parallel rank."""

    rank: int


@dataclass(frozen=True)
class BatchAcceptance(Acceptance):
    """Acceptance at batch sizes `smallest` to `largest`, and the median seconds of their steps."""

    smallest: int
    largest: int
    median_seconds: float | None

    @property
    def sizes(self) -> str:
        """The batch sizes in words."""
        return batch_label(self.smallest, self.largest)


@dataclass(frozen=True)
class Accepted:
    """How many requests' verify steps accepted that many drafts, and their share of all."""

    accepted: int
    verifies: int
    share: float


@dataclass(frozen=True)
class Requests:
    """The ends of the ranking by accept length, of requests with `least_steps` steps or more."""

    seen: int
    ranked: int
    least_steps: int
    worst: list[RequestAcceptance]
    best: list[RequestAcceptance]


@dataclass(frozen=True)
class Report:
    """Everything that a trace says."""

    provenance: Provenance
    total: Acceptance
    bucket_seconds: float
    over_time: list[Moment]
    distribution: list[Accepted]
    positions: list[Position]
    ranks: list[RankAcceptance]
    batches: list[BatchAcceptance]
    requests: Requests | None
    speedup: Speedup

    def as_data(self) -> dict[str, Any]:
        """Return it as JSON's types."""
        return {"format": FORMAT, **asdict(self)}


def summarise(
    counted: Aggregate, files: Sequence[str], draft_cost: float | None = None
) -> Report | None:
    """Return the report, None without a single verify step.

    `draft_cost` is one draft step's time / one verify step's; without it the costs that the trace
    shows are taken, if it does.
    """
    if not counted.total.verifies:
        return None
    counted.requests.finish()
    measured = positions(counted.counts)
    by_accepted = [
        sum(by.get(accepted, 0) for by in counted.counts.values())
        for accepted in range(max(counted.counts) + 1)
    ]
    return Report(
        provenance=_provenance(counted, files),
        total=Acceptance(**_means(counted.total)),
        bucket_seconds=counted.timeline.seconds,
        over_time=[Moment(time=t, **_means(tally)) for t, tally in counted.timeline.by_time()],
        distribution=[
            Accepted(accepted, verifies, verifies / counted.total.verifies)
            for accepted, verifies in enumerate(by_accepted)
        ],
        positions=measured,
        ranks=[
            RankAcceptance(rank=rank, **_means(tally))
            for rank, tally in sorted(counted.ranks.items())
        ],
        batches=_batches(counted),
        requests=_requests(counted),
        speedup=advise(counted, measured, draft_cost),
    )


def _means(tally: Tally) -> dict[str, Any]:
    return {name: getattr(tally, name) for name in Acceptance.__dataclass_fields__}


def _provenance(counted: Aggregate, files: Sequence[str]) -> Provenance:
    # A process says it again in each part of its trace.
    processes: defaultdict[Setting, set[int]] = defaultdict(set)
    for start in sorted(counted.starts, key=lambda start: start.time):
        launch = {name: getattr(start, name) for name in Launch.__dataclass_fields__}
        setting = Setting(**launch, processes=0)
        processes[setting].add(start.pid)
    return Provenance(
        files=list(files),
        first=counted.first,
        last=counted.last,
        settings=[replace(setting, processes=len(pids)) for setting, pids in processes.items()],
        ranks=sorted(counted.ranks),
        dropped=counted.dropped,
        unreadable=counted.unreadable,
    )


def _batches(counted: Aggregate) -> list[BatchAcceptance]:
    result = []
    for group, tally in sorted(counted.batches.items()):
        taken = Durations()
        for (of_group, _), durations in counted.durations.items():
            if of_group == group:
                taken.bins.update(durations.bins)
        smallest, largest = batch_range(group)
        result.append(
            BatchAcceptance(
                smallest=smallest, largest=largest, median_seconds=taken.median(), **_means(tally)
            )
        )
    return result


def _requests(counted: Aggregate) -> Requests | None:
    ranking = counted.requests
    if not ranking.finished:
        return None
    return Requests(ranking.finished, ranking.ranked, LEAST_STEPS, ranking.worst, ranking.best)
