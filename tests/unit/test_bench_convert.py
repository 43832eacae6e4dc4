"""What the measurement of a conversion calls met."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import convert as bench
from bench.processes import Summary
from sglang_eagle3_patch import cli


def rows(median: float, minimum: float, peak: float) -> dict[str, Summary]:
    """Return a copy of one second, a start of half a second, and a conversion."""
    return {
        bench.COPY: Summary(1.0, 1.0, 0.1, 30.0, 1.0),
        bench.DRY_RUN: Summary(0.5, 0.5, 0.1, 30.0, 1.0),
        bench.CONVERT: Summary(median, minimum, 0.1, peak, 1.0),
    }


@pytest.mark.parametrize(
    ("median", "minimum", "peak", "met"),
    [
        (1.6, 1.6, 100.0, True),
        (1.7, 1.6, 30.0, False),
        (1.4, 1.7, 30.0, False),
        (1.4, 1.4, 101.0, False),
    ],
)
def test_the_goals(median: float, minimum: float, peak: float, met: bool) -> None:
    assert bench.within_goals(rows(median, minimum, peak)) is met
    assert ("met" if met else "missed") in bench.table(rows(median, minimum, peak), 1, 1)


def test_what_is_converted_is_not_refused(tmp_path: Path) -> None:
    draft = bench.write_draft(tmp_path / "draft", 50)
    assert cli.main(["convert", str(draft), str(tmp_path / "out"), "--dry-run"]) == 0
