"""What became of a server is what the doctor says of its draft, its target and its arguments.

Other tests ask for nearly all of these servers, so that few are served for this alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest

from sglang_eagle3_patch import cli
from sglang_eagle3_patch.checkpoint.rules import Judgement
from sglang_eagle3_patch.commands.doctor import judge
from tests.cpu_sglang import releases, server
from tests.cpu_sglang.pair import forms
from tests.server import matrix
from tests.server.background import Outcomes
from tests.server.cases import (
    CASES,
    FOR_THE_TARGET,
    MLA_RELEASES,
    OUTLOOK,
    PROMPTS,
    founding_norm_before_residual,
)
from tests.server.serving import Outcome

RESIDUAL_UNSTATED = "E3-flags-residual-unstated"
# The expectation's key for each drafter as it was trained; that of all others is `trained`.
TRAINED: dict[Any, str] = {
    forms.SAVED_BY_SPECULATORS: "norm_before_residual",
    founding_norm_before_residual: "norm_before_residual",
    forms.mla: "mla",
    forms.mla_weak: "mla_weak",
    forms.founding_weak: "weak",
    forms.speculators_weak: "weak",
}
# Of a drafter trained with norm_before_residual under a config that doesn't say so, nobody but its
# trainer knows what it is accepted for.
_SAYS_NOT_HOW_IT_WAS_TRAINED = [
    "stock-nbr",
    *(cell.name for cell in matrix.cells() if cell.what == "layers" and cell.expected is not None),
]
JUDGED = [
    *(f"stock-{name}" for name in ("a", "b", "c", "d", "no-k", "mla-weak")),
    *(f"plugin-{name}" for name in ("a", "b", "c", "d", "nbr", "no-k", "dummy", "mla")),
    "0.5.9 stock-a",
    "0.5.9 stock-d",
    *(f"0.5.9 plugin-{name}" for name in ("a", "b", "c", "d", "nbr")),
    *(f"{release} plugin-mla-weak" for release in MLA_RELEASES),
    *(
        cell.name
        for cell in matrix.cells()
        # Where SGLang's CPU backend gets the text wrong, no draft is to blame.
        if cell.text_is_right and cell.name not in _SAYS_NOT_HOW_IT_WAS_TRAINED
    ),
    "converted",
    "converted-mla",
]
WITH_CAPTURE_ALONE = ["0.5.9 partial-b", "0.5.9 partial-d"]


def served(names: Sequence[str]) -> Any:
    """Parametrise over cases, each asking for its own server."""
    marks = [pytest.param(name, id=name, marks=pytest.mark.serves(name)) for name in names]
    return pytest.mark.parametrize("name", marks)


def judgement(name: str, draft: Path) -> Judgement:
    """Ask the doctor about the draft that a case was given and the arguments of its server."""
    case = CASES[name]
    assert case.algorithm is not None
    speculation = server.speculation(
        draft, case.algorithm, topk=case.topk, draft_tokens=case.draft_tokens
    )
    arguments = ["--model-path", str(forms.TARGET), *speculation, *case.arguments]
    return judge(str(draft), None, case.release, arguments)


def side(name: str) -> Literal["stock", "plugin"]:
    """Return whether all of the plugin is in a case's server, or nothing of it."""
    case = CASES[name]
    if case.launcher == server.OURS or case.variables.get(server.VARIABLE) == "1":
        return "plugin"
    assert server.VARIABLE not in case.variables, f"{name} has a part of the plugin"
    return "stock"


def as_trained(name: str) -> list[list[int]]:
    """Return the histograms of a case's drafter where all is right, as its release counts."""
    case = CASES[name]
    release = releases.find(case.release)
    worker = next((w for w in release.quirks if f" {w} " in name), release.worker)
    quirk = release.quirks[worker]
    key = TRAINED.get(case.draft, "trained")
    return OUTLOOK.histograms(key, matrix.PATCHED.get(quirk, quirk), PROMPTS)


def became(name: str, outcome: Outcome) -> str:
    """Return what became of a server, in the doctor's words."""
    if outcome.served is None:
        return "refuses"
    return "serves" if outcome.served.histograms == as_trained(name) else "degraded"


@served(JUDGED)
def test_the_server_does_what_the_doctor_says(outcomes: Outcomes, name: str) -> None:
    outcome, judged = outcomes[name], judgement(name, outcomes.draft(name))
    told = getattr(judged, side(name))
    assert told.outcome == became(name, outcome), told.why
    if outcome.served is None and side(name) == "stock":
        # Whatever the doctor says of the class, the server's own last words are about the same.
        assert any(word in outcome.log for word in _last_words(judged)), outcome.log[-4000:]


def _last_words(judged: Judgement) -> list[str]:
    words = {
        "E3-config-speculators": "Should have a `model_type` key",
        "E3-target-capture": "no attribute 'set_eagle3_layers_to_capture'",
        "E3-target-embedding": "no attribute 'get_embed_and_head'",
    }
    return [words[f.id] for f in judged.told if f.id in words]


@served(_SAYS_NOT_HOW_IT_WAS_TRAINED)
def test_what_the_file_does_not_say_the_doctor_calls_unknown(outcomes: Outcomes, name: str) -> None:
    assert became(name, outcomes[name]) == "degraded"
    judged = judgement(name, outcomes.draft(name))
    statuses = {finding.id: finding.status for finding in judged.told}
    assert statuses[RESIDUAL_UNSTATED] == "unknown"
    assert "unknown" in judged.stock.why


def without_capture(judged: Judgement) -> Judgement:
    """Return the judgement as if the target's class could capture."""
    lacking = ("E3-target-capture", "E3-target-embedding")
    assert {finding.id for finding in judged.told} >= set(lacking)
    assert judged.stock.outcome == "refuses"
    return replace(judged, findings=tuple(f for f in judged.findings if f.id not in lacking))


@served(WITH_CAPTURE_ALONE)
def test_with_capture_alone_the_rest_is_as_the_doctor_says(outcomes: Outcomes, name: str) -> None:
    judged = without_capture(judgement(name, outcomes.draft(name)))
    assert judged.stock.outcome == became(name, outcomes[name]) == "degraded"
    assert "accept length will be about 1" in judged.stock.why
    accept_length = outcomes[name].served
    assert accept_length is not None
    assert (accept_length.accept_length or 0) < 1.6


class TestConverted:
    """What the converter wrote for stock SGLang is accepted there as with the plugin."""

    @served(["converted", "converted-mla", "0.5.9 converted"])
    def test_stock_serves_it_as_it_was_trained(self, outcomes: Outcomes, name: str) -> None:
        outcome = outcomes[name]
        assert outcome.served is not None, outcome.log[-4000:]
        assert outcome.served.histograms == as_trained(name)
        assert outcome.served.texts == OUTLOOK.texts[:PROMPTS]
        assert outcome.at_once is not None
        assert outcome.at_once.histograms == as_trained(name)

    @pytest.mark.serves("converted", "plugin-c")
    def test_it_is_accepted_as_the_source_is_with_the_plugin(self, outcomes: Outcomes) -> None:
        converted, source = outcomes["converted"].served, outcomes["plugin-c"].served
        assert converted is not None
        assert source is not None
        assert converted.histograms == source.histograms

    def test_for_a_target_that_cannot_capture_nothing_is_written(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        draft, out = forms.write_form("speculators", tmp_path / "in"), tmp_path / "out"
        arguments = ["--sglang-version", "0.5.9", *FOR_THE_TARGET]
        assert cli.main(["convert", str(draft), str(out), *arguments]) == 1
        told = capsys.readouterr().err
        assert "KimiK25ForConditionalGeneration of SGLang 0.5.9 can't capture" in told
        assert not out.exists()

    @pytest.mark.serves("0.5.9 converted")
    def test_at_the_founding_release_positions_are_all_that_is_left(
        self, outcomes: Outcomes
    ) -> None:
        name = "0.5.9 converted"
        judged = without_capture(judgement(name, outcomes.draft(name)))
        # This drafter is too good to lose anything by them; the weak one of the matrix does.
        assert [f.id for f in judged.told if f.effects["stock"] != "serves"] == [
            "E3-engine-positions"
        ]
