"""Runs `examine` in the environments of the releases, two at a time."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.cpu_sglang.environments import ensure
from tests.cpu_sglang.releases import IN_CI, RELEASES, WHOLE

ALL_RELEASES = tuple(RELEASES)
MLA_SINCE = "0.5.12"
REPOSITORY = Path(__file__).resolve().parents[3]
SECONDS = 500


def chosen() -> tuple[str, ...]:
    """The releases that tests run: the boundary ones, all of them under `EAGLE3_MATRIX=1`."""
    return ALL_RELEASES if WHOLE else IN_CI


def has_mla(release: str) -> bool:
    """Whether the release has the MLA draft class."""
    return ALL_RELEASES.index(release) >= ALL_RELEASES.index(MLA_SINCE)


def examine(version: str) -> dict[str, Any]:
    """Return what `examine` finds in SGLang `version`.

    Raises RuntimeError with the end of its output when it ends without a report.
    """
    environment = ensure(version)
    variables = environment.process_environment()
    for name in [name for name in variables if name.startswith("SGLANG_EAGLE3_PATCH")]:
        del variables[name]
    process = subprocess.run(
        [environment.python, "-m", "tests.contract.releases.examine"],
        cwd=REPOSITORY,
        env=variables,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    last = (process.stdout.splitlines() or [""])[-1]
    if process.returncode or not last.startswith("{"):
        raise RuntimeError(f"SGLang {version}: {process.stderr[-4000:]}")
    report: dict[str, Any] = json.loads(last)
    return report


def start(versions: Iterable[str]) -> Mapping[str, Future[dict[str, Any]]]:
    """Start examining `versions` and return what will be found."""
    pool = ThreadPoolExecutor(max_workers=2)
    futures = {version: pool.submit(examine, version) for version in versions}
    pool.shutdown(wait=False)
    return futures
