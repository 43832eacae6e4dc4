"""How a process answers for its Python stacks when another one asks for them.

A thread of it waits on a socket, and writes them with the interpreter in hand, so that no frame
changes under it. The handler of a signal needs no interpreter, but it walks frames that change
while Python runs, and may crash the process by it. So it is for the one case in which no thread of
Python can answer: native code holds the interpreter, and every frame stays as it is.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import socket
import struct
import tempfile
import threading
import time
from pathlib import Path
from typing import IO

from sglang_eagle3_patch.startup.processes import process

SIGNAL = signal.SIGUSR2
ANSWER_SECONDS = 5.0

_signalled: IO[str] | None = None  # what faulthandler writes to must stay open
_listens: int | None = None  # the process whose thread listens; a forked one has none
_told = 0  # bytes


def answer_file(folder: Path, pid: int) -> Path:
    """Return the file into which the process `pid` answers the signal.

    It is named by when the process began too: its number may have been another's before.
    """
    found = process(pid)
    began = found.began if found else 0
    return folder / f"stacks-{socket.gethostname()}-{pid}-{began}.txt"


def socket_name(pid: int) -> str:
    """Return the name at which the process `pid` of this container listens.

    The kernel keeps it, not a file: it has no folder that may be full, and ends with the process.
    """
    # Containers may share the network, in which such names are, and number their processes alike.
    return f"\0sglang-eagle3-patch-{Path('/proc/self/ns/pid').stat().st_ino}-{pid}"


def peer(connected: socket.socket) -> tuple[int, int]:
    """Return the pid and the user of the process at the other end, as the kernel knows them."""
    size = struct.calcsize("3i")
    pid, user, _ = struct.unpack(
        "3i", connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    )
    return pid, user


def answer(folder: Path | None) -> None:
    """Have this process tell its stacks to processes of its user and of root that ask.

    With a `folder` it answers `SIGNAL` there too, unless somebody else handles that. Raises
    `OSError` and, where no thread can be started, `RuntimeError`.
    """
    global _listens
    if _listens != os.getpid():
        listener = socket.socket(socket.AF_UNIX)
        try:
            listener.bind(socket_name(os.getpid()))
            listener.listen(64)
            threading.Thread(
                target=_answer_all, args=(listener,), name="stacks-on-demand", daemon=True
            ).start()
        except BaseException:
            listener.close()
            raise
        _listens = os.getpid()
    if folder is not None:
        _answer_the_signal(folder)


def own() -> str:
    """Return the stacks of this process."""
    # The interpreter is ours while it is written: not on a disk, where there is another way.
    with (
        os.fdopen(os.memfd_create("stacks"), "w+b")
        if hasattr(os, "memfd_create")
        else tempfile.TemporaryFile()
    ) as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        return file.read().decode(errors="replace")


def answered() -> int:
    """Return how many bytes of stacks this process has told others, by either way."""
    with contextlib.suppress(OSError, ValueError):
        if _signalled is not None:
            return _told + os.fstat(_signalled.fileno()).st_size
    return _told


def handles_the_signal(pid: int) -> bool:
    """Whether the process has a handler for `SIGNAL`; without one it would be ended by it."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) & 1 << (SIGNAL - 1))
    return False


def _answer_all(listener: socket.socket) -> None:
    """Wait for whoever asks, for as long as the process runs."""
    global _told
    while True:
        try:
            asking, _ = listener.accept()
        except OSError:  # no descriptor is left, say: not at once again
            time.sleep(1)
            continue
        with asking, contextlib.suppress(OSError):
            asking.settimeout(ANSWER_SECONDS)
            if peer(asking)[1] in (0, os.geteuid()):
                told = own().encode()
                _told += len(told)
                asking.sendall(told)


def _answer_the_signal(folder: Path) -> None:
    global _signalled
    # A handler of C, as faulthandler's own is, Python does not know of.
    if _signalled is None and handles_the_signal(os.getpid()):
        return
    stream = answer_file(folder, os.getpid()).open("w", encoding="utf-8")
    faulthandler.register(SIGNAL, file=stream, all_threads=True)
    if _signalled is not None:
        _signalled.close()
    _signalled = stream
