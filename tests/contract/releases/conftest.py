"""What `examine` finds, once for each release however many modules ask."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from tests.contract.releases import run

Report = dict[str, Any]


@pytest.fixture(scope="session")
def _reports(request: pytest.FixtureRequest) -> Iterator[Mapping[str, Future[Report]]]:
    wanted = {
        item.callspec.params["release"]: None
        for item in request.session.items
        if item.path.parent == Path(__file__).parent
        and "release" in getattr(getattr(item, "callspec", None), "params", {})
    }
    reports = run.start(wanted)
    yield reports
    for report in reports.values():
        report.cancel()


@pytest.fixture
def report(_reports: Mapping[str, Future[Report]], release: str) -> Report:
    return _reports[release].result()
