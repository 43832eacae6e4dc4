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
from sglang_eagle3_patch.startup import answers, stacks, watch
from sglang_eagle3_patch.startup.board import Board
from sglang_eagle3_patch.startup.movement import LEAST_BYTES, Signs
from sglang_eagle3_patch.startup.processes import process
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
        self.watch._signs = SimpleNamespace(  # type: ignore[assignment]
            moved=lambda: self.signs, forget=lambda: None
        )

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


def test_telling_of_a_stall_is_no_movement(
    rank: Rank, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """py-spy reads the memory maps of a process: more than what counts as a movement."""
    file = tmp_path / "maps"
    file.write_bytes(b"0" * 4 * LEAST_BYTES)

    def looks_around(_pid: int, _folders: list[Path]) -> str:
        subprocess.run(["cat", file], stdout=subprocess.DEVNULL, check=True)
        return PY_SPY

    monkeypatch.setattr(stacks, "stacks_of", looks_around)
    rank.watch._signs = Signs()
    with rank.progress.within(Stage.DRAFT_GRAPHS):
        rank.looks(4 * STALL_S)
    assert len(rank.told(logging.WARNING)) == 1
    assert not any("moves again" in line for line in rank.told(logging.INFO))


def test_nor_is_answering_for_stacks(
    rank: Rank, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = 0
    monkeypatch.setattr(answers, "answered", lambda: told)
    rank.watch._signs = Signs()
    with rank.progress.within(Stage.DRAFT_GRAPHS):
        rank.looks(4)
        before = rank.watch._signed
        (tmp_path / "stacks").write_bytes(b"0" * 2 * LEAST_BYTES)
        told = 2 * LEAST_BYTES
        rank.looks(4)
        assert rank.watch._signed == before
        (tmp_path / "stacks").write_bytes(b"0" * 2 * LEAST_BYTES)
        rank.looks(2)
        assert rank.watch._signed == rank.clock.now


@pytest.mark.parametrize("part", ["write", "read", "claim"])
def test_a_folder_that_cannot_be_used_does_not_blind_it(
    rank: Rank, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "no space left on device")

    monkeypatch.setattr(rank.watch.board, part, full)
    with rank.progress.within(Stage.DRAFT_GRAPHS):
        rank.looks(3 * STALL_S)
    (told,) = rank.told(logging.WARNING)
    assert "in: draft decode graph capture." in told


def test_somebody_elses_patience_is_not_ended(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise AssertionError("it may be the user's")

    monkeypatch.setattr(watch.faulthandler, "cancel_dump_traceback_later", fail)
    rank.watch.stall_s = 0
    rank.looks(4)
    rank.progress.idle = True
    rank.looks(4)


class Other:
    """Another rank of the same server, as its file tells of it; the process is a real one."""

    def __init__(self, rank: Rank, folder: Path) -> None:
        self.process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        self.board = Board(folder)
        self.board.own = folder / f"rank-{self.process.pid}.json"
        self.board._clock = rank.clock
        self.rank = rank

    def write(self, **fields: Any) -> None:
        found = process(self.process.pid)
        assert found is not None
        whose = {"pid": self.process.pid, "began": found.began, "name": "scheduler TP1"}
        entry = replace(self.rank.watch._entry(), **whose)
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


def test_a_py_spy_that_hangs_is_not_taken_for_a_held_interpreter(
    rank: Rank, other: Other, monkeypatch: pytest.MonkeyPatch
) -> None:
    armed: list[float] = []
    monkeypatch.setattr(
        watch.faulthandler, "dump_traceback_later", lambda patience, file: armed.append(patience)
    )

    def hangs(pid: int, _folders: list[Path]) -> str:
        rank.clock.now += 0 if pid == os.getpid() else stacks.PY_SPY_SECONDS
        assert rank.clock.now - began < armed[-1] - STALL_S
        return PY_SPY

    monkeypatch.setattr(stacks, "stacks_of", hangs)
    other.write()
    began = rank.clock.now + STALL_S
    rank.looks(STALL_S)
    assert len(rank.told(logging.WARNING)) == 1
    rank.looks(2)
    assert armed[-1] == armed[0] < armed[-2]


def test_a_rank_between_two_stages_is_as_far_as_the_last_one(rank: Rank, other: Other) -> None:
    with rank.progress.within(Stage.TARGET_POOLS):
        other.write(stage="", last=Stage.DRAFT_WEIGHTS.value, text="after draft weights")
        rank.looks(STALL_S)
        other.write(stage="", last=Stage.DRAFT_GRAPHS.value, text="after graphs", since=9, moved=9)
        rank.progress.begin("pool", 1)
        rank.looks(STALL_S)
    with rank.progress.within(Stage.DRAFT_GRAPHS):
        other.write(stage="", last="", text="before its first stage")
        rank.looks(STALL_S)
    behind, ahead, before = rank.told(logging.WARNING)
    assert "in: after draft weights." in behind
    assert "in: target memory pools, pool 1" in ahead
    assert "in: before its first stage." in before


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
    def fail() -> bool:
        raise ValueError("a line of the kernel's that is new")

    rank.watch._signs = SimpleNamespace(moved=fail)  # type: ignore[assignment]
    for _ in range(3):
        rank.watch._look_safely()
    (told,) = rank.told(logging.WARNING)
    assert "a line of the kernel's that is new" in told


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


def test_it_watches_though_it_cannot_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_folder: Path) -> None:
        raise OSError(28, "no space left on device")

    monkeypatch.setattr(answers, "answer", full)
    started = Watch(Progress(), name="scheduler", port=1, folder=tmp_path, stall_s=1)
    started.start()
    assert started._thread.is_alive()
    started.end()
    started._thread.join(5)


def test_a_thread_that_does_not_start_leaves_no_handler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise RuntimeError("can't start new thread")

    before = list(logging.getLogger().handlers)
    watched = Watch(Progress(), name="scheduler", port=1, folder=tmp_path, stall_s=1)
    monkeypatch.setattr(watched._thread, "start", fail)
    with pytest.raises(RuntimeError, match="new thread"):
        watched.start()
    assert logging.getLogger().handlers == before


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
