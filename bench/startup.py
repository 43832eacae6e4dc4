"""What the start line costs every Python process of an environment.

Three venvs are alike but for the package: without it, with it and its variable unset, with it and
its variable set. `python -c pass` is started in each in turn, so that a busy machine slows all of
them, and the medians are compared.

    ./launch.sh bench startup [--starts N] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.processes import turns
from tests.startup.wheels import build_wheel, make_venv, python_of, unpack

VARIABLE = "SGLANG_EAGLE3_PATCH"
ABSENT, UNSET, SET = "absent", "installed, unset", "installed, set"
# Milliseconds of the median that may be added to a start.
GOALS = {UNSET: 0.3, SET: 5.0}
_WARM_UPS = 5  # first starts read files from disk and compile ours


@dataclass(frozen=True)
class Row:
    """Start times of one venv in milliseconds; `added` and `ratio` compare medians with ABSENT."""

    case: str
    median_ms: float
    minimum_ms: float
    added_ms: float
    ratio: float
    goal_ms: float | None

    @property
    def within_goal(self) -> bool:
        """Whether no more is added than the goal allows."""
        return self.goal_ms is None or self.added_ms <= self.goal_ms


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the table; returns 1 when a goal is missed."""
    parser = argparse.ArgumentParser(prog="bench startup", description=__doc__.splitlines()[0])
    parser.add_argument("--starts", type=int, default=200, help="starts of each (default: 200)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there, too")
    arguments = parser.parse_args(argv)
    if arguments.starts < 1:
        parser.error("--starts must be at least 1")
    with tempfile.TemporaryDirectory(prefix="bench-startup-") as folder:
        rows = compare(measure(make_cases(Path(folder)), arguments.starts))
    print(table(rows, arguments.starts))
    if arguments.json is not None:
        numbers = {"starts": arguments.starts, "rows": [asdict(row) for row in rows]}
        arguments.json.write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8")
    return 0 if all(row.within_goal for row in rows) else 1


def make_cases(folder: Path) -> dict[str, tuple[Path, dict[str, str]]]:
    """Return the interpreter of each case and its environment."""
    wheel = build_wheel(folder / "wheel")
    kept = {"PATH": os.defpath}
    cases = {}
    for case, variables in ((ABSENT, {}), (UNSET, {}), (SET, {VARIABLE: "1"})):
        # Paths of one length, of which Python works out more than one.
        venv = folder / f"venv{len(cases)}"
        site_packages = make_venv(venv)
        if case != ABSENT:
            unpack(wheel, site_packages)
        cases[case] = (python_of(venv), {**kept, **variables})
    return cases


def measure(cases: dict[str, tuple[Path, dict[str, str]]], starts: int) -> dict[str, list[float]]:
    """Return `starts` start times of each case, in milliseconds.

    Each round starts every case once, another one first each time. Raises
    `subprocess.CalledProcessError` when a start fails.
    """
    times: dict[str, list[float]] = {case: [] for case in cases}
    for case, counts in turns(list(cases), starts, _WARM_UPS):
        python, environment = cases[case]
        begun = time.perf_counter()
        subprocess.run([str(python), "-c", "pass"], env=environment, check=True)
        if counts:
            times[case].append((time.perf_counter() - begun) * 1000)
    return times


def compare(times: dict[str, list[float]]) -> list[Row]:
    """Return a row for each case, against the first."""
    medians = {case: statistics.median(of_case) for case, of_case in times.items()}
    absent = medians[ABSENT]
    return [
        Row(
            case=case,
            median_ms=medians[case],
            minimum_ms=min(of_case),
            added_ms=medians[case] - absent,
            ratio=medians[case] / absent,
            goal_ms=GOALS.get(case),
        )
        for case, of_case in times.items()
    ]


def table(rows: Sequence[Row], starts: int) -> str:
    """Return the rows as text."""
    lines = [
        f"python -c pass, {starts} starts of each in turn, milliseconds",
        f"{'package':<18}{'median':>8}{'minimum':>9}{'added':>8}{'ratio':>7}  goal",
    ]
    for row in rows:
        goal = ""
        if row.goal_ms is not None:
            goal = f"  added <= {row.goal_ms}: {'met' if row.within_goal else 'missed'}"
        lines.append(
            f"{row.case:<18}{row.median_ms:>8.2f}{row.minimum_ms:>9.2f}{row.added_ms:>8.2f}"
            f"{row.ratio:>7.3f}{goal}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
