"""Python stacks of a process that may be stuck: by py-spy, or by a signal that it answers itself.

`faulthandler` writes its answer from the signal's handler, in C: also where native code holds the
interpreter and no thread of Python can run. Nobody is sent a signal that he has no handler for:
it would end him.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO

SIGNAL = signal.SIGUSR2
ANSWER_SECONDS = 5.0
PY_SPY_SECONDS = 30.0
_FAULTHANDLER_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)$')
_PY_SPY_FRAME = re.compile(r"^    (?P<function>\S.*) \((?P<file>[^()]*?):(?P<line>\d+)\)$")
_THREAD = re.compile(r"^(Current thread|Thread) ")
# What begins, from the end of a path: the package it is in.
_INSTALLED = re.compile(r"^.*/(?:site|dist)-packages/|^.*/lib/python[\d.]+/")

_answers: IO[str] | None = None


@dataclass(frozen=True)
class Frame:
    """One call: its function and where it is."""

    function: str
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.function} ({_INSTALLED.sub('', self.file)}:{self.line})"


def answer_file(folder: Path, pid: int) -> Path:
    """Return the file into which the process `pid` answers the signal."""
    return folder / f"stacks-{socket.gethostname()}-{pid}.txt"


def answer_the_signal(folder: Path) -> bool:
    """Have this process write its stacks into its file in `folder` whenever it gets `SIGNAL`.

    Returns False where somebody else has a handler for the signal. Raises `OSError`.
    """
    global _answers
    if _answers is None and signal.getsignal(SIGNAL) is not signal.SIG_DFL:
        return False
    stream = answer_file(folder, os.getpid()).open("w", encoding="utf-8")
    faulthandler.register(SIGNAL, file=stream, all_threads=True)
    if _answers is not None:
        _answers.close()
    _answers = stream  # what is written to must stay open
    return True


def stacks_of(pid: int, folders: list[Path]) -> str:
    """Return the stacks of the process `pid`, or one line that says why there are none.

    `folders` are those in which it may answer the signal.
    """
    refusals = []
    py_spy = _py_spy()
    if py_spy:
        text, refusal = _by_py_spy(py_spy, pid)
        if text:
            return text
        refusals.append(refusal)
    for folder in folders:
        file = answer_file(folder, pid)
        if file.exists() and handles_the_signal(pid):
            text = _by_signal(pid, file)
            if text:
                return text
            refusals.append(f"it did not answer signal {SIGNAL.name} in {ANSWER_SECONDS:.0f} s")
            break
    else:
        refusals.append("it answers no signal of ours")
    return f"no stacks: {'; '.join(filter(None, refusals))}"


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


def handles_the_signal(pid: int) -> bool:
    """Whether the process has a handler for `SIGNAL`; without one it would be ended by it."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) & 1 << (SIGNAL - 1))
    return False


def _by_signal(pid: int, file: Path) -> str:
    try:
        before = file.stat().st_size
        os.kill(pid, SIGNAL)
    except OSError:
        return ""
    deadline, size = time.monotonic() + ANSWER_SECONDS, before
    while time.monotonic() < deadline:
        time.sleep(0.2)
        found = file.stat().st_size
        if found > before and found == size:
            break
        size = found
    with file.open(encoding="utf-8", errors="replace") as stream:
        stream.seek(before)
        return stream.read()


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
