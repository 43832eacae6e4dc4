"""Schedulers as Ray actors: children of a Ray node that knows nothing of the plugin's variables.

A server of SGLang's Ray mode on a real Ray node. Only the GPUs that Ray deals out are in name.
"""

from __future__ import annotations

import pytest

from tests.server.background import Outcomes
from tests.server.cases import OUTLOOK, PROMPTS
from tests.server.test_self_report import WANTED

pytestmark = pytest.mark.serves("ray")


def test_it_serves_as_trained(outcomes: Outcomes) -> None:
    outcome = outcomes["ray"]
    assert outcome.served is not None, outcome.log[-4000:]
    assert outcome.at_once is not None
    for served in (outcome.served, outcome.at_once):
        assert served.histograms == OUTLOOK.histograms("trained", "plain", PROMPTS)
        assert served.texts == OUTLOOK.texts[:PROMPTS]


def test_the_actor_of_each_rank_reports_itself(outcomes: Outcomes) -> None:
    reports = {report["name"]: report for report in outcomes["ray"].reports}
    # SGLang calls the one replica it has in Ray mode the first.
    actors = {"scheduler DP0 TP0", "scheduler DP0 TP1"}
    assert reports.keys() == {"main", "detokenizer", *actors}
    for name in actors:
        assert f"(SchedulerActor pid={reports[name]['pid']})" in outcomes["ray"].log
        assert reports[name]["state"] == "ready"
        assert reports[name]["facts"]["captured_layers"] == [2, 4, 5]
        patches = {patch["name"]: patch["status"] for patch in reports[name]["patches"]}
        assert {patches[wanted] for wanted in WANTED["scheduler"]} == {"applied"}
