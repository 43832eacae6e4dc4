"""Tests of servers come last: servers take both cores, and other tests change what is of this
process (its variables, its modules), which starting a server must not see."""

from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "serves(*cases): the servers this test looks at")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("serves"):
            item.add_marker(pytest.mark.server)
    items.sort(key=lambda item: item.get_closest_marker("server") is not None)
