"""`sglang-eagle3 report`: what traces of verify steps say, in words, as JSON, HTML or PNG."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from sglang_eagle3_patch import __version__
from sglang_eagle3_patch.acceptance.report.aggregate import Aggregate, aggregate
from sglang_eagle3_patch.acceptance.report.summary import Report, summarise
from sglang_eagle3_patch.acceptance.trace_reader import FORMAT, read_records, trace_files
from sglang_eagle3_patch.whole_file import replacing


class CannotReport(ValueError):
    """There is nothing to report, or no way to write it; the text says why, in one line."""


def add_parser(commands: Any) -> None:
    """Add the command to the subparsers of `sglang-eagle3`."""
    parser = commands.add_parser(
        "report",
        help="what a trace of verify steps says, and the number of draft steps to choose",
    )
    parser.add_argument(
        "traces",
        metavar="TRACE",
        type=Path,
        nargs="+",
        help="a trace; its rotated parts and other ranks are read with it",
    )
    parser.add_argument("--html", metavar="FILE", type=Path, help="write one self-contained page")
    parser.add_argument("--png", metavar="FILE", type=Path, help="write the charts as a picture")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--draft-cost",
        metavar="R",
        type=_cost,
        help="one draft step's time / one verify step's, for the speed-up; without it the costs "
        "that a trace of --speculative-adaptive shows are taken",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the report and write its files; 0, or 2 without anything to report."""
    try:
        return _run(arguments)
    except CannotReport as problem:
        print(f"sglang-eagle3 report: {problem}", file=sys.stderr)
        return 2


def _run(arguments: argparse.Namespace) -> int:
    # Asked for before a long trace is read, not after it.
    writers: list[tuple[Path, Callable[[Report, IO[bytes]], None]]] = []
    if arguments.html:
        _needs("jinja2", "--html")
        writers.append((arguments.html, _write_page))
    if arguments.png:
        _needs("matplotlib", "--png")
        writers.append((arguments.png, _write_picture))
    report = read_report(arguments.traces, arguments.draft_cost)
    if arguments.json:
        json.dump(report.as_data(), sys.stdout, indent=1)
        print()
    else:
        from sglang_eagle3_patch.commands.report_output import print_report

        print_report(report)
    for file, write in writers:
        _write_whole(file, report, write)
        print(f"wrote {file}", file=sys.stderr)
    return 0


def read_report(traces: list[Path], draft_cost: float | None = None) -> Report:
    """Read traces of any length. Raises `CannotReport` where there is nothing to report."""
    try:
        files = trace_files(traces)
        counted = aggregate(read_records(traces))
    except OSError as error:
        raise CannotReport(f"{error}. Fix: name a file that SGLANG_EAGLE3_PATCH_TRACE named") from (
            error
        )
    report = summarise(counted, [str(file) for file in files], draft_cost)
    if report is None or counted.formats:
        raise CannotReport(_nothing(files, counted))
    return report


def _nothing(files: list[Path], counted: Aggregate) -> str:
    named = ", ".join(str(file) for file in files[:3]) + (", …" if len(files) > 3 else "")
    if counted.formats:
        return (
            f"{named}: a trace of format {', '.join(sorted(counted.formats))}, and this reads "
            f"format {FORMAT}. Fix: use the sglang-eagle3-patch that wrote it"
        )
    if counted.starts or counted.dropped:
        return (
            f"{named}: no verify step yet (process starts: {len(counted.starts)}, dropped "
            f"steps: {counted.dropped}). Fix: send the server requests, and give its disk room"
        )
    if counted.unreadable:
        return (
            f"{named}: no trace: none of {counted.unreadable} lines can be read. "
            "Fix: name a file that SGLANG_EAGLE3_PATCH_TRACE named"
        )
    return f"{named}: empty. Fix: send the server requests; each verify step writes a line"


def _needs(module: str, flag: str) -> None:
    try:
        __import__(module)
    except ImportError as error:
        raise CannotReport(
            f"{flag} wants {module} ({error}). Fix: pip install 'sglang-eagle3-patch[report]'"
        ) from error


def _write_page(report: Report, stream: IO[bytes]) -> None:
    from sglang_eagle3_patch.acceptance.report.page import render

    stream.write(render(report, __version__).encode())


def _write_picture(report: Report, stream: IO[bytes]) -> None:
    from sglang_eagle3_patch.acceptance.report.png import draw

    draw(report, stream)


def _write_whole(file: Path, report: Report, write: Callable[[Report, IO[bytes]], None]) -> None:
    """Write a file that others may read, or leave what was there."""
    try:
        with replacing(file) as stream:
            write(report, stream)
            os.fchmod(stream.fileno(), 0o666 & ~_umask())
    except OSError as error:
        raise CannotReport(f"{file} can't be written ({error}). Fix: name another file") from error


def _umask() -> int:
    """The process's mask: a temporary file is made for its owner alone, a report is for others."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _cost(text: str) -> float:
    try:
        cost = float(text)
    except ValueError:
        cost = math.nan
    if not 0 <= cost < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no ratio of times like 0.05")
    return cost
