from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_eagle3_patch.acceptance.recorder import Recorder, interval_line, step_line


def test_definitions() -> None:
    recorder = Recorder()
    recorder.add([3, 0, 1], proposed_each=3)
    recorder.add([2], proposed_each=3)
    assert (recorder.steps, recorder.verifies) == (2, 4)
    # Length counts the bonus token of each of the four verify steps, rate does not.
    assert recorder.accept_length == pytest.approx((6 + 4) / 4)
    assert recorder.accept_rate == pytest.approx(6 / 12)
    assert recorder.rate_by_position == pytest.approx([3 / 4, 2 / 4, 1 / 4])


def test_a_dead_draft_reads_one_and_zero() -> None:
    recorder = Recorder()
    recorder.add([0, 0], proposed_each=3)
    assert recorder.accept_length == 1.0
    assert recorder.accept_rate == 0.0
    assert recorder.rate_by_position == []


@given(
    st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=4), max_size=20), st.integers(0, 20)
)
def test_an_interval_is_what_came_after(steps: list[list[int]], cut: int) -> None:
    whole, earlier, later = Recorder(), Recorder(), Recorder()
    for index, accepted in enumerate(steps):
        whole.add(accepted, 5)
        (earlier if index < cut else later).add(accepted, 5)
    interval = whole.since(earlier)
    assert interval.accept_length == later.accept_length
    assert interval.accept_rate == later.accept_rate
    assert [r for r in interval.rate_by_position if r] == [r for r in later.rate_by_position if r]


@given(st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=4), min_size=1, max_size=20))
def test_positions_add_up(steps: list[list[int]]) -> None:
    recorder = Recorder()
    for accepted in steps:
        recorder.add(accepted, 5)
    assert sum(recorder.reached) == recorder.accepted
    assert recorder.reached == sorted(recorder.reached, reverse=True)


def test_lines_use_sglangs_words() -> None:
    recorder = Recorder()
    recorder.add([3, 1], proposed_each=3)
    assert step_line(recorder, [3, 1]) == (
        "Verify step 1, #req: 2, accepted: [3, 1], accept len: 3.00, accept rate: 0.67"
    )
    assert interval_line(recorder) == (
        "Verify steps: 1, accept len: 3.00, accept rate: 0.67, by position: [1.00, 0.50, 0.50]"
    )
