"""What the ranks of a node tell one another."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from sglang_eagle3_patch.startup import board
from sglang_eagle3_patch.startup.board import Board, Entry, folder_for
from sglang_eagle3_patch.startup.processes import process


def began(pid: int) -> int:
    found = process(pid)
    assert found is not None
    return found.began


HERE = Entry(
    pid=os.getpid(),
    began=began(os.getpid()),
    name="scheduler TP0",
    port=30000,
    parent=os.getppid(),
    stage="draft weights",
    last="target weights",
    text="draft weights, tensor 3",
    since=1.0,
    moved=2.5,
    log=("a line",),
    host=socket.gethostname(),
)


def put(folder: Path, entry: Entry) -> None:
    other = Board(folder)
    if entry.pid == os.getpid():  # as if it were several
        other.own = folder / f"rank-{entry.host}-{entry.name[-1]}-{entry.pid}.json"
    else:
        other.own = folder / f"rank-{entry.host}-{entry.pid}.json"
    other.write(entry)


def test_ranks_of_the_same_server_that_run_are_read_in_order(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    put(tmp_path, replace(HERE, name="scheduler TP1"))
    put(tmp_path, HERE)
    put(tmp_path, replace(HERE, name="scheduler TP2", pid=ended.pid))
    put(tmp_path, replace(HERE, name="scheduler TP3", port=1))
    put(tmp_path, replace(HERE, name="scheduler TP4", parent=1))
    put(tmp_path, replace(HERE, name="scheduler TP5", host="elsewhere"))
    # The number of one that ended, given to another; and a file from before the machine's restart.
    put(tmp_path, replace(HERE, name="scheduler TP6", began=HERE.began - 1))
    put(tmp_path, replace(HERE, name="scheduler TP7", moved=time.monotonic() + 1000))
    (tmp_path / "rank-x.json").write_text('{"pid": 1}')
    (tmp_path / "rank-y.json").write_text("half of one {")
    found = Board(tmp_path).read(HERE.server)
    assert [rank.name for rank in found] == ["scheduler TP0", "scheduler TP1"]
    assert found[0] == replace(HERE, log=found[0].log)
    assert list(found[0].log) == ["a line"]


def test_a_stall_is_told_by_the_first_alone(tmp_path: Path) -> None:
    assert Board(tmp_path).claim(HERE, 2.5)
    assert not Board(tmp_path).claim(replace(HERE, name="scheduler TP1"), 2.5)
    assert Board(tmp_path).claim(HERE, 9.5)


def test_clearing_leaves_what_others_still_need(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    put(tmp_path, replace(HERE, pid=ended.pid))
    put(tmp_path, replace(HERE, pid=os.getppid(), began=began(os.getppid())))
    own = Board(tmp_path)
    own.write(HERE)
    own.claim(HERE, 1.0)
    own.claim(replace(HERE, parent=1), 1.0)
    for name in (
        f"stacks-{HERE.host}-{os.getpid()}-{HERE.began}.txt",
        f"stacks-{HERE.host}-{os.getpid()}-{HERE.began - 1}.txt",
        f"rank-other-{HERE.host}-{ended.pid}.json",
        f"told-other-{HERE.host}-30000-{ended.pid}-1.00",
    ):
        (tmp_path / name).touch()
    (tmp_path / "report.json").write_text("{}")
    own.clear()
    left = [file.name for file in tmp_path.iterdir()]
    host, parent = socket.gethostname(), os.getppid()
    assert set(left) == {
        f"rank-{host}-{parent}.json",
        f"rank-other-{host}-{ended.pid}.json",
        "report.json",
        f"stacks-{host}-{os.getpid()}-{HERE.began}.txt",
        f"told-{host}-30000-{parent}-1.00",
        f"told-other-{host}-30000-{ended.pid}-1.00",
    }


def test_a_folder_that_is_gone_has_nothing_to_clear(tmp_path: Path) -> None:
    Board(tmp_path / "gone").clear()


def test_the_folder_is_the_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert folder_for(str(tmp_path / "status")) == tmp_path / "status" / "startup"
    monkeypatch.setattr(board.tempfile, "gettempdir", lambda: str(tmp_path))
    own = folder_for(None)
    assert own.stat().st_mode & 0o777 == 0o700
    own.rmdir()
    own.symlink_to(tmp_path / "status")
    with pytest.raises(PermissionError, match="somebody else"):
        folder_for(None)
