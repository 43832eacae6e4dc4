"""The charts of a report as data: `svg` and `png` draw the same ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sglang_eagle3_patch.acceptance.report.requests import LEAST_STEPS
from sglang_eagle3_patch.acceptance.report.summary import Report
from sglang_eagle3_patch.acceptance.report.words import moment


@dataclass(frozen=True)
class Series:
    """Values of a chart by its labels; None leaves a gap."""

    name: str
    values: Sequence[float | None]


@dataclass(frozen=True)
class Chart:
    """Bars by label, or lines over `at` (seconds) where that is given.

    `note` says in a sentence what is to be seen, for those who see no picture. `gap` is the
    distance in seconds beyond which two points of a line are not joined. `marked` is the bar that
    the report chooses.
    """

    id: str
    title: str
    note: str
    x_title: str
    y_title: str
    labels: Sequence[str]
    series: Sequence[Series]
    decimals: int = 3
    floor: float = 0.0
    at: Sequence[float] | None = None
    gap: float = 0.0
    marked: int | None = None

    def runs(self) -> Iterator[range]:
        """Yield the points of `at` that are joined, as ranges of their indices."""
        at = self.at or ()
        begin = 0
        for i in range(1, len(at) + 1):
            if i == len(at) or at[i] - at[i - 1] > self.gap:
                yield range(begin, i)
                begin = i


def charts(report: Report) -> list[Chart]:
    """Return the charts of a report, those without data left out."""
    return [
        _over_time(report),
        _distribution(report),
        *([_positions(report)] if report.positions else []),
        _batches(report),
        *([_speedup(report)] if len(report.speedup.options) > 1 else []),
    ]


def _over_time(report: Report) -> Chart:
    most = max(point.verifies for point in report.over_time)
    points = [point for point in report.over_time if point.verifies >= min(LEAST_STEPS, most)]
    lengths = [point.accept_length for point in points]
    left_out = len(report.over_time) - len(points)
    told = f", {left_out} of fewer than {LEAST_STEPS} verify steps left out" if left_out else ""
    one_day = report.provenance.last - report.provenance.first < 86400
    return Chart(
        id="over-time",
        title="Accept length over time",
        note=f"From {min(lengths):.3f} to {max(lengths):.3f} in steps of "
        f"{report.bucket_seconds:g} seconds{told}.",
        x_title="UTC",
        y_title="tokens per verify step",
        labels=[moment(point.time, with_date=not one_day) for point in points],
        series=[Series("accept length", lengths)],
        floor=1.0,
        at=[point.time for point in points],
        gap=1.5 * report.bucket_seconds,
    )


def _distribution(report: Report) -> Chart:
    most = max(report.distribution, key=lambda entry: entry.share)
    return Chart(
        id="distribution",
        title="Accepted drafts of a verify step",
        note=f"{most.share:.1%} of the steps accepted {most.accepted}, more than any other number.",
        x_title="accepted drafts, without the bonus token",
        y_title="share of verify steps",
        labels=[str(entry.accepted) for entry in report.distribution],
        series=[Series("share", [entry.share for entry in report.distribution])],
    )


def _positions(report: Report) -> Chart:
    first, last = report.positions[0], report.positions[-1]
    return Chart(
        id="positions",
        title="Acceptance by draft position",
        note=f"Of all verify steps {first.unconditional:.1%} accepted position 1 and "
        f"{last.unconditional:.1%} position {last.position}.",
        x_title="draft position",
        y_title="rate",
        labels=[str(position.position) for position in report.positions],
        series=[
            Series("of all steps", [p.unconditional for p in report.positions]),
            Series("of steps that reached it", [p.conditional for p in report.positions]),
        ],
    )


def _batches(report: Report) -> Chart:
    worst = min(report.batches, key=lambda batch: batch.accept_length)
    return Chart(
        id="batches",
        title="Accept length by batch size",
        note=f"Lowest, {worst.accept_length:.3f}, at batch size {worst.sizes}.",
        x_title="requests in the verify step",
        y_title="tokens per verify step",
        labels=[batch.sizes for batch in report.batches],
        series=[Series("accept length", [batch.accept_length for batch in report.batches])],
    )


def _speedup(report: Report) -> Chart:
    speedup = report.speedup
    labels = [str(option.steps) for option in speedup.options]
    if speedup.cost is None:
        return Chart(
            id="speedup",
            title="Expected tokens by number of draft steps",
            note="No cost was measured, so this is no speed-up yet.",
            x_title="draft steps",
            y_title="tokens per verify step",
            labels=labels,
            series=[Series("tokens", [option.expected_length for option in speedup.options])],
        )
    chosen = speedup.choice.steps if speedup.choice else None
    return Chart(
        id="speedup",
        title="Expected speed-up by number of draft steps",
        note=f"Highest at {chosen} steps, where a draft step costs {speedup.cost.ratio:.3f} of a "
        "verify step.",
        x_title="draft steps",
        y_title="times as fast as without drafts",
        labels=labels,
        series=[Series("speed-up", [option.speedup for option in speedup.options])],
        marked=chosen,
    )
