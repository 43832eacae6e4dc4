"""Runs commands in turn and tells what each took: time, memory, bytes read."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_WARM_UPS = 1


@dataclass(frozen=True)
class Usage:
    """One finished process: its seconds by the clock and of the processors, its peak memory and the
    bytes it read through system calls (whether or not they came from a disk), in megabytes of a
    million bytes."""

    seconds: float
    cpu_s: float
    peak_mb: float
    read_mb: float


@dataclass(frozen=True)
class Summary:
    """Some runs of one command: median and minimum of the seconds by the clock, median of those of
    the processors, maximum of the rest."""

    median_s: float
    minimum_s: float
    cpu_s: float
    peak_mb: float
    read_mb: float


def in_turn(
    commands: Mapping[str, list[str]], rounds: int, after: Callable[[str], None] = lambda _: None
) -> dict[str, Summary]:
    """Return what each command took in `rounds` runs; `after` is called with its name after each.

    Each round runs every command once, another one first each time, so that a busy machine slows
    all of them. Raises RuntimeError when one fails.
    """
    runs: dict[str, list[Usage]] = {name: [] for name in commands}
    for name, counts in turns(list(commands), rounds, _WARM_UPS):
        usage = run(commands[name])
        after(name)
        if counts:
            runs[name].append(usage)
    return {
        name: Summary(
            median_s=statistics.median(usage.seconds for usage in usages),
            minimum_s=min(usage.seconds for usage in usages),
            cpu_s=statistics.median(usage.cpu_s for usage in usages),
            peak_mb=max(usage.peak_mb for usage in usages),
            read_mb=max(usage.read_mb for usage in usages),
        )
        for name, usages in runs.items()
    }


def turns(names: Sequence[str], rounds: int, warm_ups: int) -> Iterator[tuple[str, bool]]:
    """Yield each name once a round, another one first each time, and whether it counts: the rounds
    before the first are warm-ups."""
    order = list(names)
    for number in range(-warm_ups, rounds):
        order.append(order.pop(0))
        for name in order:
            yield name, number >= 0


def run(command: list[str]) -> Usage:
    """Run a command, its output thrown away. Raises RuntimeError when it fails."""
    begun = time.perf_counter()
    quiet = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
    pid = os.posix_spawnp(command[0], command, os.environ, file_actions=quiet)
    # Not reaped yet: what it read is told as long as it is known.
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    seconds = time.perf_counter() - begun
    counts = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
    _, status, usage = os.wait4(pid, 0)
    if status:
        raise RuntimeError(f"{' '.join(command)} failed with {os.waitstatus_to_exitcode(status)}")
    return Usage(
        seconds=seconds,
        cpu_s=usage.ru_utime + usage.ru_stime,
        peak_mb=usage.ru_maxrss * 1024 / 1e6,  # the kernel counts it in units of 1024 bytes
        read_mb=int(counts["rchar"]) / 1e6,
    )
