"""The doctor's verdicts on what no draft class shows are what the real SGLang does.

At the default release in this process, at the oldest in one of its own. `beyond/cases.py` has what
is given to both, `beyond/looks.py` how each is observed.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from sglang_eagle3_patch.checkpoint.rules import RULES, Case, judge_case
from sglang_eagle3_patch.commands.doctor import judge
from tests.contract.beyond.cases import RELEASES, SIDES, Compared, at, compared
from tests.contract.beyond.observed import OBSERVED, observed_at, seen
from tests.contract.releases import run
from tests.contract.releases.doctor_fixtures import NOT_OF_A_CLASS, Side
from tests.contract.releases.doctor_observed import DEGRADED, REFUSES, SERVES
from tests.cpu_sglang.environments import ensure
from tests.cpu_sglang.pair import forms
from tests.unit.doctor.broken import BROKEN
from tests.unit.doctor.cases import NEWEST, OLDEST

_ONLY_ITS_WEIGHTS_TELL = "what another target would accept, only its weights tell"
# Of what can't be observed the doctor must claim nothing, neither stock nor with the plugin.
CLAIMED_OF_NONE: Mapping[str, str] = {
    "E3-files-values-unread": "the doctor's own limit, of which nothing comes",
    "E3-files-quantised": "the methods that quantise drafts want a GPU",
    "E3-target-class": "what classes a package may register, nobody knows",
    "E3-target-recorded": _ONLY_ITS_WEIGHTS_TELL,
    "E3-target-name": _ONLY_ITS_WEIGHTS_TELL,
    "E3-launch-backend": "where backends refuse, on a GPU; tests/server/test_doctor.py serves both",
    "E3-engine-release": "no such release can be looked at",
}
OBSERVED_ELSEWHERE: Mapping[str, str] = {
    "E3-engine-positions": "by servers of several releases: tests/server/test_doctor.py",
}
# What is seen where the doctor leaves open what comes.
LEFT_OPEN: Mapping[tuple[str, Side], str] = {
    **dict.fromkeys((("E3-layers-last", side) for side in SIDES), REFUSES),
    # No token that the target may sample is without a row; what the rows stand for, nobody tells.
    **dict.fromkeys((("E3-vocab-target", side) for side in SIDES), SERVES),
    # A name may be registered by a package, and other algorithms do without the draft.
    **dict.fromkeys((("E3-launch-algorithm", side) for side in SIDES), REFUSES),
    ("E3-launch-load-format", "stock"): SERVES,
    **dict.fromkeys((("E3-launch-no-speculation", side) for side in SIDES), "runs None"),
}


def said(told: Case, rule: str, side: Side) -> str:
    (effects,) = (found.effects for found in judge_case(told).findings if found.id == rule)
    return effects[side]


def expected(given: Compared) -> str:
    """Return what the doctor says, or what is seen where it leaves that open."""
    outcome = said(given.case, given.rule, given.side)
    return LEFT_OPEN[given.rule, given.side] if outcome == "unknown" else outcome


def judged(release: str) -> Iterator[Any]:
    for given in compared(release, observed_at(release)):
        yield pytest.param(given, id=given.id)


@pytest.mark.parametrize("given", list(judged(NEWEST)))
def test_the_doctor_says_what_comes_of_it(
    given: Compared, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    request.getfixturevalue("plugin" if given.side == "plugin" else "rank")
    assert seen(given, tmp_path) == expected(given)


@pytest.fixture(scope="module")
def oldest() -> Mapping[str, str]:
    """What is seen at the oldest release, by the id of what is given."""
    environment = ensure(OLDEST)
    variables = {
        name: value
        for name, value in environment.process_environment().items()
        if not name.startswith("SGLANG_EAGLE3_PATCH")
    }
    process = subprocess.run(
        [environment.python, "-m", "tests.contract.beyond.observe"],
        cwd=run.REPOSITORY,
        env=variables,
        capture_output=True,
        text=True,
        timeout=run.SECONDS,
    )
    assert process.returncode == 0, process.stderr[-4000:]
    found: dict[str, str] = json.loads(process.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("given", list(judged(OLDEST)))
def test_at_the_oldest_release_too(given: Compared, oldest: Mapping[str, str]) -> None:
    assert oldest[given.id] == expected(given)


@pytest.mark.parametrize("release", RELEASES)
def test_of_what_a_release_does_not_have_nothing_is_claimed(release: str) -> None:
    for given in compared(release, OBSERVED.keys() - observed_at(release)):
        assert said(given.case, given.rule, given.side) == SERVES


@pytest.mark.parametrize("rule", CLAIMED_OF_NONE)
def test_of_what_can_not_be_observed_nothing_is_claimed(rule: str) -> None:
    broken = BROKEN[rule].case
    cases = (broken, *(at(broken, release) for release in RELEASES if rule != "E3-engine-release"))
    for told in cases:
        (finding,) = (f for f in judge_case(told).told if f.id == rule)
        claims = {*finding.effects.values()} - {"unknown"}
        assert not claims or (claims == {SERVES} and finding.status == "unknown")
    # Nor by another of the rule's answers.
    assert not {DEGRADED, REFUSES} & {*RULES[rule].answer.__code__.co_consts}


@pytest.mark.parametrize("release", RELEASES)
def test_the_servers_pair_is_of_two_kinds_of_attention(release: str, tmp_path: Path) -> None:
    draft = forms.write_form("native", tmp_path / "draft")
    judgement = judge(str(draft), None, release, ["--model-path", str(forms.TARGET)])
    told = {finding.id: finding.status for finding in judgement.told}
    assert told["E3-launch-backend"] == "unknown"


def test_every_rule_that_no_class_shows_is_observed_or_told_why_not() -> None:
    told = (OBSERVED.keys(), CLAIMED_OF_NONE.keys(), OBSERVED_ELSEWHERE.keys())
    assert set().union(*told) == NOT_OF_A_CLASS.keys()
    assert sum(map(len, told)) == len(NOT_OF_A_CLASS)
