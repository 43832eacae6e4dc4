"""What other numbers of draft steps would give, from measured acceptance and measured costs.

Leviathan, Kalman and Matias (2023, "Fast inference from transformers via speculative decoding",
equation 1 and theorem 3.8) take one acceptance rate a for every position: expected tokens of a
verify step (1 - a^(k+1)) / (1 - a), and a speed-up of that / (1 + k R), with R the time of one
draft step / the time of one step of the target. Here each position has its own, measured rate:

    E(k) = 1 + sum over i = 1..k of c_1 c_2 … c_i        c_i: accepted at i / steps that reached i
    S(k) = E(k) / (1 + k R)

which is theirs where all c are equal. Both say that a step of the target takes the same time with
and without drafts to verify. Positions that were never measured are not extrapolated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from sglang_eagle3_patch.acceptance.report.aggregate import Durations, batch_range

# Steps that must have reached a position, or taken a time, before anything is chosen by it.
LEAST_SAMPLES = 30


@dataclass(frozen=True)
class Position:
    """Acceptance at a draft position, from 1: counts of requests' verify steps, and the rates
    ÷ all of them and ÷ those that reached it (None where none did)."""

    position: int
    reached: int
    accepted: int
    unconditional: float
    conditional: float | None


@dataclass(frozen=True)
class Cost:
    """One draft step's time / one verify step's time, and where it is from.

    Measured ones come with their seconds: a step of `base_seconds` without drafts, and
    `draft_seconds` more for each, at batch sizes `smallest` to `largest`.
    """

    ratio: float
    source: Literal["given", "measured"]
    base_seconds: float | None = None
    draft_seconds: float | None = None
    smallest: int | None = None
    largest: int | None = None


@dataclass(frozen=True)
class Option:
    """A number of draft steps: expected tokens of a verify step, the draft cost at which it is as
    fast as no drafts at all, the one below which its last step pays, and, where the cost is known,
    the speed-up against no drafts and against the number in use."""

    steps: int
    expected_length: float
    break_even: float
    last_step_pays_below: float
    speedup: float | None
    against_present: float | None


def positions(counts: Mapping[int, Mapping[int, int]]) -> list[Position]:
    """Return acceptance by position, from `counts[proposed][accepted]`.

    A position is reached by the steps that proposed it and accepted all before it; where the
    number of steps adapts, those that didn't propose it are not among them.
    """
    verifies = sum(sum(by_accepted.values()) for by_accepted in counts.values())
    result = []
    for position in range(1, max(counts, default=0) + 1):
        proposing = [counts[proposed] for proposed in counts if proposed >= position]
        reached = _at_least(proposing, position - 1)
        accepted = _at_least(proposing, position)
        conditional = accepted / reached if reached else None
        result.append(Position(position, reached, accepted, accepted / verifies, conditional))
    return result


def expected_lengths(measured: Sequence[Position]) -> list[float]:
    """Return E(0), E(1), … as far as each position was reached by `LEAST_SAMPLES` steps."""
    result, chain = [1.0], 1.0
    for position in measured:
        if position.conditional is None or position.reached < LEAST_SAMPLES:
            break
        chain *= position.conditional
        result.append(result[-1] + chain)
    return result


def options(lengths: Sequence[float], cost: Cost | None, present: int | None) -> list[Option]:
    """Return what each number of draft steps from 0 gives, from E(0), E(1), …

    k steps beat none while S(k) > 1, which is R < (E(k) - 1) / k; the k-th pays while
    S(k) > S(k-1), which is R < (E(k) - E(k-1)) / (k E(k-1) - (k-1) E(k)). `present` is the number
    of steps in use.
    """
    speeds = [E / (1 + k * cost.ratio) for k, E in enumerate(lengths)] if cost else []
    now = speeds[present] if present is not None and present < len(speeds) else None
    result = []
    for k, expected in enumerate(lengths):
        before = lengths[k - 1] if k else 1.0
        result.append(
            Option(
                steps=k,
                expected_length=expected,
                break_even=(expected - 1) / max(k, 1),
                last_step_pays_below=(expected - before) / (k * before - (k - 1) * expected),
                speedup=speeds[k] if speeds else None,
                against_present=speeds[k] / now if now else None,
            )
        )
    return result


def best(choices: Sequence[Option]) -> Option | None:
    """Return the fastest option, the one of fewer steps among equals; None without a cost."""
    known = [option for option in choices if option.speedup is not None]
    return max(known, key=lambda option: (option.speedup, -option.steps), default=None)


def measured_cost(durations: Mapping[tuple[int, int], Durations]) -> Cost | None:
    """Return the cost of a draft step from the seconds of steps by (batch group, proposed).

    Batches of other sizes take other times, so only one group is looked at: of those in which
    two numbers of drafts or more have `LEAST_SAMPLES`, the one of most steps. A line through the
    median seconds by number of drafts, weighted by steps, gives the step without drafts and the
    draft step. None where there is no such group, or a line that doesn't rise from above 0.
    """
    groups: dict[int, list[tuple[int, float, int]]] = {}
    for (group, proposed), taken in durations.items():
        median = taken.median()
        if median is not None and taken.count >= LEAST_SAMPLES:
            groups.setdefault(group, []).append((proposed, median, taken.count))
    groups = {group: points for group, points in groups.items() if len(points) > 1}
    if not groups:
        return None
    group = max(groups, key=lambda key: sum(weight for _, _, weight in groups[key]))
    base, slope = _line(groups[group])
    if base <= 0 or slope <= 0:
        return None
    return Cost(slope / base, "measured", base, slope, *batch_range(group))


def _line(points: Sequence[tuple[int, float, int]]) -> tuple[float, float]:
    """Intercept and slope of the weighted least-squares line through (x, y, weight)."""
    weights = sum(w for _, _, w in points)
    mean_x = sum(x * w for x, _, w in points) / weights
    mean_y = sum(y * w for _, y, w in points) / weights
    slope = sum(w * (x - mean_x) * (y - mean_y) for x, y, w in points) / sum(
        w * (x - mean_x) ** 2 for x, _, w in points
    )
    return mean_y - slope * mean_x, slope


def _at_least(counts: Sequence[Mapping[int, int]], least: int) -> int:
    return sum(n for by in counts for accepted, n in by.items() if accepted >= least)
