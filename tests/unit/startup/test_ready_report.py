"""The block that says what came of a start, from what the hooks have learned."""

from __future__ import annotations

import pytest

from sglang_eagle3_patch.commands.status import print_processes
from sglang_eagle3_patch.engine.patch import PatchReport, Status
from sglang_eagle3_patch.hooks.parts.launch_facts import LaunchFacts
from sglang_eagle3_patch.hooks.parts.ready_report import ready_report

REPORTS = [
    PatchReport(name="draft-weights", status=Status.APPLIED),
    PatchReport(name="fc-guard", status=Status.APPLIED),
    PatchReport(name="kimi-capture", status=Status.NOT_NEEDED),
]
WHOLE = LaunchFacts(
    algorithm="EAGLE3",
    captured_layers=(2, 4, 5),
    layers_from="eagle_config",
    draft_weights="all 15 tensors",
    draft_tensors=15,
    draft_flags=("norm_before_residual on (patched)",),
    fc_width=384,
    embedding="the target's",
    head="the draft's own",
)


def test_all_that_is_known() -> None:
    assert ready_report(WHOLE, REPORTS) == (
        "EAGLE-3: 15/15 tensors of the draft loaded; aux layers 2, 4, 5 (from eagle_config) → "
        "3\N{MULTIPLICATION SIGN}128 → fc applied (a forward that would skip it is refused); "
        "norm_before_residual on (patched); embedding: the target's; head: the draft's own; "
        "patches applied: draft-weights, fc-guard"
    )


def test_what_no_hook_told_is_unknown() -> None:
    told = ready_report(LaunchFacts(algorithm="EAGLE3"), [])
    assert told == (
        "EAGLE-3: tensors of the draft: not accounted for; aux layers unknown → fc not guarded; "
        "embedding: unknown; head: unknown; patches applied: none"
    )


def test_what_sglang_does_itself() -> None:
    names = ("draft-weights", "embed-head", "fc-guard")
    reports = [PatchReport(name=name, status=Status.NOT_NEEDED) for name in names]
    facts = LaunchFacts(algorithm="EAGLE3", captured_layers=(2, 4, 5), layers_from="eagle_config")
    assert ready_report(facts, reports) == (
        "EAGLE-3: tensors of the draft: accounted for by SGLang; aux layers 2, 4, 5 (from "
        "eagle_config) → fc applied (a forward that would skip it is refused); "
        "embedding: SGLang's own choice; head: SGLang's own choice; patches applied: none"
    )


def test_dummy_weights_and_a_width_that_fits_no_layers() -> None:
    facts = LaunchFacts(
        algorithm="EAGLE3", draft_weights="dummy", captured_layers=(2, 4), fc_width=385
    )
    told = ready_report(facts, REPORTS)
    assert told is not None
    assert "tensors of the draft: dummy; aux layers 2, 4 (from SGLang alone) → 385 → fc" in told


def test_other_speculation_gets_none() -> None:
    assert ready_report(LaunchFacts(), REPORTS) is None
    assert ready_report(LaunchFacts(algorithm="NGRAM"), REPORTS) is None


def test_the_status_shows_it_on_a_line_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    facts = {"algorithm": "EAGLE3", "ready": "EAGLE-3: 15/15 tensors [whole]"}
    process = {"role": "scheduler", "name": "scheduler", "pid": 1, "state": "ready"}
    print_processes([{**process, "patches": [], "facts": facts}])
    shown = capsys.readouterr().out.splitlines()
    assert "EAGLE-3: 15/15 tensors [whole]" in shown
    assert "algorithm: EAGLE3" in shown
