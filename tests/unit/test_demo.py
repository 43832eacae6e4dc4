"""What the demonstration says of what it saw; the servers themselves are run elsewhere."""

from __future__ import annotations

import pytest

from tests.cpu_sglang import demo, releases
from tests.cpu_sglang.demo import Case, Run


def run(route: str, length: float | None, same_text: bool = True, rate: float = 0.5) -> Run:
    started = length is not None
    return Run(
        f"{route} a", route, "native", "EAGLE3", started, None, length, rate, 50.0, same_text
    )


REFERENCE = Run("none", "none", None, None, started=True, same_text=True)
CASE = Case("a", "native", "plugin", "native", "EAGLE3")


@pytest.mark.parametrize(
    ("runs", "status"),
    [
        ([REFERENCE, run("stock", 1.0), run("plugin", 3.9)], 0),
        ([REFERENCE, run("plugin", 3.71)], 0),
        ([REFERENCE, run("plugin", 3.69)], 1),
        ([REFERENCE, run("plugin", 3.9, same_text=False)], 1),
        ([REFERENCE, run("plugin", None)], 1),
        ([Run("none", "none", None, None), run("plugin", 3.9)], 1),
    ],
)
def test_the_verdict(runs: list[Run], status: int) -> None:
    assert demo.verdict(runs, expected=3.9) == status


def test_every_draft_is_shown_stock_and_patched() -> None:
    names = [case.name for case in demo.cases(releases.find("0.5.23"))]
    assert names == ["none", *(f"{route} {key}" for route in ("stock", "plugin") for key in "abcd")]


def test_the_founding_release_is_also_shown_with_capture_alone() -> None:
    names = [case.name for case in demo.cases(releases.find("0.5.9"))]
    assert [name for name in names if name.startswith("partial")] == ["partial b", "partial d"]


def test_our_own_reason_is_the_one_told() -> None:
    log = (
        "Traceback\nValueError: x\nDraftError: sglang-eagle3-patch: a: b. Fix: c. (To run …)\nmore"
    )
    assert demo.refusal(log) == "sglang-eagle3-patch: a: b. Fix: c. (To run …)"


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        ("a\n[2026-01-01] AttributeError: no x\n", "AttributeError: no x"),
        ("a\nhuggingface_hub.errors.RepoError: y\nKilled\n", "huggingface_hub.errors.RepoError: y"),
        ("a\nlast words\n", "last words"),
    ],
)
def test_else_sglangs_first_error(log: str, reason: str) -> None:
    assert demo.refusal(log) == reason


def test_sentences() -> None:
    refused = Run("plugin a", "plugin", "native", "EAGLE3", error="KeyError: z")
    assert demo.sentence(CASE, refused, 3.9, "") == "refuses to start: KeyError: z"
    dead = demo.sentence(CASE, run("stock", 1.0, rate=0.0), 3.9, "quiet")
    assert dead == "serves, all of the drafts rejected, nothing in the log"
    told = demo.sentence(CASE, run("stock", 1.4, rate=0.13), 3.9, "hidden states missing")
    assert told == "serves, 87% of the drafts rejected, a word of it in the log"
    assert "serves as trained: 100%" in demo.sentence(CASE, run("plugin", 3.9), 3.9, "")
