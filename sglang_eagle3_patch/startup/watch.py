"""A thread beside a start: it tells where the start is and, when nothing moves, where it waits.

It observes. Nothing is ended, retried or changed by it, and what it can't read it leaves out. It
ends with the first batch, so that nothing of it is left in serving.
"""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import os
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from pathlib import Path

from sglang_eagle3_patch.startup import answers, stacks
from sglang_eagle3_patch.startup.advice import advice
from sglang_eagle3_patch.startup.board import Board, Entry, in_order
from sglang_eagle3_patch.startup.gpus import gpu_lines
from sglang_eagle3_patch.startup.movement import Signs
from sglang_eagle3_patch.startup.processes import process
from sglang_eagle3_patch.startup.stages import Progress, Stage

logger = logging.getLogger(__name__)

SAYS = "sglang-eagle3-patch: startup-watch"
PROGRESS_SECONDS = 5.0  # between two lines of a start that moves
STILL_SECONDS = 30.0  # and of one that does not
LOG_LINES = 12


class LastLines(logging.Handler):
    """Keeps the last lines that this process logged, ours of the watch left out."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: deque[str] = deque(maxlen=LOG_LINES)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the record's first line."""
        with contextlib.suppress(Exception):  # a record that can't be written is not our trouble
            text = record.getMessage()
            if record.name != __name__ and text:
                self.lines.append(text.splitlines()[0][:300])


class Watch:
    """Watches `progress`, the start of this process, beside those of the node's other ranks.

    `stall_s` is how many seconds without a movement of any rank are told of, 0: never. `switches`
    names what the release in hand knows, for the advice.
    """

    def __init__(
        self,
        progress: Progress,
        *,
        name: str,
        port: int | None,
        folder: Path | None,
        stall_s: int,
        switches: Callable[[], Collection[str]] = tuple,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.progress, self.name, self.port, self.stall_s = progress, name, port, stall_s
        self.board = Board(folder, clock) if folder else None
        self.last_lines = LastLines()
        self._switches, self._clock, self._signs = switches, clock, Signs()
        self._signed = progress.started  # when a sign of movement was last seen
        self._moved = progress.started  # when a rank of the node last moved
        self._written: Entry | None = None
        self._line_at = progress.started
        self._line_moved = progress.started
        self._told: float | None = None  # the movement after which the stall that was told began
        this_process = process(os.getpid())
        self._began = this_process.began if this_process else 0
        self._answered = answers.answered()
        self._armed = False
        self._failed = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="startup-watch", daemon=True)

    @property
    def look_seconds(self) -> float:
        """How long it sleeps between two looks: never below a second."""
        return min(5.0, max(1.0, self.stall_s / 8)) if self.stall_s else 5.0

    def start(self) -> None:
        """Begin to look, and to answer for stacks. Raises `RuntimeError` where no thread starts."""
        if self.board is not None:
            self.board.clear()
        with contextlib.suppress(OSError):  # it is watched all the same
            answers.answer(self.board.folder if self.board else None)
        self._thread.start()
        logging.getLogger().addHandler(self.last_lines)

    def end(self) -> None:
        """Stop looking, at once; the thread puts its things away."""
        self._ended.set()

    def _run(self) -> None:
        try:
            while not self._ended.wait(self._pause()):
                self._look_safely()
        finally:
            self._disarm()
            logging.getLogger().removeHandler(self.last_lines)
            if self.board is not None:
                self.board.clear()

    def _pause(self) -> float:
        """Return how long to sleep: a stall is told when it is due, not at the look after."""
        if not self.stall_s or self.progress.idle or self._told is not None:
            return self.look_seconds
        due = max(self.progress.moved, self._moved) + self.stall_s - self._clock()
        return min(self.look_seconds, max(1.0, due))

    def _look_safely(self) -> None:
        try:
            self.look()
        except Exception as error:  # noqa: BLE001 - a start must not depend on being watched
            if not self._failed:
                self._failed = True
                logger.warning("%s: a look failed; said once: %r", SAYS, error)

    def look(self) -> None:
        """Tell what there is to tell now."""
        now = self._clock()
        if self.progress.idle:
            self._disarm()
        else:
            if self._answered != (answered := answers.answered()):
                self._answered = answered
                self._signs.forget()
            elif self._signs.moved():
                self._signed = now
            self._arm()
        own = self._entry()
        ranks = self._ranks(own)
        # Remembered: a rank that is done no longer tells when it last moved.
        self._moved = max(self._moved, *(rank.moved for rank in ranks))
        if all(rank.idle for rank in ranks):
            return
        if ranks[0].pid == own.pid:
            self._tell_progress(ranks, now)
        if self.stall_s:
            self._tell_stall(own, ranks, now)

    def _ranks(self, own: Entry) -> list[Entry]:
        """Return the node's ranks, after having told them of this one; without a folder that can be
        used it is alone."""
        others: list[Entry] = []
        if self.board is not None:
            with contextlib.suppress(OSError):
                if own != self._written:
                    self.board.write(own)
                    self._written = own
            with contextlib.suppress(OSError):
                others = [rank for rank in self.board.read(own.server) if rank.pid != own.pid]
        return in_order([own, *others])

    def _entry(self) -> Entry:
        progress = self.progress
        return Entry(
            pid=os.getpid(),
            began=self._began,
            name=self.name,
            port=self.port,
            parent=os.getppid(),
            stage=progress.stage.value if progress.stage else "",
            last=progress.last.value if progress.last else "",
            text=progress.text(),
            since=progress.since,
            moved=max(progress.moved, self._signed),
            idle=progress.idle,
            log=tuple(self.last_lines.lines)[-3:],
            host=socket.gethostname(),
        )

    def _tell_progress(self, ranks: list[Entry], now: float) -> None:
        patience = PROGRESS_SECONDS if self._moved > self._line_moved else STILL_SECONDS
        if now - self._line_at < patience:
            return
        self._line_at, self._line_moved = now, self._moved
        own, *others = ranks
        elsewhere = [f"{rank.name}: {rank.text}" for rank in others if rank.stage != own.stage]
        logger.info(
            "%s: %s: %s, %.0f s in it, %.0f s since the start%s%s",
            SAYS,
            own.name,
            own.text,
            now - own.since,
            now - self.progress.started,
            f", {self.progress.memory}" if self.progress.memory else "",
            f"; {', '.join(elsewhere)}" if elsewhere else "",
        )

    def _tell_stall(self, own: Entry, ranks: list[Entry], now: float) -> None:
        if self._told is not None and self._moved > self._told:
            self._told = None
            logger.info("%s: %s: the start moves again", SAYS, self.name)
        if self._told is not None or now - self._moved < self.stall_s:
            return
        self._told = self._moved
        if self._is_first(own):
            self._arm((len(ranks) - 1) * stacks.LONGEST_SECONDS)
            logger.warning("%s", self._report(ranks, now - self._moved))
            # What was read and started for it is no movement.
            self._signs.forget()

    def _is_first(self, own: Entry) -> bool:
        if self.board is not None:
            with contextlib.suppress(OSError):
                return self.board.claim(own, self._moved)
        return True

    def _report(self, ranks: list[Entry], silent: float) -> str:
        folders = [self.board.folder] if self.board else []
        found = {rank.pid: stacks.stacks_of(rank.pid, folders) for rank in ranks}
        now = self._clock()
        # The rank that is behind tells more than those that wait for it.
        starting = [rank for rank in ranks if not rank.idle]
        behind = min(starting, key=_how_far)
        stage = Stage(behind.stage) if behind.stage else None
        lines = [
            f"{SAYS}: the start has not moved for {silent:.0f} s, in: {behind.text}. This only "
            "observes: no process is ended by it."
        ]
        for rank in ranks:
            place = stacks.waits_at(found[rank.pid]) or "a line that could not be read"
            lines.append(
                f"  {rank.name} (pid {rank.pid}): {rank.text}, {now - rank.since:.0f} s in it, "
                f"waits at {place}"
            )
        lines += [f"  {line}" for line in gpu_lines()]
        told = enumerate(advice(stage, self._switches()), 1)
        lines.append(f"  Try: {'; '.join(f'({number}) {what}' for number, what in told)}")
        for rank in ranks:
            lines.append(f"  {rank.name} logged last:")
            last = self.last_lines.lines if rank.pid == os.getpid() else rank.log
            lines += [f"    {line}" for line in last]
        for rank in ranks:
            lines.append(f"  stacks of {rank.name} (pid {rank.pid}):")
            lines += [f"    {line}" for line in found[rank.pid].splitlines()]
        return "\n".join(lines)

    def _arm(self, seconds: float = 0.0) -> None:
        """Have faulthandler's own thread, which needs no interpreter, write this process's stacks
        to stderr should native code keep the interpreter from us for longer than a stall and, for
        what we are about to do, `seconds`."""
        if self.stall_s:
            patience = self.stall_s + 3 * self.look_seconds + seconds
            with contextlib.suppress(OSError, RuntimeError, ValueError, AttributeError):
                faulthandler.dump_traceback_later(patience, file=sys.stderr)
                self._armed = True

    def _disarm(self) -> None:
        if self._armed:  # there is one for a process: it may be somebody else's
            self._armed = False
            faulthandler.cancel_dump_traceback_later()


def _how_far(rank: Entry) -> float:
    """Return where in a start a rank is: at a stage, or after one and before the next."""
    names = [stage.value for stage in Stage]
    if rank.stage:
        return names.index(rank.stage)
    return names.index(rank.last) + 0.5 if rank.last else -1.0
