"""What hooks note of a start, and what is read from it."""

from __future__ import annotations

from sglang_eagle3_patch.startup.stages import Progress, Stage


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_stage_its_items_and_what_comes_after() -> None:
    clock = Clock()
    progress = Progress(clock)
    assert progress.text() == "before its first stage"
    clock.now += 1
    with progress.within(Stage.DRAFT_GRAPHS):
        assert progress.text() == "draft decode graph capture"
        for size in (8, 4, 2):
            clock.now += 2
            progress.begin("batch size", size)
        assert progress.text() == "draft decode graph capture, batch size 2 (2 done)"
        assert (progress.since, progress.moved) == (101, 107)
        clock.now += 3
    assert progress.text() == "after draft decode graph capture"
    assert progress.moved == clock.now
    assert progress.summary() == "draft decode graph capture 9.0 s"


def test_tensors_are_numbered_themselves() -> None:
    progress = Progress()
    with progress.within(Stage.TARGET_WEIGHTS):
        for number in (1, 2, 3):
            progress.begin("tensor", number)
        assert progress.text() == "target weights, tensor 3"


def test_a_stage_within_itself_is_one_and_its_memory_is_read_outside_of_captures() -> None:
    clock, read = Clock(), []

    def memory() -> str:
        read.append(progress.stage)
        return "1 GiB"

    progress = Progress(clock)
    with progress.within(Stage.DRAFT_GRAPHS, memory):
        with progress.within(Stage.DRAFT_GRAPHS, memory):
            clock.now += 5
        with progress.within(Stage.DRAFT_ATTENTION, memory):
            clock.now += 1
        assert read == []
        assert progress.stage is Stage.DRAFT_GRAPHS
        assert progress.moved == clock.now
    assert progress.ordered() == [(Stage.DRAFT_ATTENTION, 1.0), (Stage.DRAFT_GRAPHS, 6.0)]
    assert read == [Stage.DRAFT_GRAPHS]


def test_a_stage_that_fails_is_left() -> None:
    progress = Progress()
    try:
        with progress.within(Stage.DRAFT_POOLS):
            raise MemoryError
    except MemoryError:
        pass
    assert progress.stage is None
    assert progress.last is Stage.DRAFT_POOLS
