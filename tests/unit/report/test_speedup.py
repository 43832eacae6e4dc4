from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_eagle3_patch.acceptance.report.aggregate import Durations
from sglang_eagle3_patch.acceptance.report.speedup import (
    LEAST_SAMPLES,
    Cost,
    Position,
    best,
    expected_lengths,
    measured_cost,
    options,
    positions,
)

_rates = st.lists(st.floats(0, 1), min_size=1, max_size=8)
# One request's verify step: how many drafts it could have accepted, and how many it did.
_verifies = st.integers(1, 5).flatmap(lambda k: st.tuples(st.just(k), st.integers(0, k)))


def _measured(rates: list[float], reached: int = LEAST_SAMPLES) -> list[Position]:
    return [Position(i, reached, 0, 0.0, rate) for i, rate in enumerate(rates, start=1)]


@given(st.lists(_verifies, min_size=1))
def test_positions_are_those_counted_one_by_one(verifies: list[tuple[int, int]]) -> None:
    counts: dict[int, Counter[int]] = {}
    for proposed, accepted in verifies:
        counts.setdefault(proposed, Counter())[accepted] += 1
    for found in positions(counts):
        i = found.position
        reached = [a for p, a in verifies if p >= i and a >= i - 1]
        accepted = [a for a in reached if a >= i]
        assert (found.reached, found.accepted) == (len(reached), len(accepted))
        assert found.unconditional == len(accepted) / len(verifies)
        assert found.conditional == (len(accepted) / len(reached) if reached else None)


@given(st.floats(0, 0.99), st.integers(1, 10))
def test_with_one_rate_the_expectation_is_leviathans(rate: float, k: int) -> None:
    lengths = expected_lengths(_measured([rate] * k))
    assert lengths[k] == pytest.approx((1 - rate ** (k + 1)) / (1 - rate))


def test_expected_tokens_of_measured_rates() -> None:
    assert expected_lengths(_measured([0.5, 0.4])) == pytest.approx([1, 1.5, 1.5 + 0.5 * 0.4])


def test_what_was_not_measured_is_not_extrapolated() -> None:
    few = Position(2, LEAST_SAMPLES - 1, 0, 0.0, 0.9)
    never = Position(2, 0, 0, 0.0, None)
    for second in (few, never):
        assert len(expected_lengths([*_measured([0.5]), second])) == 2


@given(_rates, st.floats(0, 2))
def test_the_best_number_of_steps_is_the_fastest(rates: list[float], cost: float) -> None:
    lengths = expected_lengths(_measured(rates))
    found = best(options(lengths, Cost(cost, "given"), present=1))
    speeds = [length / (1 + k * cost) for k, length in enumerate(lengths)]
    assert found is not None
    assert found.steps == speeds.index(max(speeds))
    assert found.against_present == pytest.approx(max(speeds) / speeds[1])


@given(_rates)
def test_at_the_break_even_costs_nothing_is_gained(rates: list[float]) -> None:
    lengths = expected_lengths(_measured(rates))
    for option in options(lengths, None, present=None)[1:]:
        k, even, last = option.steps, option.break_even, option.last_step_pays_below
        assert lengths[k] / (1 + k * even) == pytest.approx(1)
        before = lengths[k - 1] / (1 + (k - 1) * last)
        assert lengths[k] / (1 + k * last) == pytest.approx(before)


def test_without_a_cost_nothing_is_chosen() -> None:
    assert best(options([1.0, 1.8], None, present=1)) is None


def _durations(seconds: float, count: int = LEAST_SAMPLES) -> Durations:
    durations = Durations()
    for _ in range(count):
        durations.add(seconds)
    return durations


def test_the_cost_is_the_line_through_the_medians_at_one_batch_size() -> None:
    cost = measured_cost(
        {
            (0, 1): _durations(0.011, 50),
            (0, 4): _durations(0.014, 50),
            (3, 1): _durations(0.040, 200),  # busier, but no second number of drafts
            (2, 1): _durations(0.500, LEAST_SAMPLES - 1),  # too few
            (2, 2): _durations(0.001),
        }
    )
    assert cost is not None
    assert (cost.source, cost.smallest, cost.largest) == ("measured", 1, 1)
    assert cost.base_seconds == pytest.approx(0.010, rel=0.02)
    assert cost.draft_seconds == pytest.approx(0.001, rel=0.1)
    assert cost.ratio == pytest.approx(0.1, rel=0.1)


def test_a_line_that_falls_is_no_cost() -> None:
    assert measured_cost({(0, 1): _durations(0.02), (0, 3): _durations(0.01)}) is None


@given(st.lists(st.floats(1e-6, 100), min_size=1, max_size=50))
def test_a_median_is_off_by_half_a_percent_at_most(seconds: list[float]) -> None:
    durations = Durations()
    for value in seconds:
        durations.add(value)
    lower = sorted(seconds)[(len(seconds) - 1) // 2]
    assert durations.median() == pytest.approx(lower, rel=0.0051)
