from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from sglang_eagle3_patch.acceptance.report import requests
from sglang_eagle3_patch.acceptance.report.aggregate import Aggregate, aggregate, batch_group
from sglang_eagle3_patch.acceptance.report.requests import RequestRanking
from sglang_eagle3_patch.acceptance.report.summary import Report, summarise
from sglang_eagle3_patch.acceptance.trace_reader import Start, Step, read_records, read_trace
from tests.unit.report import traces


def _report(path: Path, draft_cost: float | None = None) -> Report:
    report = summarise(aggregate(read_records([path])), [str(path)], draft_cost)
    assert report is not None
    return report


def _step(time: float, *accepted: int, proposed: int = 3, rank: int = 0) -> Step:
    return Step(time=time, step=1, rank=rank, proposed=proposed, accepted=accepted)


def test_the_report_is_what_the_steps_say_one_by_one(tmp_path: Path) -> None:
    path = traces.write(tmp_path / "t.jsonl", traces.START, *traces.steps(2000))
    report, steps = _report(path), read_trace([path]).steps
    accepted = [count for step in steps for count in step.accepted]

    assert report.total.steps == 2000
    assert report.total.verifies == len(accepted)
    assert report.total.accept_length == pytest.approx(1 + sum(accepted) / len(accepted))
    assert report.total.accept_rate == pytest.approx(sum(accepted) / len(accepted) / 3)
    assert [d.verifies for d in report.distribution] == [accepted.count(k) for k in range(4)]
    for batch in report.batches:
        of_size = [s for s in steps if batch.smallest <= s.batch <= batch.largest]
        counts = [count for step in of_size for count in step.accepted]
        assert batch.steps == len(of_size)
        assert batch.accept_length == pytest.approx(1 + sum(counts) / len(counts))
        taken = sorted(step.seconds for step in of_size if step.seconds)
        assert batch.median_seconds == pytest.approx(taken[len(taken) // 2], rel=0.01)
    assert sum(batch.steps for batch in report.batches) == 2000
    for point in report.over_time:
        within = [s for s in steps if 0 <= s.time - point.time < report.bucket_seconds]
        assert point.steps == len(within)
        counts = [count for step in within for count in step.accepted]
        assert point.accept_length == pytest.approx(1 + sum(counts) / len(counts))
    assert sum(point.steps for point in report.over_time) == 2000


def test_the_choice_is_the_true_optimum_of_the_model(tmp_path: Path) -> None:
    rates, ratio = (0.9, 0.85, 0.8, 0.5, 0.1), 0.05
    path = traces.write(
        tmp_path / "t.jsonl",
        traces.START,
        *traces.steps(6000, rates=rates, proposed=(1, 3, 5), batches=(1, 2)),
    )
    speedup = _report(path).speedup
    tokens = chain = 1.0
    true = [1.0]
    for k, rate in enumerate(rates, start=1):
        chain *= rate
        tokens += chain
        true.append(tokens / (1 + k * ratio))
    assert speedup.cost is not None
    assert speedup.cost.ratio == pytest.approx(ratio, rel=0.15)
    assert [option.speedup for option in speedup.options] == pytest.approx(true, rel=0.02)
    assert speedup.choice is not None
    assert speedup.choice.steps == true.index(max(true)) == 4
    assert speedup.choice.draft_tokens == 5
    assert any("number of draft steps changed" in note for note in speedup.notes)


def test_a_cost_that_is_given_goes_before_one_that_is_measured(tmp_path: Path) -> None:
    path = traces.write(tmp_path / "t.jsonl", *traces.steps(2000, proposed=(1, 3)))
    assert _report(path).speedup.cost.source == "measured"
    given = _report(path, draft_cost=5.0).speedup
    assert (given.cost.source, given.cost.ratio, given.choice.steps) == ("given", 5.0, 0)


def test_a_chosen_tree_keeps_the_tokens_it_has_places_for(tmp_path: Path) -> None:
    start = traces.START | {"topk": 2, "draft_tokens": 16, "num_steps": 3}
    good = traces.write(tmp_path / "t.jsonl", start, *traces.steps(500, rates=(0.99,) * 3))
    report = _report(good, draft_cost=0.01)
    speedup, total = report.speedup, report.total
    # Of a tree's 15 drafts 3 could be accepted.
    assert total.accept_rate == pytest.approx((total.accept_length - 1) / 15)
    # 2 at the first depth, 4 at each of the two after it, and the last token.
    assert (speedup.choice.steps, speedup.choice.draft_tokens) == (3, 11)
    assert any("topk 2" in note for note in speedup.notes)
    assert not any("number of draft steps changed" in note for note in speedup.notes)


def test_settings_that_differ_choose_no_draft_tokens(tmp_path: Path) -> None:
    other = traces.START | {"topk": 4, "draft_tokens": 16, "time": traces.START["time"] + 1}
    path = traces.write(tmp_path / "t.jsonl", traces.START, other, *traces.steps(500))
    report = _report(path, draft_cost=0.01)
    assert report.speedup.choice.steps == 3
    assert report.speedup.choice.draft_tokens is None
    assert [setting.topk for setting in report.provenance.settings] == [1, 4]


def test_a_process_is_one_however_often_its_trace_was_rotated(tmp_path: Path) -> None:
    later = traces.START | {"time": traces.START["time"] + 60}
    path = traces.write(tmp_path / "t.jsonl", traces.START, later, *traces.steps(5))
    assert [setting.processes for setting in _report(path).provenance.settings] == [1]


def test_a_dead_draft_is_told(tmp_path: Path) -> None:
    path = traces.write(tmp_path / "t.jsonl", traces.START, *traces.steps(100, rates=(0, 0, 0)))
    report = _report(path, draft_cost=0.05)
    assert report.total.accept_length == 1.0
    assert report.speedup.choice.steps == 0
    assert any("doctor" in note for note in report.speedup.notes)


def test_lines_that_no_server_writes_are_counted_and_left_out() -> None:
    counted = Aggregate()
    for step in (
        _step(1.0, 4),  # more than were proposed
        _step(1.0, -1),
        _step(1.0),  # of no request
        _step(float("nan"), 1),
        _step(1e300, 1),
        _step(1.0, 1, proposed=10**9),
    ):
        counted.add(step)
    counted.add(_step(1.0, 3))
    assert (counted.unreadable, counted.total.verifies) == (6, 1)


def test_time_is_kept_in_few_buckets_that_lose_no_step() -> None:
    counted = Aggregate()
    day = 86400.0
    for i in range(5000):  # two years, and a few of the steps again and late
        counted.add(_step(1.7e9 + i * day / 7, i % 4))
    for i in range(10):
        counted.add(_step(1.7e9 + i, 0))
    points = counted.timeline.by_time()
    assert len(points) <= 120
    assert sum(tally.verifies for _, tally in points) == 5010
    assert sum(tally.accepted for _, tally in points) == sum(i % 4 for i in range(5000))
    assert [time for time, _ in points] == sorted(time for time, _ in points)
    assert points[0][0] <= 1.7e9 < points[0][0] + counted.timeline.seconds


def test_the_ends_of_the_ranking_are_right_whatever_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(requests, "_OPEN", 50)
    ranking = RequestRanking()
    lengths = {}
    for number in range(3000):
        steps, accepted = 10 + number % 3, number * 7 % 41
        for step in range(steps):
            ranking.add(f"r{number:04}", accepted if step == 0 else 0)
        lengths[f"r{number:04}"] = 1 + accepted / steps
    ranking.add("too short", 100)
    ranking.finish()
    order = sorted(lengths, key=lambda name: (lengths[name], name))
    assert [request.id for request in ranking.worst] == order[:10]
    assert [request.id for request in ranking.best] == order[::-1][:10]
    assert (ranking.finished, ranking.ranked) == (3001, 3000)


def test_no_request_is_among_the_worst_and_the_best() -> None:
    ranking = RequestRanking()
    for name, accepted in (("a", 0), ("b", 1), ("c", 2)):
        for _ in range(10):
            ranking.add(name, accepted)
    ranking.finish()
    assert [request.id for request in ranking.worst] == ["a", "b"]
    assert [request.id for request in ranking.best] == ["c"]


@pytest.mark.parametrize(("batch", "group"), [(1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (256, 8)])
def test_batch_sizes_are_grouped_by_powers_of_two(batch: int, group: int) -> None:
    assert batch_group(batch) == group


def _peak(steps: int) -> int:
    """Bytes held at most while a trace of that many steps is counted."""

    def records() -> object:
        yield Start(
            time=1.7e9,
            pid=1,
            rank=0,
            sglang="0.5.23",
            plugin="0.1.0",
            algorithm="EAGLE3",
            num_steps=3,
            topk=1,
            draft_tokens=4,
        )
        for i in range(steps):
            yield Step(
                time=1.7e9 + i,
                step=i,
                rank=0,
                proposed=3,
                accepted=(i % 4,),
                requests=(f"request-{i // 10}",),
                seconds=0.01 + i % 100 * 1e-4,
            )

    tracemalloc.start()
    try:
        aggregate(records())
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_does_not_grow_with_the_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "_OPEN", 100)
    assert _peak(12_000) < 1.2 * _peak(3_000)
