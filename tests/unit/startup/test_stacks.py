"""Stacks of real processes: by py-spy, by the signal, and what is said where neither answers."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sglang_eagle3_patch import cli
from sglang_eagle3_patch.commands import stacks as command
from sglang_eagle3_patch.startup import answers, stacks

# Native code that keeps the interpreter: no Python thread of the process runs from there on.
HOLDS_THE_INTERPRETER = """
import ctypes, sys
from pathlib import Path
from sglang_eagle3_patch.startup import answers
def waits_here():
    while True:  # a signal ends the call
        ctypes.PyDLL(None).sleep(60)
answers.answer(Path(sys.argv[1]))
print("ready", flush=True)
waits_here()
"""
# Python that runs, in two threads: frames come and go all the time.
RUNS = """
import sys, threading
from pathlib import Path
from sglang_eagle3_patch.startup import answers
def calls(depth):
    return sum(calls(depth - 1) for _ in range(2)) if depth else 1
def waits_here():
    while True:
        calls(8)
answers.answer(Path(sys.argv[1]))
threading.Thread(target=waits_here, daemon=True).start()
print("ready", flush=True)
waits_here()
"""
ANSWERS_NOTHING = "import time; print('ready', flush=True); time.sleep(60)"


@contextlib.contextmanager
def running(code: str, *arguments: str) -> Iterator[int]:
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.5)
        yield process.pid
        assert process.poll() is None, "it was ended by being looked at"
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # with what it started
        process.wait()
        process.stdout.close()


@pytest.fixture
def without_py_spy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks, "_py_spy", lambda: None)


@pytest.mark.usefixtures("without_py_spy")
def test_a_process_whose_interpreter_is_held_answers_the_signal(tmp_path: Path) -> None:
    with running(HOLDS_THE_INTERPRETER, str(tmp_path)) as pid:
        text = stacks.stacks_of(pid, [tmp_path / "elsewhere", tmp_path])
        assert stacks.waits_at(text) == "waits_here (<string>:7)"
        # Each time anew, not what it answered before.
        again = stacks.stacks_of(pid, [tmp_path])
        assert again.count("waits_here") == 1


@pytest.mark.usefixtures("without_py_spy")
def test_a_process_that_runs_python_is_asked_and_sent_no_signal(tmp_path: Path) -> None:
    """The signal's handler walks frames that change: it ended such a process in a few hundred."""
    with running(RUNS, str(tmp_path)) as pid:
        for _ in range(30):
            assert "waits_here" in stacks.stacks_of(pid, [tmp_path])
        assert answers.answer_file(tmp_path, pid).read_text() == ""


@pytest.mark.usefixtures("without_py_spy")
def test_a_stopped_process_is_sent_no_signal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(RUNS, str(tmp_path)) as pid:
        os.kill(pid, signal.SIGSTOP)
        os.waitpid(pid, os.WUNTRACED)
        with monkeypatch.context() as impatient:
            impatient.setattr(stacks, "ANSWER_SECONDS", 0.5)
            assert "answered neither" in stacks.stacks_of(pid, [tmp_path])
        os.kill(pid, signal.SIGCONT)
        assert "waits_here" in stacks.stacks_of(pid, [tmp_path])
        assert answers.answer_file(tmp_path, pid).read_text() == ""


def test_own_stacks_are_written_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("a signal was sent, or py-spy was asked")

    monkeypatch.setattr(stacks, "_py_spy", fail)
    monkeypatch.setattr(stacks.os, "kill", fail)
    text = stacks.stacks_of(os.getpid(), [])
    assert "test_own_stacks_are_written_at_once" in text


HANDLES_IT_HIMSELF = """
import faulthandler, os, signal, sys, time
from pathlib import Path
from sglang_eagle3_patch.startup import answers
users = open(sys.argv[2], "w")
faulthandler.register(signal.SIGUSR2, file=users)
answers.answer(Path(sys.argv[1]))
os.kill(os.getpid(), signal.SIGUSR2)
print("ready", flush=True)
time.sleep(60)
"""


@pytest.mark.usefixtures("without_py_spy")
def test_a_handler_of_somebody_elses_is_left_to_him(tmp_path: Path) -> None:
    with running(HANDLES_IT_HIMSELF, str(tmp_path), str(tmp_path / "users")) as pid:
        assert "<module>" in (tmp_path / "users").read_text()
        assert not answers.answer_file(tmp_path, pid).exists()
        assert "<module>" in stacks.stacks_of(pid, [tmp_path])  # it is asked all the same


@pytest.mark.usefixtures("without_py_spy")
def test_an_answer_file_that_goes_costs_only_the_stacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stacks, "ANSWER_SECONDS", 0.5)
    with running(HOLDS_THE_INTERPRETER, str(tmp_path)) as pid:
        file = answers.answer_file(tmp_path, pid)
        monkeypatch.setattr(stacks.time, "sleep", lambda _: file.unlink(missing_ok=True))
        assert stacks.stacks_of(pid, [tmp_path]).startswith("no stacks: it answered neither")


def test_who_takes_the_name_of_another_is_not_heard() -> None:
    other = 2**22 + 1
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(answers.socket_name(other))
        listener.listen()
        assert stacks._by_asking(other) == ("", False)


@pytest.mark.usefixtures("without_py_spy")
def test_who_has_no_handler_is_sent_no_signal(tmp_path: Path) -> None:
    with running(ANSWERS_NOTHING) as pid:
        assert stacks.stacks_of(pid, [tmp_path]) == "no stacks: nothing in it answers us"
        answers.answer_file(tmp_path, pid).touch()
        assert stacks.stacks_of(pid, [tmp_path]).startswith("no stacks: ")


@pytest.mark.skipif(stacks._py_spy() is None, reason="py-spy is not installed")
def test_py_spy_is_asked_first(tmp_path: Path) -> None:
    with running(HOLDS_THE_INTERPRETER, str(tmp_path)) as pid:
        text = stacks.stacks_of(pid, [tmp_path])
        assert text.startswith(f"Process {pid}") or "Current thread" in text
        assert stacks.waits_at(text) == "waits_here (<string>:7)"


def test_a_py_spy_that_may_not_look_gives_way_to_the_signal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuses = tmp_path / "py-spy"
    refuses.write_text("#!/bin/sh\necho 'Permission Denied: try again with sudo' >&2; exit 1\n")
    refuses.chmod(0o755)
    monkeypatch.setattr(stacks, "_py_spy", lambda: str(refuses))
    with running(HOLDS_THE_INTERPRETER, str(tmp_path)) as pid:
        assert "waits_here" in stacks.waits_at(stacks.stacks_of(pid, [tmp_path]))
    with running(ANSWERS_NOTHING) as pid:
        assert "Permission Denied" in stacks.stacks_of(pid, [tmp_path])


FAULTHANDLER = """\
Thread 0x00007f01 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 331 in wait
  File "/v/lib/python3.11/site-packages/sglang_eagle3_patch/startup/watch.py", line 9 in _run

Current thread 0x00007f02 (most recent call first):
  File "/v/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 77 in barrier
  File "/v/lib/python3.11/site-packages/sglang_eagle3_patch/hooks/startup_watch.py", line 5 in x
  File "/v/lib/python3.11/site-packages/sglang/srt/model_executor/model_runner.py", line 12 in y
  File "<string>", line 1 in <module>
"""
PY_SPY = """\
Process 77: sglang::scheduler_TP0
Python v3.11.9 (/venv/bin/python3.11)

Thread 77 (idle): "MainThread"
    barrier (torch/distributed/distributed_c10d.py:77)
    y (sglang/srt/model_executor/model_runner.py:12)
    <module> (<string>:1)
Thread 78 (idle): "startup-watch"
    wait (threading.py:331)
"""


@pytest.mark.parametrize("text", [FAULTHANDLER, PY_SPY])
def test_the_main_threads_line_is_read_from_both(text: str) -> None:
    assert stacks.waits_at(text) == (
        "barrier (torch/distributed/distributed_c10d.py:77), called from "
        "y (sglang/srt/model_executor/model_runner.py:12)"
    )


def test_text_without_stacks_has_no_line() -> None:
    assert stacks.waits_at("no stacks: py-spy: Permission denied") == ""


def test_the_command_looks_at_every_process_below(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SGLANG_EAGLE3_PATCH_STATUS_DIR", str(tmp_path))
    (tmp_path / "startup").mkdir()
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', *sys.argv[1:]])"
    with running(code, HOLDS_THE_INTERPRETER, str(tmp_path / "startup")) as pid:
        assert command.run(argparse.Namespace(server=pid)) == 0
    shown = capsys.readouterr().out
    assert f"(pid {pid})" in shown
    assert "is at waits_here (<string>:7)" in shown


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may look at another user's process")
def test_the_command_looks_into_the_default_folder_of_the_servers_user(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    user, place = 65534, Path(tempfile.mkdtemp())
    monkeypatch.setenv("TMPDIR", str(place))
    monkeypatch.delenv("SGLANG_EAGLE3_PATCH_STATUS_DIR", raising=False)
    process = subprocess.Popen(["sleep", "60"], user=user)
    try:
        folder = place / f"sglang-eagle3-patch-{user}"
        assert command._folders(process.pid, [process.pid]) == []
        assert list(place.iterdir()) == []  # looking makes none
        folder.mkdir()
        os.chown(folder, user, user)
        assert command._folders(process.pid, [process.pid]) == [folder]
        os.chown(folder, user - 1, user)
        assert command._folders(process.pid, [process.pid]) == []  # a third one's
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(place)


def test_the_command_says_who_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["stacks", "--server", str(2**22 + 1)]) == 2
    assert "there is no process 4194305. Fix:" in capsys.readouterr().err


@pytest.mark.skipif(os.geteuid() == 0, reason="root may look at everybody's processes")
def test_the_command_says_whose_it_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.run(argparse.Namespace(server=1)) == 2
    assert "another user's" in capsys.readouterr().err
