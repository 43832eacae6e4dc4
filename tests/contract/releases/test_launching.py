"""Our launcher and the watch of a start on each release. `EAGLE3_MATRIX=1` runs all of them."""

from __future__ import annotations

import pytest

from tests.contract.releases import run
from tests.contract.releases.conftest import Report

pytestmark = [
    pytest.mark.timeout(2 * run.SECONDS),
    pytest.mark.parametrize("release", run.chosen()),
]


def test_every_flag_of_sglangs_is_left_as_it_is(report: Report, release: str) -> None:
    found = report["launching"]
    assert "error" not in found, found["error"]
    assert found["left_as_given"]
    assert found["given"] > 900
    assert not set(found["own"]) & set(found["known"])


def test_the_help_shows_sglangs_flags_and_ours(report: Report, release: str) -> None:
    found = report["launching"]
    assert set(found["ours"]) == set(found["stock"]) | set(found["own"])
    assert {"--model-path", "--speculative-draft-model-path"} <= set(found["stock"])
    assert set(found["own"]) == {
        "--eagle3-aux-layers",
        "--eagle3-no-preflight",
        "--eagle3-dry-run",
    }


STAGES = {
    "target": "target graph capture, batch size",
    "prefill": "target prefill graph capture, tokens",
    "draft": "draft decode graph capture, batch size",
    "draft-extend": "draft-extend graph capture, batch size",
    "cpu": "target graph capture, batch size",
}
BREAKABLE = {"breakable": "target prefill graph capture, tokens"}
WITH_BREAKABLE = ("0.5.11", "0.5.12", "0.5.12.post1", "0.5.13", "0.5.13.post1")


def test_the_watch_tells_each_size_that_is_captured(report: Report, release: str) -> None:
    found = report["capturing"]
    assert "error" not in found, found["error"]
    assert found == {
        kind: [f"{text} 4 (0 done)", f"{text} 2 (1 done)", f"after {text.partition(',')[0]}"]
        for kind, text in (STAGES | (BREAKABLE if release in WITH_BREAKABLE else {})).items()
    }
