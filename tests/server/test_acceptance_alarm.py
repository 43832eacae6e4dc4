"""A drafter that is of no use is told of within 200 verify steps, everywhere it can be seen; a good
one never is."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest

from sglang_eagle3_patch.acceptance import metrics
from sglang_eagle3_patch.engine import selfreport
from tests.cpu_sglang import environments, releases
from tests.cpu_sglang.pair import forms
from tests.cpu_sglang.releases import WHOLE
from tests.cpu_sglang.server import OURS, VARIABLE, Server
from tests.server.background import Outcomes
from tests.server.cases import CASES, ON, OUTLOOK, Checkpoint, ServerCase
from tests.server.recording import STATUS, scrape
from tests.server.serving import ask_status
from tests.server.test_acceptance_log import LINE

SOAK_STEPS = 5_000
WARNING = re.compile(r"acceptance: speculation does next to nothing: .*")


def sabotaged() -> Checkpoint:
    """The good drafter with its head's sign turned: what it takes for likeliest is the least."""
    tensors, config = forms.native()
    return {**tensors, "lm_head.weight": -tensors["lm_head.weight"]}, config


def ask_until_told(server: Server, folder: Path) -> dict[str, Any]:
    """Ask for more verify steps than the alarm takes, and return what it made of them."""
    server.generate_at_once(OUTLOOK.prompts[:4], 230)
    server.settle()
    time.sleep(2)
    environment = environments.ensure(releases.DEFAULT)
    scheduler = next(r for r in selfreport.read_all(folder / STATUS) if r["role"] == "scheduler")
    return {
        "log": server.log,
        "metrics": scrape(server),
        "report": scheduler,
        "status": ask_status(environment, server, exit_status=1),
    }


def soak(server: Server, _folder: Path) -> dict[str, Any]:
    """Ask for as many verify steps as the alarm has to keep silent for, by turns alone and four at
    once, and return what was said."""
    while len(LINE.findall(server.log)) < SOAK_STEPS:
        for prompt in OUTLOOK.prompts:
            server.generate_at_once([prompt], OUTLOOK.new_tokens)
        server.generate_at_once(OUTLOOK.prompts[:4], 230)
    server.settle()
    return {"log": server.log, "metrics": scrape(server)}


CASES["soak"] = ServerCase(
    forms.native,
    variables={**ON, f"{VARIABLE}_ACCEPT_LOG": "step"},
    arguments=("--enable-metrics",),
    asks=soak,
)
CASES["sabotaged"] = ServerCase(
    sabotaged, launcher=OURS, arguments=("--enable-metrics",), asks=ask_until_told
)


@pytest.fixture
def told(outcomes: Outcomes) -> dict[str, Any]:
    outcome = outcomes["sabotaged"]
    assert outcome.told is not None, outcome.log[-4000:]
    told: dict[str, Any] = outcome.told
    return told


@pytest.mark.serves("sabotaged")
class TestSabotaged:
    def test_one_warning_within_200_verify_steps(self, told: dict[str, Any]) -> None:
        (warning,) = WARNING.finditer(told["log"])
        before = [int(line[1]) for line in LINE.finditer(told["log"][: warning.start()])]
        assert before[-1] == 200
        assert len(LINE.findall(told["log"])) > 210

    def test_the_likely_causes_are_what_loading_left(self, told: dict[str, Any]) -> None:
        (warning,) = WARNING.findall(told["log"])
        assert re.search(r"accept len 1\.0\d over the last 200 verify steps\.", warning)
        # Weights and fc are accounted for by patches that are in force.
        assert "(1) the draft was trained on other layers than [2, 4, 5]" in warning
        assert "(2) the draft was trained for another target" in warning

    def test_the_gauge_is_on(self, told: dict[str, Any]) -> None:
        assert told["metrics"][metrics.ALARM.name] == 1
        drafts = told["metrics"][metrics.DRAFTS.name]
        assert told["metrics"][metrics.ACCEPTED.name] < 0.05 * drafts

    def test_the_status_says_so(self, told: dict[str, Any]) -> None:
        seen = "over the last 200 verify steps"
        assert seen in told["report"]["facts"]["acceptance_alarm"]
        (scheduler,) = (p for p in told["status"]["processes"] if p["role"] == "scheduler")
        assert seen in scheduler["facts"]["acceptance_alarm"]


@pytest.mark.serves("plugin-a")
def test_a_good_drafter_raises_none(outcomes: Outcomes) -> None:
    outcome = outcomes["plugin-a"]
    assert outcome.served is not None
    assert not WARNING.search(outcome.log)


if WHOLE:  # minutes

    @pytest.mark.serves("soak")
    def test_a_good_drafter_raises_none_in_a_soak(outcomes: Outcomes) -> None:
        told = outcomes["soak"].told
        assert told is not None, outcomes["soak"].log[-4000:]
        steps = list(LINE.finditer(told["log"]))
        assert len(steps) >= SOAK_STEPS
        assert float(steps[-1][4]) > 2
        assert not WARNING.search(told["log"])
        assert told["metrics"][metrics.ALARM.name] == 0
