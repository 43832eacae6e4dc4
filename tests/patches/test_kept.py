"""The kept results are of the patch files as they are."""

from __future__ import annotations

import json

import pytest

from tests.cpu_sglang.releases import WHOLE
from tests.patches.looked_at import LOOKED_AT, digests


@pytest.mark.skipif(WHOLE, reason="this is the run that looks at them anew")
def test_every_series_is_as_it_was_looked_at() -> None:
    now = digests()
    then: dict[str, str] = json.loads(LOOKED_AT.read_text(encoding="utf-8"))
    changed = [name for name in {**then, **now} if then.get(name) != now.get(name)]
    assert not changed, (
        f"the patch files of {', '.join(changed)} changed after the kept results were taken: run "
        "`./launch.sh test --matrix`"
    )
