"""The tables of a report in words: the terminal and the page show the same ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sglang_eagle3_patch.acceptance.report.requests import RequestAcceptance
from sglang_eagle3_patch.acceptance.report.summary import Acceptance, Report
from sglang_eagle3_patch.acceptance.report.words import (
    milliseconds,
    moment,
    number,
    printable,
)


@dataclass(frozen=True)
class Table:
    """Rows of cells; `marked` is the row that the report chooses."""

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    marked: int | None = None


def over_time(report: Report) -> Table:
    """Return acceptance by time."""
    return Table(
        f"Acceptance by time, in steps of {report.bucket_seconds:g} s",
        ("from (UTC)", *_MEANS),
        [(moment(point.time), *_means(point)) for point in report.over_time],
    )


def distribution(report: Report) -> Table:
    """Return how many steps accepted how many drafts."""
    return Table(
        "Accepted drafts of requests' verify steps",
        ("accepted", "steps", "share"),
        [(str(d.accepted), str(d.verifies), number(d.share)) for d in report.distribution],
    )


def positions(report: Report) -> Table:
    """Return acceptance by draft position."""
    return Table(
        "Acceptance by draft position",
        ("position", "reached", "accepted", "of all steps", "of steps that reached it"),
        [
            (
                str(p.position),
                str(p.reached),
                str(p.accepted),
                number(p.unconditional),
                number(p.conditional),
            )
            for p in report.positions
        ],
    )


def batches(report: Report) -> Table:
    """Return acceptance by batch size."""
    return Table(
        "Acceptance by batch size",
        ("requests", *_MEANS, "median ms per step"),
        [(b.sizes, *_means(b), milliseconds(b.median_seconds)) for b in report.batches],
    )


def ranks(report: Report) -> Table:
    """Return acceptance by data-parallel rank."""
    return Table(
        "Acceptance by data-parallel rank",
        ("rank", *_MEANS),
        [(str(rank.rank), *_means(rank)) for rank in report.ranks],
    )


def speedup(report: Report) -> Table:
    """Return what each number of draft steps gives."""
    choice, known = report.speedup.choice, report.speedup.cost is not None
    return Table(
        "Expected by number of draft steps",
        (
            "draft steps",
            "tokens per step",
            *(("speed-up", "against now") if known else ()),
            "break-even cost",
            "last step pays below",
        ),
        [
            (
                str(o.steps),
                number(o.expected_length),
                *((number(o.speedup), number(o.against_present)) if known else ()),
                number(o.break_even),
                number(o.last_step_pays_below),
            )
            for o in report.speedup.options
        ],
        marked=choice.steps if choice else None,
    )


def requests(report: Report) -> list[Table]:
    """Return the worst and the best requests; nothing where none can be ranked."""
    if report.requests is None or not report.requests.ranked:
        return []
    return [_ranking("Worst", report.requests.worst), _ranking("Best", report.requests.best)]


_MEANS = ("steps", "accept length", "accept rate")


def _means(acceptance: Acceptance) -> tuple[str, str, str]:
    return (
        str(acceptance.steps),
        number(acceptance.accept_length),
        number(acceptance.accept_rate),
    )


def _ranking(end: str, ranking: Sequence[RequestAcceptance]) -> Table:
    return Table(
        f"{end} requests",
        ("request", "steps", "accept length"),
        [(printable(r.id), str(r.steps), number(r.accept_length)) for r in ranking],
    )
