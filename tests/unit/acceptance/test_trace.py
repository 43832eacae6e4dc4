"""A trace is whole after all that can happen to a process and a disk."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from sglang_eagle3_patch.acceptance import trace
from sglang_eagle3_patch.acceptance.trace import StepRecord, TraceWriter
from sglang_eagle3_patch.acceptance.trace_reader import Step, read_trace

START = {
    "sglang": "0.5.23",
    "plugin": "0.1.0",
    "algorithm": "EAGLE3",
    "num_steps": 3,
    "topk": 1,
    "draft_tokens": 4,
}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "FLUSH_SECONDS", 0.02)


def record(step: int, accepted: Sequence[int] = (3, 0, 1)) -> StepRecord:
    return StepRecord(1_700_000_000.25 + step, step, 3, list(accepted), None, 0.5)


def put(writer: TraceWriter, first: int, last: int) -> None:
    for step in range(first, last + 1):
        writer.put(record(step))


def numbers(path: Path) -> list[int]:
    return [step.step for step in read_trace([path]).steps]


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_what_is_put_is_read(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "trace.jsonl"
    writer = TraceWriter(path, START)
    writer.put(StepRecord(1_700_000_000.25, 1, 3, [3, 0], ["a", 'b"\n'], None))
    writer.put(StepRecord(1_700_000_001.25, 2, 0, [0], ["ä"], 0.0625))
    writer.close()
    told = read_trace([path])
    (start,) = told.starts
    assert (start.pid, start.rank, start.sglang, start.num_steps) == (os.getpid(), 0, "0.5.23", 3)
    assert told.steps == [
        Step(
            time=1_700_000_000.25,
            step=1,
            rank=0,
            proposed=3,
            accepted=(3, 0),
            requests=("a", 'b"\n'),
            seconds=None,
            start=start,
        ),
        Step(
            time=1_700_000_001.25,
            step=2,
            rank=0,
            proposed=0,
            accepted=(0,),
            requests=("ä",),
            seconds=0.0625,
            start=start,
        ),
    ]
    assert (told.dropped, told.unreadable, writer.dropped) == (0, 0, 0)
    assert told.steps[0].batch == 2
    assert json.loads(path.read_text().splitlines()[1])["batch"] == 2


def test_without_a_step_there_is_no_file(tmp_path: Path) -> None:
    TraceWriter(tmp_path / "trace.jsonl", START).close()
    assert list(tmp_path.iterdir()) == []


def test_ranks_have_files_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    for rank in range(3):
        writer = TraceWriter(path, START, rank=rank)
        writer.put(record(rank + 1))
        writer.close()
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "trace.dp1.jsonl",
        "trace.dp2.jsonl",
        "trace.jsonl",
    ]
    told = read_trace([path])
    assert [(step.step, step.rank) for step in told.steps] == [(1, 0), (2, 1), (3, 2)]
    assert numbers(tmp_path / "trace.dp1.jsonl") == [2]


class TestRotation:
    def test_parts_are_kept_up_to_a_number_and_read_in_order(self, tmp_path: Path) -> None:
        path = tmp_path / "trace.jsonl"
        writer = TraceWriter(path, START, longest_part=1_000, parts=3)
        put(writer, 1, 100)
        writer.close()
        assert sorted(file.name for file in tmp_path.iterdir()) == [
            "trace.jsonl",
            "trace.jsonl.1",
            "trace.jsonl.2",
        ]
        told = read_trace([path])
        assert numbers(path) == list(range(101 - len(told.steps), 101))
        assert len(told.steps) > 12
        assert all(step.start is not None for step in told.steps)
        for file in tmp_path.iterdir():
            assert file.stat().st_size <= 1_000
            assert json.loads(file.read_text().splitlines()[0])["kind"] == "start"

    def test_a_single_part_begins_anew(self, tmp_path: Path) -> None:
        path = tmp_path / "trace.jsonl"
        writer = TraceWriter(path, START, longest_part=1_000, parts=1)
        put(writer, 1, 100)
        writer.close()
        assert [file.name for file in tmp_path.iterdir()] == ["trace.jsonl"]
        assert numbers(path)[-1] == 100

    def test_a_step_longer_than_a_part_is_written_all_the_same(self, tmp_path: Path) -> None:
        path = tmp_path / "trace.jsonl"
        writer = TraceWriter(path, START, longest_part=10, parts=5)
        put(writer, 1, 4)
        writer.close()
        assert numbers(path) == [1, 2, 3, 4]

    def test_a_restart_goes_on_where_there_is_room(self, tmp_path: Path) -> None:
        path = tmp_path / "trace.jsonl"
        for first in (1, 101):
            writer = TraceWriter(path, START, longest_part=20_000)
            put(writer, first, first + 99)
            writer.close()
        assert numbers(path) == list(range(1, 201))
        assert len(read_trace([path]).starts) == len(list(tmp_path.iterdir())) + 1

    def test_a_file_moved_away_by_another_is_let_go(self, tmp_path: Path) -> None:
        path, moved = tmp_path / "trace.jsonl", tmp_path / "moved"
        writer = TraceWriter(path, START)
        put(writer, 1, 3)
        wait_for(lambda: path.exists() and numbers(path) == [1, 2, 3])
        path.rename(moved)
        put(writer, 4, 6)
        writer.close()
        assert (numbers(moved), numbers(path)) == ([1, 2, 3], [4, 5, 6])


class TestTrouble:
    """The real disk's, as far as a test can have it."""

    def test_a_removed_folder_drops_counts_and_recovers(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO)
        folder, away = tmp_path / "folder", tmp_path / "away"
        path, told = folder / "trace.jsonl", []
        writer = TraceWriter(path, START, on_drop=told.append)
        put(writer, 1, 3)
        wait_for(lambda: path.exists() and numbers(path) == [1, 2, 3])
        folder.rename(away)
        for step in range(4, 9):
            writer.put(record(step))
            wait_for(lambda step=step: writer.dropped == step - 3)
        assert not folder.exists()
        away.rename(folder)
        wait_for(lambda: read_trace([path]).dropped == 5)
        put(writer, 9, 10)
        writer.close()
        assert numbers(path) == [1, 2, 3, 9, 10]
        assert sum(told) == read_trace([path]).dropped == 5
        levels = [record.levelname for record in caplog.records]
        assert levels == ["WARNING", "INFO"]
        assert "No such file" in caplog.messages[0]
        assert "Fix:" in caplog.messages[0]

    @pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no full disk to be had")
    def test_a_full_disk_drops_and_counts(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        path = tmp_path / "trace.jsonl"
        path.symlink_to("/dev/full")
        writer = TraceWriter(path, START)
        put(writer, 1, 5)
        wait_for(lambda: writer.dropped == 5)
        path.unlink()
        put(writer, 6, 7)
        writer.close()
        told = read_trace([path])
        assert ([step.step for step in told.steps], told.dropped) == ([6, 7], 5)
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        assert "No space left" in caplog.messages[0]

    def test_a_disk_that_fills_in_the_middle_of_a_line(self, tmp_path: Path) -> None:
        """A limit on a file's size, which the kernel keeps as it keeps that of a disk."""
        path = tmp_path / "trace.jsonl"
        script = f"""
import resource, signal, time
from pathlib import Path
from sglang_eagle3_patch.acceptance import trace
from tests.unit.acceptance.test_trace import START, put, wait_for
trace.FLUSH_SECONDS = 0.02
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
writer = trace.TraceWriter(Path({str(path)!r}), START)
put(writer, 1, 50)
wait_for(lambda: writer.dropped > 0)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
put(writer, 51, 60)
writer.close()
"""
        subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
        told = read_trace([path])
        written = [step.step for step in told.steps]
        kept = 60 - told.dropped - 10
        assert 0 < told.dropped < 50
        assert written == [*range(1, kept + 1), *range(51, 61)]
        assert told.unreadable == 1

    def test_a_full_queue_never_waits(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(trace, "FLUSH_SECONDS", 60)
        monkeypatch.setattr(trace, "LONGEST_QUEUE", 10)
        path = tmp_path / "trace.jsonl"
        writer = TraceWriter(path, START)
        put(writer, 1, 15)
        writer.close()
        told = read_trace([path])
        assert [step.step for step in told.steps] == list(range(1, 11))
        assert (told.dropped, writer.dropped) == (5, 5)


def test_a_process_killed_while_writing_leaves_a_readable_trace(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    script = f"""
import time
from pathlib import Path
from sglang_eagle3_patch.acceptance import trace
from tests.unit.acceptance.test_trace import START, record
writer = trace.TraceWriter(Path({str(path)!r}), START)
for step in range(1, 10**9):
    writer.put(record(step, range(256)))
    time.sleep(0.0005)
"""
    process = subprocess.Popen([sys.executable, "-c", script])
    wait_for(lambda: path.exists() and path.stat().st_size > 200_000)
    killed_at = time.time()
    process.send_signal(signal.SIGKILL)
    process.wait()
    told = read_trace([path])
    assert [step.step for step in told.steps] == list(range(1, len(told.steps) + 1))
    assert told.unreadable <= 1
    assert killed_at - path.stat().st_mtime < 1
    # The next process closes off what may be torn.
    with path.open("ab") as stream:
        stream.write(b'{"time":17')
    writer = TraceWriter(path, START)
    writer.put(record(1))
    writer.close()
    again = read_trace([path])
    assert len(again.steps) == len(told.steps) + 1
    assert again.unreadable == told.unreadable + 1
    assert len(again.starts) == 2
