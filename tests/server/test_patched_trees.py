"""What the patch files make of SGLang, served without the plugin: the twins' own acceptance.

Every release and draft is served under `./launch.sh test --matrix`, which keeps the results in
`patched_trees.json`; without it a few are, and must show what was kept.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.cpu_sglang import releases
from tests.cpu_sglang.releases import WHOLE
from tests.patches.trees import twins_beside
from tests.server.background import Outcomes
from tests.server.cases import OUTLOOK, PROMPTS, TREE_DRAFTS
from tests.server.matrix import PATCHED

RESULTS = Path(__file__).with_name("patched_trees.json")
# The demo's rows where the patches differ most; on every release EAGLE asked for, whose twin went
# through the most places, and a draft trained as speculators does by default.
EVERY = [
    *(
        f"{release} tree-{name}"
        for release in ("0.5.9", "0.5.12.post1", "0.5.23")
        for name in "abc"
    ),
    *(f"{release} tree-{name}" for release in releases.RELEASES for name in ("d", "nbr")),
    *(f"{release} tree-mla" for release in ("0.5.12.post1", "0.5.16", "0.5.23")),
]
TREES = EVERY if WHOLE else ["0.5.23 tree-nbr", "0.5.9 tree-d"]
POSITIONS = re.compile(r"accept len: ([\d.]+), .*accept rate by position: \[([\d., ]+)\]")
# From 0.5.11 to 0.5.15.post1 SGLang's own accept len counts the last step of a request otherwise.
COUNTS_OTHERWISE = ("0.5.11", "0.5.12", "0.5.13", "0.5.14", "0.5.15")
TENSORS = {"c": 15, "nbr": 15}  # speculators keeps the target's embedding


def expected(case: str) -> list[list[int]]:
    """The histograms that torch predicts for a patched tree, whose positions are mended."""
    release, _, name = case.partition(" tree-")
    found = releases.find(release)
    quirk = found.quirks[found.worker]
    return OUTLOOK.histograms(TREE_DRAFTS[name].outlook, PATCHED.get(quirk, quirk), PROMPTS)


def kept() -> dict[str, list[list[int]]]:
    results: dict[str, list[list[int]]] = json.loads(RESULTS.read_text())
    return results


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=pytest.mark.serves(case)) for case in TREES]
)
class TestPatchedTree:
    def test_it_serves_as_the_twins_do(self, outcomes: Outcomes, case: str) -> None:
        outcome = outcomes[case]
        assert outcome.served is not None, outcome.log[-4000:]
        assert outcome.served.histograms == expected(case)
        assert outcome.served.texts == OUTLOOK.texts[:PROMPTS]
        if WHOLE:
            results = kept() | {case: outcome.served.histograms}
            RESULTS.write_text(json.dumps(dict(sorted(results.items())), indent=1) + "\n")

    def test_a_batch_is_served_alike(self, outcomes: Outcomes, case: str) -> None:
        at_once = outcomes[case].at_once
        assert at_once is not None
        assert at_once.texts == OUTLOOK.texts[:PROMPTS]

    def test_the_log_tells_what_was_done(self, outcomes: Outcomes, case: str) -> None:
        log, name = outcomes[case].log, case.partition(" tree-")[2]
        draft_class = "Eagle3DeepseekV2" if name == "mla" else "Llama"
        told = r"All (\d+) tensors of the draft loaded into " + draft_class
        assert re.findall(told, log) == [str(TENSORS.get(name, 17 if name == "mla" else 14))]
        assert "Capturing the inputs of target layers [2, 4, 5] of 8 for the draft" in log
        assert ("promoting --speculative-algorithm EAGLE to EAGLE3" in log) == (name == "d")
        assert "sglang-eagle3-patch" not in log

    def test_acceptance_is_told_by_position(self, outcomes: Outcomes, case: str) -> None:
        lines = POSITIONS.findall(outcomes[case].log)
        assert lines
        off_by = 0.12 if case.startswith(COUNTS_OTHERWISE) else 0.02  # four numbers are rounded
        for accept_length, told in lines:
            rates = [float(rate) for rate in told.split(",")]
            assert rates == sorted(rates, reverse=True)
            assert len(rates) <= 3
            assert sum(rates) == pytest.approx(float(accept_length) - 1, abs=off_by)


def test_every_tree_was_served_and_did_as_torch_predicts() -> None:
    assert kept() == {case: expected(case) for case in EVERY}


@pytest.mark.serves("0.5.23 tree-no-k")
def test_a_missing_tensor_is_refused(outcomes: Outcomes) -> None:
    outcome = outcomes["0.5.23 tree-no-k"]
    assert outcome.served is None
    assert "1 missing: layers.0.self_attn.k_proj.weight [64, 256]" in outcome.log


@pytest.mark.serves("0.5.23 tree-plugin")
def test_the_plugin_leaves_to_a_patched_tree_what_it_does_itself(outcomes: Outcomes) -> None:
    outcome = outcomes["0.5.23 tree-plugin"]
    assert outcome.served is not None, outcome.log[-4000:]
    assert outcome.served.histograms == expected("0.5.23 tree-nbr")
    assert outcome.served.texts == OUTLOOK.texts[:PROMPTS]
    # Told by the tree itself, and by no patch of the plugin's that has a twin in it.
    assert "All 15 tensors of the draft loaded into LlamaForCausalLMEagle3" in outcome.log
    twins = twins_beside("0.5.23")
    assert [name for name in twins if f"sglang-eagle3-patch: {name}: " in outcome.log] == []
    assert POSITIONS.findall(outcome.log)
    assert "Verify step" not in outcome.log
    scheduler = next(report for report in outcome.reports if report["role"] == "scheduler")
    status = {patch["name"]: patch["status"] for patch in scheduler["patches"]}
    assert {name: status[name] for name in twins} == twins
