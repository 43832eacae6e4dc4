"""The alarm sees a dead draft and a collapse, and nothing else."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from sglang_eagle3_patch.acceptance.alarm import Alarm, Change


def changes(alarm: Alarm, steps: Iterable[tuple[int, int, int]]) -> list[tuple[int, Change]]:
    """The changes that the steps make, each with the step's number, from 1."""
    told = [(n, alarm.add(*step)) for n, step in enumerate(steps, 1)]
    return [(n, change) for n, change in told if change is not None]


def draft(
    rate: float, steps: int, batch: int = 1, seed: int = 0, depth: int = 3
) -> list[tuple[int, int, int]]:
    """Verify steps whose drafts are each accepted with probability `rate`, `depth` in a row."""
    chance = random.Random(seed)

    def accepted() -> int:
        count = 0
        while count < depth and chance.random() < rate:
            count += 1
        return count

    return [(sum(accepted() for _ in range(batch)), batch, depth) for _ in range(steps)]


@pytest.mark.parametrize("batch", [1, 4, 64])
def test_a_dead_draft_is_told_once_after_as_many_steps(batch: int) -> None:
    told = changes(Alarm(200), draft(0.01, 5_000, batch))
    assert [(n, change.on) for n, change in told] == [(200, True)]
    assert told[0][1].accept_length == pytest.approx(1.01, abs=0.04)
    assert told[0][1].before is None


@pytest.mark.parametrize("rate", [0.3, 0.6, 0.8, 0.95])
@pytest.mark.parametrize("batch", [1, 16])
def test_never_over_a_draft_that_works(rate: float, batch: int) -> None:
    for seed in range(5):
        assert changes(Alarm(200), draft(rate, 5_000, batch, seed)) == []


def test_never_over_hard_and_easy_requests_in_turn() -> None:
    steps = [
        step
        for request in range(80)
        for step in draft(random.Random(request).uniform(0.35, 0.95), 100, seed=request)
    ]
    assert changes(Alarm(200), steps) == []


def test_at_the_limit() -> None:
    assert changes(Alarm(100), [(1, 1, 3)] * 5 + [(0, 1, 3)] * 95) != []
    assert changes(Alarm(100), [(1, 1, 3)] * 6 + [(0, 1, 3)] * 94) == []


def test_it_clears_itself_and_fires_again() -> None:
    alarm = Alarm(200)
    steps = draft(0.7, 5_000) + draft(0.0, 800) + draft(0.7, 5_000) + draft(0.0, 800)
    told = changes(alarm, steps)
    assert [change.on for _, change in told] == [True, False, True]
    fired, cleared, again = (n for n, _ in told)
    assert 5_000 < fired <= 5_200
    assert 5_800 < cleared <= 5_800 + 60
    assert 10_800 < again <= 11_000
    assert alarm.on


def test_a_collapse_is_told_with_what_was_before() -> None:
    alarm = Alarm(200)
    told = changes(alarm, draft(0.8, 5_000) + draft(0.35, 3_000) + draft(0.8, 3_000))
    assert [change.on for _, change in told] == [True, False]
    fired, change = told[0]
    assert 5_000 < fired <= 6_200
    assert change.before == pytest.approx(1 + 0.8 + 0.8**2 + 0.8**3, abs=0.1)
    assert change.accept_length < 1 + (change.before - 1) / 2
    assert 8_000 < told[1][0] <= 9_200


def test_what_a_collapse_is_about_does_not_become_normal() -> None:
    long = draft(0.8, 5_000) + draft(0.35, 50_000)
    told = changes(Alarm(200), long + draft(0.8, 3_000) + draft(0.35, 3_000))
    assert [change.on for _, change in told] == [True, False, True]


def test_a_short_history_is_none() -> None:
    assert changes(Alarm(200), draft(0.9, 1_800) + draft(0.35, 1_000)) == []


class TestStepsOfSeveralDepths:
    """`--speculative-adaptive` drafts more or fewer from one step to the next."""

    @pytest.mark.parametrize("rate", [0.3, 0.6, 0.85])
    def test_fewer_drafts_are_no_collapse(self, rate: float) -> None:
        steps = draft(rate, 3_200, depth=7) + draft(rate, 5_000, depth=1)
        assert changes(Alarm(200), steps) == []

    def test_nor_are_fewer_and_fewer_in_turn(self) -> None:
        steps = [
            step
            for turn in range(300)
            for step in draft(0.85, 100, seed=turn, depth=7 if turn % 20 < 10 - turn // 50 else 1)
        ]
        assert changes(Alarm(200), steps) == []

    def test_a_collapse_is_told_from_steps_of_its_depth(self) -> None:
        """Between them come others, of which as many are accepted as before."""
        alarm = Alarm(200)
        well, badly = draft(0.85, 3_200, depth=7), draft(0.35, 3_200, depth=7)
        others = draft(0.6, 3_200, depth=2)
        told = changes(
            alarm,
            [
                step
                for among in (well, badly, well)
                for pair in zip(among, others, strict=True)
                for step in pair
            ],
        )
        assert [change.on for _, change in told] == [True, False]
        (fired, change), (cleared, _) = told
        assert 6_400 < fired <= 6_400 + 2 * 1_200
        assert change.before == pytest.approx(1 + sum(0.85**n for n in range(1, 8)), abs=0.2)
        assert 12_800 < cleared <= 12_800 + 2 * 1_200

    @pytest.mark.parametrize(("rate", "told_on"), [(0.85, [True, False]), (0.3, [True])])
    def test_another_depth_ends_it_where_that_one_is_no_longer_used(
        self, rate: float, told_on: list[bool]
    ) -> None:
        """Adaptive speculation drafts more as soon as more is accepted again."""
        steps = [*draft(0.85, 3_200, depth=7), *draft(0.85, 3_200, depth=1)]
        collapsed = draft(0.3, 1_500, depth=1)
        told = changes(Alarm(200), [*steps, *collapsed, *draft(rate, 3_000, depth=7)])
        assert [change.on for _, change in told] == told_on
        assert all(n <= 7_900 + 1_200 for n, _ in told)

    def test_a_dead_draft_is_told_whatever_the_depth(self) -> None:
        steps = [step for turn in range(40) for step in draft(0.0, 10, depth=1 + turn % 7)]
        assert [(n, change.on) for n, change in changes(Alarm(200), steps)] == [(200, True)]
