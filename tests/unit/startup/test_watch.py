"""The watch, look by look, with a clock of the test's: no thread runs, and stacks are made up."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sglang_eagle3_patch.settings import PREFIX, Settings, SettingsError
from sglang_eagle3_patch.startup import stacks, watch
from sglang_eagle3_patch.startup.board import Board
from sglang_eagle3_patch.startup.stages import Progress, Stage
from sglang_eagle3_patch.startup.watch import Watch
from tests.unit.startup.test_stacks import PY_SPY
from tests.unit.startup.test_stages import Clock

STALL_S = 20


class Rank:
    """A watch that is looked through by hand, and what it told."""

    def __init__(self, folder: Path, records: pytest.LogCaptureFixture) -> None:
        self.clock, self.records = Clock(), records
        self.progress = Progress(self.clock)
        self.watch = Watch(
            self.progress,
            name="scheduler TP0",
            port=30000,
            folder=folder,
            stall_s=STALL_S,
            switches=lambda: {"--cuda-graph-max-bs-decode"},
            clock=self.clock,
        )
        self.signs = False
        self.watch._signs = SimpleNamespace(moved=lambda: self.signs)  # type: ignore[assignment]

    def looks(self, seconds: float, every: float = 2.0) -> None:
        """Let time go by with a look every so often."""
        for _ in range(round(seconds / every)):
            self.clock.now += every
            self.watch.look()

    def told(self, level: int) -> list[str]:
        return [record.getMessage() for record in self.records.records if record.levelno == level]


@pytest.fixture
def rank(tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Rank:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(stacks, "stacks_of", lambda pid, folders: PY_SPY)
    monkeypatch.setattr(watch, "gpu_lines", lambda: ["GPU 0: 0 % busy"])
    monkeypatch.setattr(watch.faulthandler, "dump_traceback_later", lambda *_, **__: None)
    return Rank(tmp_path, caplog)


def test_a_stall_is_told_once_with_all_there_is_to_know(rank: Rank) -> None:
    with rank.progress.within(Stage.DRAFT_GRAPHS):
        rank.progress.begin("batch size", 64)
        rank.watch.last_lines.emit(
            logging.LogRecord("sglang", 20, "", 1, "Capture draft cuda graph begin.", (), None)
        )
        rank.looks(STALL_S - 2)
        assert rank.told(logging.WARNING) == []
        rank.looks(200)
    (told,) = rank.told(logging.WARNING)
    for part in (
        "the start has not moved for 20 s, in: draft decode graph capture, batch size 64",
        "This only observes: no process is ended by it.",
        f"scheduler TP0 (pid {os.getpid()}): draft decode graph capture, batch size 64 (0 done), "
        "20 s in it, waits at barrier (torch/distributed/distributed_c10d.py:77), called from "
        "y (sglang/srt/model_executor/model_runner.py:12)",
        "GPU 0: 0 % busy",
        "(1) tell capture from the model: start once with --disable-cuda-graph",
        "--cuda-graph-max-bs-decode",
        "Capture draft cuda graph begin.",
        'Thread 77 (idle): "MainThread"',
    ):
        assert part in told


def test_a_slow_start_raises_no_alarm(rank: Rank) -> None:
    with rank.progress.within(Stage.TARGET_GRAPHS):
        for size in (64, 32, 16, 8):
            rank.progress.begin("batch size", size)
            rank.looks(STALL_S - 1, every=1)
    assert rank.told(logging.WARNING) == []


def test_nor_does_one_that_reads_for_long(rank: Rank) -> None:
    rank.signs = True
    with rank.progress.within(Stage.TARGET_WEIGHTS):
        rank.looks(10 * STALL_S)
        assert rank.told(logging.WARNING) == []
        rank.signs = False
        rank.looks(STALL_S)
    assert len(rank.told(logging.WARNING)) == 1


def test_a_second_stall_is_told_again(rank: Rank) -> None:
    with rank.progress.within(Stage.TARGET_GRAPHS):
        rank.looks(2 * STALL_S)
        rank.progress.begin("batch size", 8)
        rank.looks(2 * STALL_S)
    first, second = rank.told(logging.WARNING)
    assert "in: target graph capture." in first
    assert "in: target graph capture, batch size 8" in second
    assert sum("moves again" in line for line in rank.told(logging.INFO)) == 1


class Other:
    """Another rank of the same server, as its file tells of it; the process is a real one."""

    def __init__(self, rank: Rank, folder: Path) -> None:
        self.process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        self.board = Board(folder)
        self.board.own = folder / f"rank-{self.process.pid}.json"
        self.rank = rank

    def write(self, **fields: Any) -> None:
        entry = replace(self.rank.watch._entry(), pid=self.process.pid, name="scheduler TP1")
        self.board.write(replace(entry, **fields))


@pytest.fixture
def other(rank: Rank, tmp_path: Path) -> Iterator[Other]:
    other = Other(rank, tmp_path)
    yield other
    other.process.kill()
    other.process.wait()


def test_a_rank_that_waits_for_one_that_moves_is_no_stall(rank: Rank, other: Other) -> None:
    for _ in range(10):
        other.write(stage=Stage.TARGET_WEIGHTS.value, moved=rank.clock.now)
        rank.looks(STALL_S / 2)
    assert rank.told(logging.WARNING) == []
    other.write(idle=True)  # done, and waiting for a request: it need not move
    rank.looks(STALL_S)
    (told,) = rank.told(logging.WARNING)
    assert "scheduler TP1" in told


def test_the_rank_that_is_behind_names_the_stage(rank: Rank, other: Other) -> None:
    with rank.progress.within(Stage.DRAFT_GRAPHS):
        other.write(stage=Stage.TARGET_WEIGHTS.value, text="target weights, tensor 7", log=["read"])
        rank.looks(STALL_S)
    (told,) = rank.told(logging.WARNING)
    assert "in: target weights, tensor 7." in told
    assert "copy the checkpoint to a local disk" in told
    assert "scheduler TP0 (pid" in told
    assert "scheduler TP1 logged last:\n    read" in told


def test_a_stall_that_another_rank_has_told_is_not_told_again(
    rank: Rank, other: Other, tmp_path: Path
) -> None:
    other.write(moved=rank.progress.moved)
    assert Board(tmp_path).claim(rank.watch._entry(), rank.progress.moved)
    rank.looks(3 * STALL_S)
    assert rank.told(logging.WARNING) == []


def test_waiting_for_a_request_is_no_stall_and_costs_no_look_around(rank: Rank) -> None:
    def fail() -> bool:
        raise AssertionError("looked")

    rank.progress.idle = True
    rank.watch._signs = SimpleNamespace(moved=fail)  # type: ignore[assignment]
    rank.looks(10 * STALL_S)
    assert rank.told(logging.WARNING) == []


def test_progress_is_told_every_few_seconds(rank: Rank) -> None:
    rank.progress.memory = "1.0 of 80.0 GiB of GPU memory free"
    with rank.progress.within(Stage.TARGET_WEIGHTS):
        for number in range(1, 31):
            rank.progress.begin("tensor", number)
            rank.looks(1, every=1)
    lines = rank.told(logging.INFO)
    assert len(lines) == 6
    assert lines[0].endswith(
        "scheduler TP0: target weights, tensor 5, 5 s in it, 5 s since the start, "
        "1.0 of 80.0 GiB of GPU memory free"
    )


def test_a_look_that_fails_is_told_once_and_costs_nothing(rank: Rank) -> None:
    def full(_entry: object) -> None:
        raise OSError("no space left on device")

    assert rank.watch.board is not None
    rank.watch.board.write = full  # type: ignore[method-assign]
    for _ in range(3):
        rank.watch._look_safely()
    (told,) = rank.told(logging.WARNING)
    assert "no space left on device" in told


def test_a_record_that_cannot_be_written_is_passed_over(rank: Rank) -> None:
    record = logging.LogRecord("sglang", 20, "", 1, "%d", ("no number",), None)
    rank.watch.last_lines.emit(record)
    assert not rank.watch.last_lines.lines


def test_the_option_is_read() -> None:
    assert Settings.from_environment({}).stall_s == 300
    assert Settings.from_environment({f"{PREFIX}_OPTIONS": "stall_s=0"}).stall_s == 0
    with pytest.raises(SettingsError, match="stall_s='-1' is not a number of seconds"):
        Settings.from_environment({f"{PREFIX}_OPTIONS": "stall_s=-1"})


def test_stall_s_0_tells_of_none(rank: Rank) -> None:
    rank.watch.stall_s = 0
    rank.looks(1000)
    assert rank.told(logging.WARNING) == []
    assert rank.watch._pause() == rank.watch.look_seconds == 5


@pytest.mark.parametrize(("stall_s", "seconds"), [(300, 5), (16, 2), (8, 1), (2, 1)])
def test_it_never_looks_more_than_once_a_second(rank: Rank, stall_s: int, seconds: float) -> None:
    rank.watch.stall_s = stall_s
    assert rank.watch.look_seconds == seconds
    rank.clock.now += stall_s - 0.5
    assert rank.watch._pause() == 1


# A real start: the watch's own thread, and native code that keeps the interpreter from it.
HELD = """
import ctypes, sys, time
from pathlib import Path
from sglang_eagle3_patch.startup.stages import Progress, Stage
from sglang_eagle3_patch.startup.watch import Watch
def waits_here():
    ctypes.PyDLL(None).sleep(30)
progress = Progress()
watch = Watch(progress, name="scheduler", port=1, folder=Path(sys.argv[1]), stall_s=1)
watch.start()
with progress.within(Stage.DRAFT_GRAPHS):
    time.sleep(1.5)
    waits_here()
"""


def test_a_held_interpreter_is_told_by_faulthandlers_own_thread(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HELD, str(tmp_path)], stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            lines.append(line)
            if "in waits_here" in line:
                break
        process.send_signal(signal.SIGKILL)
    assert any(line.startswith("Timeout (0:00:0") for line in lines), lines


def test_a_watch_that_ends_leaves_nothing(tmp_path: Path) -> None:
    before = list(logging.getLogger().handlers)
    progress = Progress()
    ended = Watch(progress, name="scheduler", port=1, folder=tmp_path, stall_s=1)
    ended.start()
    ended.end()
    ended._thread.join(5)
    assert not ended._thread.is_alive()
    assert logging.getLogger().handlers == before
    assert list(tmp_path.glob("rank-*")) == []
