"""What the patch files make of SGLang, served without the plugin: the twins' own acceptance."""

from __future__ import annotations

import re

import pytest

from sglang_eagle3_patch.hooks import PATCHES
from tests.cpu_sglang import releases
from tests.server.background import Outcomes
from tests.server.cases import OUTLOOK, PROMPTS

TREES = [
    "0.5.23 tree-c",
    "0.5.23 tree-d",
    "0.5.9 tree-a",
    "0.5.9 tree-b",
    "0.5.9 tree-c",
    "0.5.9 tree-d",
]
POSITIONS = re.compile(r"accept rate by position: \[([\d., ]+)\]")


def expected(release: str) -> list[list[int]]:
    found = releases.find(release)
    return OUTLOOK.histograms("trained", found.quirks[found.worker], PROMPTS)


@pytest.mark.serves(*TREES)
@pytest.mark.parametrize("case", TREES)
class TestPatchedTree:
    def test_it_serves_as_the_twins_do(self, outcomes: Outcomes, case: str) -> None:
        outcome = outcomes[case]
        assert outcome.served is not None, outcome.log[-4000:]
        assert outcome.served.histograms == expected(case.split()[0])
        assert outcome.served.texts == OUTLOOK.texts[:PROMPTS]

    def test_a_batch_is_served_alike(self, outcomes: Outcomes, case: str) -> None:
        at_once = outcomes[case].at_once
        assert at_once is not None
        assert at_once.texts == OUTLOOK.texts[:PROMPTS]

    def test_the_log_tells_what_was_done(self, outcomes: Outcomes, case: str) -> None:
        log = outcomes[case].log
        tensors = 15 if case.endswith("-c") else 14  # speculators keeps the target's embedding
        told = f"All {tensors} tensors of the draft loaded into LlamaForCausalLMEagle3"
        assert log.count(told) == 1
        assert "Capturing the inputs of target layers [2, 4, 5] of 8 for the draft" in log
        assert ("promoting --speculative-algorithm EAGLE to EAGLE3" in log) == case.endswith("-d")
        assert "sglang-eagle3-patch" not in log

    def test_acceptance_is_told_by_position(self, outcomes: Outcomes, case: str) -> None:
        lines = POSITIONS.findall(outcomes[case].log)
        assert lines
        for line in lines:
            rates = [float(rate) for rate in line.split(",")]
            assert rates == sorted(rates, reverse=True)
            assert len(rates) <= 3


@pytest.mark.serves("0.5.23 tree-no-k")
def test_a_missing_tensor_is_refused(outcomes: Outcomes) -> None:
    outcome = outcomes["0.5.23 tree-no-k"]
    assert outcome.served is None
    assert "1 missing: layers.0.self_attn.k_proj.weight [64, 256]" in outcome.log


@pytest.mark.serves("0.5.23 tree-dummy")
def test_dummy_weights_are_exempt(outcomes: Outcomes) -> None:
    assert outcomes["0.5.23 tree-dummy"].served is not None, outcomes["0.5.23 tree-dummy"].log


@pytest.mark.serves("0.5.23 tree-plugin")
def test_the_plugin_keeps_out_of_a_patched_tree(outcomes: Outcomes) -> None:
    outcome = outcomes["0.5.23 tree-plugin"]
    assert outcome.served is not None, outcome.log[-4000:]
    assert outcome.served.histograms == expected("0.5.23")
    assert outcome.served.texts == OUTLOOK.texts[:PROMPTS]
    # Told by the tree itself, and by no patch of the plugin's that has a twin in it.
    assert "All 15 tensors of the draft loaded into LlamaForCausalLMEagle3" in outcome.log
    twins = [patch.name for patch in PATCHES if patch.patch_files]
    assert [name for name in twins if f"sglang-eagle3-patch: {name}: " in outcome.log] == []
    scheduler = next(report for report in outcome.reports if report["role"] == "scheduler")
    status = {patch["name"]: patch["status"] for patch in scheduler["patches"]}
    assert {status[name] for name in twins} == {"not-needed"}
