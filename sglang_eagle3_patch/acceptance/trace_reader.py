"""Reads traces of verify steps, format 1, as `trace.py` writes them and kill -9 leaves them.

    trace = read_trace([Path("trace.jsonl")])
    trace.steps    every verify step of every rank and restart, by time
    trace.starts   what each process told of itself; `step.start` is the one that a step follows
    records = read_records([Path("trace.jsonl")])    the same one by one, for traces of any length

A path stands for its server: its older parts (`trace.jsonl.1`, …) and the files of the other
data-parallel ranks (`trace.dp1.jsonl`, …) are read with it, each file once. Lines that are torn or
of a later format are counted and passed over.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FORMAT = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """What runs, and how. `num_steps`, `topk` and `draft_tokens` are SGLang's settings of that
    name. With `--speculative-adaptive` they are what the first step left in use; a step's
    `proposed` tells what it used."""

    sglang: str
    plugin: str
    algorithm: str
    num_steps: int | None
    topk: int | None
    draft_tokens: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Start(Launch):
    """The first line of a process's part, and the same again in each part after a rotation."""

    time: float  # Unix seconds at which the process began to record
    pid: int
    rank: int  # data-parallel; 0 without


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One verify step of a batch.

    `proposed` is the most drafts that a request could have accepted in it: the depth of the tree
    where topk > 1. `accepted` holds, for each request, the drafts that were, without the bonus
    token. `seconds` is the time since the verify step before it, None after idleness.
    """

    time: float  # Unix seconds
    step: int  # of its process, from 1
    rank: int
    proposed: int
    accepted: tuple[int, ...]
    requests: tuple[str, ...] | None = None  # their ids, where the trace was asked to have them
    seconds: float | None = None
    start: Start | None = None  # None where the part that began with it is gone

    @property
    def batch(self) -> int:
        """How many requests took part."""
        return len(self.accepted)


@dataclass(frozen=True, slots=True)
class Dropped:
    """Steps that were never written: the disk was full, or the folder gone."""

    records: int


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A line that was passed over; `format` is that of a start line of another format."""

    format: str | None = None


Record = Start | Step | Dropped | Unreadable


@dataclass(frozen=True, kw_only=True)
class Trace:
    """What one or more traces say. `dropped` steps were never written; `unreadable` lines were
    passed over: at most one for each time that a process was killed."""

    starts: list[Start] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    dropped: int = 0
    unreadable: int = 0
    files: list[Path] = field(default_factory=list)


def read_trace(paths: Iterable[Path]) -> Trace:
    """Return what the traces at `paths` say, steps and starts by time.

    Raises `FileNotFoundError` for a path of which there is neither file nor part, and other
    `OSError`s of files that can't be read. A file without a single line of ours gives no steps.
    """
    files = trace_files(paths)
    starts: list[Start] = []
    steps: list[Step] = []
    dropped = unreadable = 0
    for record in _records(files):
        match record:
            case Start():
                starts.append(record)
            case Step():
                steps.append(record)
            case Dropped():
                dropped += record.records
            case Unreadable():
                unreadable += 1
    starts.sort(key=lambda start: start.time)
    steps.sort(key=lambda step: step.time)
    return Trace(starts=starts, steps=steps, dropped=dropped, unreadable=unreadable, files=files)


def read_records(paths: Iterable[Path]) -> Iterator[Record]:
    """Yield what the traces at `paths` say, file by file: one record at a time is in memory.

    Raises as `read_trace` does, for paths without a trace before the first record is asked for.
    """
    return _records(trace_files(paths))


def trace_files(paths: Iterable[Path]) -> list[Path]:
    """Return the files of the traces at `paths`, each once, a rank's parts oldest first.

    Raises `FileNotFoundError` for a path of which there is neither file nor part.
    """
    files: dict[Path, Path] = {}
    for path in paths:
        found = [part for file in (path, *_other_ranks(path)) for part in _parts(file)]
        if not found:
            raise FileNotFoundError(f"there is no trace at {path}")
        files |= {file.resolve(): file for file in found if file.resolve() not in files}
    return list(files.values())


def _records(files: Iterable[Path]) -> Iterator[Record]:
    last_start: dict[Path, Start] = {}
    for file in files:
        log = _log_of(file)
        for line in _lines(file):
            record = _record(line, last_start.get(log))
            if isinstance(record, Start):
                last_start[log] = record
            yield record


def rank_path(path: Path, rank: int) -> Path:
    """Return the file of a data-parallel rank: `trace.dp1.jsonl` for rank 1 of `trace.jsonl`."""
    return path if rank == 0 else path.with_name(f"{path.stem}.dp{rank}{path.suffix}")


def part_path(path: Path, age: int) -> Path:
    """Return the part of a trace that `age` rotations ago was its file."""
    return path if age == 0 else path.with_name(f"{path.name}.{age}")


def _log_of(file: Path) -> Path:
    """The path that a part was rotated from."""
    return file.with_name(re.sub(r"\.\d+$", "", file.name)).absolute()


def _other_ranks(path: Path) -> list[Path]:
    name = re.compile(rf"{re.escape(path.stem)}\.dp(\d+){re.escape(path.suffix)}(\.\d+)?")
    matches = [match for file in _siblings(path) if (match := name.fullmatch(file.name))]
    return [rank_path(path, rank) for rank in sorted({int(match[1]) for match in matches})]


def _parts(path: Path) -> list[Path]:
    """The parts of a trace that are there, oldest first."""
    name = re.compile(rf"{re.escape(path.name)}\.(\d+)")
    ages = [int(match[1]) for file in _siblings(path) if (match := name.fullmatch(file.name))]
    parts = [part_path(path, age) for age in sorted(ages, reverse=True)]
    return [*parts, path] if path.exists() else parts


def _siblings(path: Path) -> list[Path]:
    return list(path.parent.iterdir()) if path.parent.is_dir() else []


def _lines(file: Path) -> Iterator[bytes]:
    with file.open("rb") as stream:
        yield from (line for line in stream if line.strip())


def _record(line: bytes, start: Start | None) -> Record:
    try:
        told = json.loads(line)
        kind = told.get("kind", "step")
        if kind == "start" and told["format"] != FORMAT:
            return Unreadable(str(told["format"])[:20])
        if kind == "start":
            return _start(told)
        if kind == "dropped":
            return Dropped(int(told["records"]))
        if kind == "step":
            return _step(told, start)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        pass
    return Unreadable()


def _start(told: dict[str, Any]) -> Start:
    return Start(
        time=float(told["time"]),
        pid=int(told["pid"]),
        rank=int(told["rank"]),
        sglang=str(told["sglang"]),
        plugin=str(told["plugin"]),
        algorithm=str(told["algorithm"]),
        num_steps=_whole(told["num_steps"]),
        topk=_whole(told["topk"]),
        draft_tokens=_whole(told["draft_tokens"]),
    )


def _step(told: dict[str, Any], start: Start | None) -> Step:
    requests = told.get("requests")
    seconds = told["seconds"]
    return Step(
        time=float(told["time"]),
        step=int(told["step"]),
        rank=int(told["rank"]),
        proposed=int(told["proposed"]),
        accepted=tuple(int(count) for count in told["accepted"]),
        requests=None if requests is None else tuple(map(str, requests)),
        seconds=None if seconds is None else float(seconds),
        start=start,
    )


def _whole(value: Any) -> int | None:
    return None if value is None else int(value)
