"""Each rule answers for what breaks it, and for nothing else."""

from __future__ import annotations

import pytest

from sglang_eagle3_patch.checkpoint.rules import RULES, judge_case
from tests.unit.doctor.broken import BROKEN
from tests.unit.doctor.cases import Row, case


def test_every_rule_is_broken_once() -> None:
    assert set(BROKEN) == set(RULES)


def test_a_healthy_case_is_in_order() -> None:
    judgement = judge_case(case())
    assert judgement.told == ()
    assert judgement.verdict == "ok"
    assert (judgement.stock.outcome, judgement.plugin.outcome) == ("serves", "serves")


@pytest.mark.parametrize(("name", "broken"), BROKEN.items())
def test_what_breaks_a_rule_breaks_it_alone(name: str, broken: Row) -> None:
    told = {finding.id: finding for finding in judge_case(broken.case).told}
    assert set(told) == {name, *broken.besides}
    found = told[name]
    assert found.status == broken.status
    assert found.effects == {"stock": broken.stock, "plugin": broken.plugin}
    assert found.message
    assert found.remedy
    assert "\n" not in found.message + found.remedy


@pytest.mark.parametrize(("name", "broken"), BROKEN.items())
def test_what_the_plugin_mends_is_called_fixable(name: str, broken: Row) -> None:
    found = next(f for f in judge_case(broken.case).told if f.id == name)
    mended = broken.status == "wrong" and broken.stock in ("refuses", "degraded")
    if mended and broken.plugin == "serves":
        assert found.severity == "fixable"
        assert found.mark("plugin") == "ok"
        assert found.mark("stock") != "ok"
    else:
        assert found.severity == RULES[name].severity
    if broken.plugin == "refuses":
        assert found.mark("plugin") == "error"


def test_without_a_target_rules_say_that_they_did_not_compare() -> None:
    judgement = judge_case(case(target=None))
    assert {finding.status for finding in judgement.told} == {"unknown"}
    assert {finding.message for finding in judgement.told} == {
        "not compared with a target, since none is given"
    }
    assert judgement.verdict == "warning"
    assert judgement.plugin.outcome == "serves"
    assert "not compared with a target" in judgement.plugin.why
