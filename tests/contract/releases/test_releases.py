"""What `examine` finds on each release. `EAGLE3_MATRIX=1` runs all of them, not the boundary ones.

Only the attention and the batch are stand-ins (`sglang_eagle3_patch.parity`); configs, classes,
loaders and forwards are the release's own. Kernels are those of `tests/cpu_sglang/standin`.
"""

from __future__ import annotations

import itertools

import pytest

from sglang_eagle3_patch.hooks import PATCHES
from tests.contract.releases import run, write
from tests.contract.releases.conftest import Report
from tests.cpu_sglang.pair.drafter import DrafterShape

# A release may have to be built and imported first, behind another one.
pytestmark = [
    pytest.mark.timeout(2 * run.SECONDS),
    pytest.mark.parametrize("release", run.chosen()),
]

LLAMA_DRAFTS = (
    "native",
    "founding",
    "speculators",
    "speculators-norm-before-residual",
    "prefixed",
)
# Differences to the reference are in units of the logit scale; measured: below 3e-6.
LARGEST_DELTA = 1e-4


def test_it_is_the_release_that_was_asked_for(report: Report, release: str) -> None:
    assert report["release"] == release


def test_every_patch_does_what_the_table_says(report: Report, release: str) -> None:
    assert report["patches"] == write.read()[release], report["details"]
    assert set(report["patches"]) == {patch.name for patch in PATCHES}
    assert set(report["patches"].values()) <= {"applied", "not-needed"}, report["details"]
    assert not report["waiting"]


def test_every_draft_loads_whole_and_computes_the_reference(report: Report, release: str) -> None:
    assert set(report["drafts"]) == {*LLAMA_DRAFTS, *(["mla"] if run.has_mla(release) else [])}
    for name, draft in report["drafts"].items():
        assert "error" not in draft, f"{name}: {draft['error']}"
        assert draft["unfilled"] == [], name
        wanted = "Eagle3DeepseekV2ForCausalLM" if name == "mla" else "LlamaForCausalLMEagle3"
        assert draft["class"] == wanted
        assert set(draft["steps"]) == {"EXTEND", "DRAFT_EXTEND_V2"}
        assert all(len(steps) == 3 for steps in draft["steps"].values())
        for step in itertools.chain.from_iterable(draft["steps"].values()):
            assert step["delta"] <= LARGEST_DELTA, f"{name}: {step}"
            assert step["top1"] == 1.0, f"{name}: {step}"
            assert step["scale"] > 1.0, f"{name}: logits without contrast would all agree: {step}"


def test_one_state_for_three_is_refused(report: Report, release: str) -> None:
    assert set(report["one_state"]) == {"native", *(["mla"] if run.has_mla(release) else [])}
    for refusals in report["one_state"].values():
        assert set(refusals) == {"EXTEND", "DRAFT_EXTEND_V2"}, refusals
        for mode, text in refusals.items():
            assert f"width 128 reach the draft in {mode}, but its fc takes 384" in text


def test_kimi_can_be_a_target(report: Report, release: str) -> None:
    kimi, shape = report["kimi"], DrafterShape()
    assert "error" not in kimi, kimi["error"]
    # Given as outputs of layers 1, 3 and 4, which are the inputs of the next ones.
    assert kimi["captured"] == [2, 4, 5]
    assert kimi["shapes"] == [[shape.vocab, shape.hidden]] * 2
