"""Servers for the tests of this folder: each case is served once, two at a time.

A test names the cases it looks at: `@pytest.mark.serves("stock-a", "plugin-a")`. Those that any
selected test names are started in the background, in the order in which the tests ask for them: a
test waits only for its own, and never for as long as its timeout.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.server.cases import CASES
from tests.server.serving import Outcome, draft_folder, serve

AT_ONCE = 2


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "serves(*cases): the servers this test looks at")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("serves"):
            item.add_marker(pytest.mark.server)


class Outcomes:
    """Outcomes by case name; asking for one waits until it is there."""

    def __init__(self, futures: Mapping[str, Future[Outcome]], folder: Path) -> None:
        self._futures, self._folder = futures, folder

    def __getitem__(self, name: str) -> Outcome:
        return self._futures[name].result()

    def draft(self, name: str) -> Path:
        """Return the folder of the draft that a case was given, which is there once it was."""
        self[name]
        return draft_folder(CASES[name], folder_of(name, self._folder))


def folder_of(name: str, folder: Path) -> Path:
    """Return where a case's server is started."""
    return folder / name.replace(" ", "-")


@pytest.fixture(scope="session")
def outcomes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Outcomes]:
    named = dict.fromkeys(
        name
        for item in request.session.items
        for marker in item.iter_markers("serves")
        for name in marker.args
    )
    unknown = named.keys() - CASES.keys()
    assert not unknown, f"no such cases: {unknown}"
    folder: Path = tmp_path_factory.mktemp("servers")
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield Outcomes(
            {name: pool.submit(serve, CASES[name], folder_of(name, folder)) for name in named},
            folder,
        )
        pool.shutdown(wait=True, cancel_futures=True)
