"""Servers take the core that other tests leave idle: the first starts with the session.

A test names the cases it looks at: `@pytest.mark.serves("stock-a", "plugin-a")`. Those that any
selected test names are served in the background, in the order in which the tests ask for them.
Tests of servers come last, so that little is left to wait for, and those first that look at what
this process reads and whom it waits for.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.server.background import Outcomes


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "serves(*cases): the servers this test looks at")
    config.addinivalue_line("markers", "alone: run before any server is started")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("serves"):
            item.add_marker(pytest.mark.server)
    items.sort(key=_turn)


def _turn(item: pytest.Item) -> int:
    if item.get_closest_marker("alone"):
        return 0
    return 2 if item.get_closest_marker("server") else 1


@pytest.fixture(scope="session")
def outcomes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Outcomes]:
    from tests.server.background import Outcomes

    named = dict.fromkeys(
        name
        for item in request.session.items
        for marker in item.iter_markers("serves")
        for name in marker.args
    )
    with Outcomes(named, tmp_path_factory.mktemp("servers")) as found:
        yield found


@pytest.fixture(scope="session")
def serving(request: pytest.FixtureRequest) -> None:
    if any(item.get_closest_marker("serves") for item in request.session.items):
        request.getfixturevalue("outcomes")


@pytest.fixture(autouse=True)
def servers_meanwhile(request: pytest.FixtureRequest) -> None:
    if not request.node.get_closest_marker("alone"):
        request.getfixturevalue("serving")
