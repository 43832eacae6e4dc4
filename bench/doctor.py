"""What the doctor costs on a target of Kimi-K2.5's size: 64 shards, 208 000 tensors.

A draft of 1.2 billion parameters and the target are synthesised with real headers and no weights.
The doctor judges them, and the same draft with an embedding of its own, which it compares with the
target's, as a user calls it: in a process. Beside it, in turn, so that a busy machine slows all of
them: the start of the command alone, the doctor on a target of few layers and experts in one file,
and Python parsing the large target's index. After a warm-up, files come from memory.

    ./launch.sh bench doctor [--rounds N] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path

from bench.kimi import Size, write_draft, write_target
from bench.processes import Summary, in_turn
from sglang_eagle3_patch.checkpoint.header import INDEX

START, SMALL, PARSED = "--version", "doctor, small target", "json.load(index)"
LENT, OWN = "doctor", "doctor, own embedding"
RELEASE = "0.5.23"
# Of a run of the doctor, Python's own modules among what it reads.
SECONDS_GOAL, READ_GOAL_MB = 1.5, 64.0
_FEW = Size(layers=8, experts=4, shards=1)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the table; returns 1 when a goal is missed."""
    parser = argparse.ArgumentParser(prog="bench doctor", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9, help="runs of each (default: 9)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there, too")
    arguments = parser.parse_args(argv)
    if arguments.rounds < 1:
        parser.error("--rounds must be at least 1")
    # What is measured is the command where it is installed, not the stand-in's modules.
    os.environ["PYTHONPATH"] = str(Path(__file__).parents[1])
    with tempfile.TemporaryDirectory(prefix="bench-doctor-") as name:
        rows = in_turn(_cases_elsewhere(Path(name)), arguments.rounds)
    print(table(rows, arguments.rounds))
    if arguments.json is not None:
        numbers = {"rounds": arguments.rounds, "rows": {k: asdict(v) for k, v in rows.items()}}
        arguments.json.write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8")
    return int(not all(within_goals(rows[case]) for case in (LENT, OWN)))


def _cases_elsewhere(folder: Path) -> dict[str, list[str]]:
    """Call `cases` in a process of its own: the memory of who starts a command counts as the
    command's peak."""
    with ProcessPoolExecutor(1) as pool:
        return pool.submit(cases, folder, Size()).result()


def cases(folder: Path, size: Size) -> dict[str, list[str]]:
    """Write the checkpoints into `folder`; return the command of each case."""
    target = write_target(folder / "target", size)
    parse = "import json, sys; json.load(open(sys.argv[1], 'rb'))"
    return {
        START: [sys.executable, "-m", "sglang_eagle3_patch.cli", "--version"],
        SMALL: _doctor(write_draft(folder / "few", _FEW), write_target(folder / "small", _FEW)),
        PARSED: [sys.executable, "-c", parse, str(target / INDEX)],
        LENT: _doctor(write_draft(folder / "draft", size), target),
        OWN: _doctor(write_draft(folder / "own", size, embedding=True), target),
    }


def _doctor(draft: Path, target: Path) -> list[str]:
    command = [sys.executable, "-m", "sglang_eagle3_patch.cli", "doctor", str(draft)]
    return [*command, "--target", str(target), "--sglang-version", RELEASE, "--json"]


def within_goals(row: Summary) -> bool:
    """Whether a run of the doctor takes no more than the goals allow."""
    return row.median_s <= SECONDS_GOAL and row.read_mb <= READ_GOAL_MB


def table(rows: Mapping[str, Summary], rounds: int) -> str:
    """Return the rows as text; `ratio` compares medians with the small target's, `above` what is
    read with that of the start of the command."""
    lines = [
        f"{rounds} runs of each in turn",
        f"{'':<23}{'median s':>9}{'minimum s':>11}{'ratio':>7}{'read MB':>9}{'above':>7}"
        f"{'peak MB':>9}",
    ]
    for case, row in rows.items():
        lines.append(
            f"{case:<23}{row.median_s:>9.2f}{row.minimum_s:>11.2f}"
            f"{row.median_s / rows[SMALL].median_s:>7.2f}{row.read_mb:>9.1f}"
            f"{row.read_mb - rows[START].read_mb:>7.1f}{row.peak_mb:>9.0f}"
        )
    goals = f"goals for the doctor on the target: {SECONDS_GOAL} s, {READ_GOAL_MB:.0f} MB read: "
    met = all(within_goals(rows[case]) for case in (LENT, OWN))
    return "\n".join([*lines, goals + ("met" if met else "missed")])


if __name__ == "__main__":
    sys.exit(main())
