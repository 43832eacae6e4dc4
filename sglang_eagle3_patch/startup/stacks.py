"""Python stacks of a process that may be stuck: by py-spy, or as it answers itself (`answers.py`).

Only a process that listens and stays silent is sent a signal, and only if it has a handler for it:
it would be ended without one, and may crash where Python still runs.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from sglang_eagle3_patch.startup.answers import (
    ANSWER_SECONDS,
    SIGNAL,
    answer_file,
    handles_the_signal,
    own,
    peer,
    socket_name,
)
from sglang_eagle3_patch.startup.processes import process

PY_SPY_SECONDS = 30.0
LONGEST_SECONDS = PY_SPY_SECONDS + 2 * ANSWER_SECONDS  # for one process
_FAULTHANDLER_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)$')
_PY_SPY_FRAME = re.compile(r"^    (?P<function>\S.*) \((?P<file>[^()]*?):(?P<line>\d+)\)$")
_THREAD = re.compile(r"^(Current thread|Thread) ")
# What begins, from the end of a path: the package it is in.
_INSTALLED = re.compile(r"^.*/(?:site|dist)-packages/|^.*/lib/python[\d.]+/")


@dataclass(frozen=True)
class Frame:
    """One call: its function and where it is."""

    function: str
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.function} ({_INSTALLED.sub('', self.file)}:{self.line})"


def stacks_of(pid: int, folders: list[Path]) -> str:
    """Return the stacks of the process `pid`, or one line that says why there are none.

    `folders` are those in which it may answer the signal.
    """
    if pid == os.getpid():
        return own()
    refusals = []
    py_spy = _py_spy()
    if py_spy:
        text, refusal = _by_py_spy(py_spy, pid)
        if text:
            return text
        refusals.append(refusal)
    text, is_silent = _by_asking(pid)
    if is_silent:
        text = _by_signal(pid, folders)
        refusals.append(f"it answered neither within {ANSWER_SECONDS:.0f} s nor {SIGNAL.name}")
    else:
        refusals.append("nothing in it answers us")
    return text or f"no stacks: {'; '.join(filter(None, refusals))}"


def _py_spy() -> str | None:
    beside = Path(sys.executable).with_name("py-spy")
    return shutil.which("py-spy") or (str(beside) if beside.exists() else None)


def _by_py_spy(py_spy: str, pid: int) -> tuple[str, str]:
    try:
        # Not stopping the process that it looks at: nothing of it may depend on being looked at.
        finished = subprocess.run(
            [py_spy, "dump", "--nonblocking", "--full-filenames", "--pid", str(pid)],
            capture_output=True,
            text=True,
            timeout=PY_SPY_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return "", f"py-spy: {error}"
    if finished.returncode == 0 and main_frames(finished.stdout):
        return finished.stdout, ""
    last = (finished.stderr.strip().splitlines() or [f"exit status {finished.returncode}"])[-1]
    return "", f"py-spy: {last}"


def _by_asking(pid: int) -> tuple[str, bool]:
    """Return what the process tells, and whether it is silent: it listens, but no thread of it
    comes to answer."""
    told = []
    with socket.socket(socket.AF_UNIX) as asking:
        asking.settimeout(ANSWER_SECONDS)
        try:
            asking.connect(socket_name(pid))
            if peer(asking)[0] != pid:  # whoever takes a name that is not his
                return "", False
            while part := asking.recv(2**16):
                told.append(part)
        except (TimeoutError, BlockingIOError):  # the latter where many have asked before
            return b"".join(told).decode(errors="replace"), not told
        except OSError:
            return "", False
    return b"".join(told).decode(errors="replace"), False


def _by_signal(pid: int, folders: list[Path]) -> str:
    """Return what `faulthandler` writes of a process whose interpreter is held by native code."""
    found = process(pid)
    files = (answer_file(folder, pid) for folder in folders)
    file = next((file for file in files if file.exists()), None)
    # A process that is stopped is silent too, but would take the signal when it runs Python again.
    if file is None or found is None or found.state in "tT" or not handles_the_signal(pid):
        return ""
    try:
        before = size = file.stat().st_size
        os.kill(pid, SIGNAL)
    except OSError:
        return ""
    deadline = time.monotonic() + ANSWER_SECONDS
    with contextlib.suppress(OSError):  # the file may go, with its process or without
        while time.monotonic() < deadline:
            time.sleep(0.2)
            size, earlier = file.stat().st_size, size
            if size > before and size == earlier:
                break
        with file.open(encoding="utf-8", errors="replace") as stream:
            stream.seek(before)
            return stream.read()
    return ""


def main_frames(text: str) -> list[Frame]:
    """Return the calls of a process's main thread, the innermost first.

    `text` is py-spy's, which names the thread, or faulthandler's, which tells of it last.
    """
    threads: list[tuple[str, list[Frame]]] = []
    for line in text.splitlines():
        found = _FAULTHANDLER_FRAME.match(line) or _PY_SPY_FRAME.match(line)
        if _THREAD.match(line):
            threads.append((line, []))
        elif found and threads:
            frame = Frame(found["function"], found["file"], int(found["line"]))
            threads[-1][1].append(frame)
    named = [frames for title, frames in threads if "MainThread" in title]
    last = threads[-1][1] if threads else []
    return named[0] if named else last


def waits_at(text: str) -> str:
    """Return the line that the main thread is at and, where that is not SGLang's own, the one of
    SGLang's that it was called from; "" when `text` holds no stacks."""
    frames = main_frames(text)
    if not frames:
        return ""
    of_sglang = next((frame for frame in frames if "/sglang/" in f"/{frame.file}"), None)
    if of_sglang is None or of_sglang is frames[0]:
        return str(frames[0])
    return f"{frames[0]}, called from {of_sglang}"
