"""The Prometheus metrics of acceptance: one table of them, and what counts them up.

Names and definitions are vLLM's `vllm:spec_decode_…` under our prefix, so that queries written for
those carry over: a draft is one request's verify step that was proposed something.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

PREFIX = "sglang_eagle3:"


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One metric as it is exposed. `labels` come on top of those that SGLang gives its own."""

    name: str
    kind: str  # "counter" or "gauge"
    meaning: str
    labels: tuple[str, ...] = ()


DRAFTS = Metric(
    name=f"{PREFIX}spec_decode_num_drafts_total",
    kind="counter",
    meaning="verify steps of requests that were proposed drafts",
)
DRAFT_TOKENS = Metric(
    name=f"{PREFIX}spec_decode_num_draft_tokens_total",
    kind="counter",
    meaning="draft tokens verified; in a tree every node of it",
)
ACCEPTED = Metric(
    name=f"{PREFIX}spec_decode_num_accepted_tokens_total",
    kind="counter",
    meaning="draft tokens accepted, the bonus token not counted",
)
ACCEPTED_PER_POSITION = Metric(
    name=f"{PREFIX}spec_decode_num_accepted_tokens_per_pos_total",
    kind="counter",
    meaning="verify steps of requests that accepted a draft at this position, the first being 0; "
    "in a tree the depth along the accepted path",
    labels=("position",),
)
ALARM = Metric(
    name=f"{PREFIX}acceptance_alarm",
    kind="gauge",
    meaning="1 while next to nothing is accepted, or far less than before; else 0",
)
TRACE_DROPPED = Metric(
    name=f"{PREFIX}trace_records_dropped_total",
    kind="counter",
    meaning="verify steps that the trace could not take",
)

METRICS = (DRAFTS, DRAFT_TOKENS, ACCEPTED, ACCEPTED_PER_POSITION, ALARM, TRACE_DROPPED)


class Metrics:
    """The metrics of this process, each with the labels given: SGLang's own.

    Made where SGLang makes its own, after it has set `PROMETHEUS_MULTIPROC_DIR`, and once: a second
    one raises `ValueError`, since Prometheus takes a name only once in a process. `counter_class`
    and `gauge_class` stand in for those of prometheus_client where SGLang itself has others, under
    Ray.
    """

    def __init__(
        self,
        labels: Mapping[str, Any],
        counter_class: type[Any] | None = None,
        gauge_class: type[Any] | None = None,
    ) -> None:
        # Which files it writes to is decided when it is imported.
        import prometheus_client

        self._labels = dict(labels)
        self._counter_class = counter_class or prometheus_client.Counter
        gauge = (gauge_class or prometheus_client.Gauge)(
            name=ALARM.name,
            documentation=ALARM.meaning,
            labelnames=list(self._labels),
            multiprocess_mode="mostrecent",
        )
        self._alarm = gauge.labels(**self._labels)
        self._alarm.set(0)
        self._drafts = self._counter(DRAFTS).labels(**self._labels)
        self._draft_tokens = self._counter(DRAFT_TOKENS).labels(**self._labels)
        self._accepted = self._counter(ACCEPTED).labels(**self._labels)
        self._dropped = self._counter(TRACE_DROPPED).labels(**self._labels)
        self._per_position = self._counter(ACCEPTED_PER_POSITION)
        self._positions: list[Any] = []

    def _counter(self, metric: Metric) -> Any:
        return self._counter_class(
            name=metric.name.removesuffix("_total"),
            documentation=metric.meaning,
            labelnames=[*self._labels, *metric.labels],
        )

    def add(self, accepted: Sequence[int], draft_tokens: int, depth: int) -> None:
        """Count one verify step of a batch: accepted drafts of each request, without the bonus.

        `draft_tokens` were verified for each request, of which `depth` could be accepted. A step
        that proposed nothing is none of a draft's.
        """
        if not draft_tokens:
            return
        while len(self._positions) < depth:
            labels = {**self._labels, "position": str(len(self._positions))}
            self._positions.append(self._per_position.labels(**labels))
        self._drafts.inc(len(accepted))
        self._draft_tokens.inc(draft_tokens * len(accepted))
        self._accepted.inc(sum(accepted))
        beyond = len(accepted)
        for position, counter in enumerate(self._positions):
            beyond -= accepted.count(position)
            if not beyond:
                break
            counter.inc(beyond)

    def add_dropped(self, records: int) -> None:
        """Count verify steps that the trace could not take."""
        self._dropped.inc(records)

    def set_alarm(self, on: bool) -> None:
        """Say whether the alarm is on."""
        self._alarm.set(int(on))
