"""Servers for the tests of this folder: each case is served once, two at a time.

A test names the cases it looks at: `@pytest.mark.serves("stock-a", "plugin-a")`. Those that any
selected test names are served in the background, in the order in which the tests ask for them.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.server.background import Outcomes


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
    with Outcomes(named, tmp_path_factory.mktemp("servers")) as found:
        yield found
