"""Writes a trace of verify steps: JSON Lines, format 1, which `trace_reader` reads.

A scheduler must never wait for a disk. `put` appends to a bounded queue; a daemon thread writes
what is in it twice a second, so that kill -9 loses that half second and no more. What can't be
written is dropped and counted, told once, and the count is written once writing works again.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sglang_eagle3_patch.acceptance.trace_file import TraceFile, as_line
from sglang_eagle3_patch.acceptance.trace_reader import rank_path

logger = logging.getLogger(__name__)

FLUSH_SECONDS = 0.5
LONGEST_QUEUE = 10_000  # steps: minutes of decoding, and a few MB


@dataclass(slots=True)  # frozen ones take three times as long to make
class StepRecord:
    """One verify step on its way to the file; the fields are those of `trace_reader.Step`."""

    time: float
    step: int
    proposed: int
    accepted: Sequence[int]
    requests: Sequence[str] | None
    seconds: float | None


class TraceWriter:
    """The trace of one process. `start` is what its start lines tell beside kind, format, time,
    process and rank; `on_drop` is called with the number of steps dropped, from any thread."""

    def __init__(
        self,
        path: Path,
        start: Mapping[str, Any],
        *,
        rank: int = 0,
        longest_part: int = 256_000_000,
        parts: int = 4,
        on_drop: Callable[[int], None] | None = None,
    ) -> None:
        self.dropped = 0  # in all
        self._rank, self._on_drop = rank, on_drop
        self._file = TraceFile(
            rank_path(path, rank), {"rank": rank, **start}, longest_part=longest_part, parts=parts
        )
        self._queue: deque[StepRecord] = deque()
        self._untold = 0  # dropped, and not in the file yet
        self._counting = threading.Lock()
        self._in_trouble = False
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="eagle3-trace", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def put(self, record: StepRecord) -> None:
        """Take one step; never waits. A step for which there is no room is dropped."""
        if len(self._queue) >= LONGEST_QUEUE:
            self._drop(1)
        else:
            self._queue.append(record)

    def close(self) -> None:
        """Write what is queued and stop. Waits for it no longer than two seconds."""
        self._closing.set()
        self._thread.join(timeout=2)
        atexit.unregister(self.close)

    def _run(self) -> None:
        while not self._closing.wait(FLUSH_SECONDS):
            self._flush()
        self._flush()
        self._file.close()

    def _flush(self) -> None:
        lines = deque(self._line(self._queue.popleft()) for _ in range(len(self._queue)))
        try:
            self._tell_what_was_dropped()
            self._file.write(lines)
        except OSError as error:
            self._drop(len(lines))
            self._tell_trouble(error)
            return
        if self._in_trouble:
            logger.info("sglang-eagle3-patch: the trace %s is written again", self._file.path)
        self._in_trouble = False

    def _tell_what_was_dropped(self) -> None:
        with self._counting:
            untold = self._untold
        if untold:
            told = {"kind": "dropped", "time": time.time(), "records": untold}
            self._file.write(deque([as_line(told)]))
            with self._counting:
                self._untold -= untold

    def _tell_trouble(self, error: OSError) -> None:
        if not self._in_trouble:
            logger.warning(
                "sglang-eagle3-patch: the trace %s can't be written (%s): verify steps are "
                "dropped and counted until it can. Fix: make room there, or name another file in "
                "SGLANG_EAGLE3_PATCH_TRACE",
                self._file.path,
                error,
            )
        self._in_trouble = True

    def _drop(self, records: int) -> None:
        if records:
            with self._counting:
                self.dropped += records
                self._untold += records
            if self._on_drop is not None:
                self._on_drop(records)

    def _line(self, record: StepRecord) -> bytes:
        told: dict[str, Any] = {
            "time": round(record.time, 6),
            "step": record.step,
            "rank": self._rank,
            "batch": len(record.accepted),
            "proposed": record.proposed,
            "accepted": list(record.accepted),
        }
        if record.requests is not None:
            told["requests"] = record.requests
        told["seconds"] = None if record.seconds is None else round(record.seconds, 6)
        return as_line(told)
