"""The main job: real servers, stock and patched, against what torch says they must show."""

from __future__ import annotations

import pytest

from tests.cpu_sglang import releases
from tests.cpu_sglang.server import telling_lines
from tests.server.background import Outcomes
from tests.server.cases import OUTLOOK, PROMPTS

RELEASE = releases.find(releases.DEFAULT)
QUIRK = RELEASE.quirks[RELEASE.worker]


def expected(case: str, quirk: str = QUIRK) -> list[list[int]]:
    return OUTLOOK.histograms(case, quirk, PROMPTS)


@pytest.mark.serves("reference")
def test_the_reference_is_transformers_own_text(outcomes: Outcomes) -> None:
    served = outcomes["reference"].served
    assert served is not None
    assert served.texts == OUTLOOK.texts[:PROMPTS]
    assert served.accept_length is None


# plugin-c runs on poisoned memory: it does no harm to a draft that is whole.
# plugin-nbr is the second drafter, trained as speculators does by default, and its folder is
# what the library's own `save_pretrained` left: without d2t, with the target's embedding.
REPAIRED = ["plugin-a", "plugin-b", "plugin-c", "plugin-d", "plugin-nbr"]
FROM_SPECULATORS = ("plugin-c", "plugin-nbr")


def as_trained(case: str) -> list[list[int]]:
    return expected("norm_before_residual" if case == "plugin-nbr" else "trained")


@pytest.mark.serves("reference", *REPAIRED)
@pytest.mark.parametrize("case", REPAIRED)
class TestRepaired:
    def test_the_histogram_is_the_expected_one(self, outcomes: Outcomes, case: str) -> None:
        served = outcomes[case].served
        assert served is not None, outcomes[case].log[-4000:]
        assert served.histograms == as_trained(case)

    def test_the_text_is_that_without_speculation(self, outcomes: Outcomes, case: str) -> None:
        reference, served = outcomes["reference"].served, outcomes[case].served
        assert reference is not None
        assert served is not None
        assert served.texts == reference.texts == OUTLOOK.texts[:PROMPTS]

    def test_a_batch_is_served_alike(self, outcomes: Outcomes, case: str) -> None:
        at_once = outcomes[case].at_once
        assert at_once is not None
        assert at_once.histograms == as_trained(case)
        assert at_once.texts == OUTLOOK.texts[:PROMPTS]

    def test_every_tensor_is_accounted_for(self, outcomes: Outcomes, case: str) -> None:
        # speculators keeps the target's embedding, and no d2t beside a whole vocabulary.
        tensors = 15 if case == "plugin-c" else 14
        told = f"draft-weights: all {tensors} tensors of the draft loaded"
        assert outcomes[case].log.count(told) == 1

    def test_what_was_shared_is_told(self, outcomes: Outcomes, case: str) -> None:
        equal = ", equal to the draft's own" if case in FROM_SPECULATORS else ""
        told = f"embed-head: embedding: the target's{equal}; head: the draft's own;"
        assert outcomes[case].log.count(told) == 1

    def test_the_captured_layers_are_told(self, outcomes: Outcomes, case: str) -> None:
        assert "inputs of layers [2, 4, 5] of 8 are captured" in outcomes[case].log


@pytest.mark.serves("plugin-engine")
def test_the_variable_works_under_the_engine(outcomes: Outcomes) -> None:
    # A speculators folder, asked for as EAGLE: nothing of it serves without the hooks.
    outcome = outcomes["plugin-engine"]
    assert outcome.served is not None, outcome.log[-4000:]
    assert outcome.served.histograms == expected("trained")
    assert outcome.served.texts == OUTLOOK.texts[:PROMPTS]
    assert "draft-weights: all 15 tensors of the draft loaded" in outcome.log


@pytest.mark.serves("plugin-nbr", "0.5.9 plugin-nbr")
@pytest.mark.parametrize("release", [releases.DEFAULT, "0.5.9"])
def test_norm_before_residual_is_computed(outcomes: Outcomes, release: str) -> None:
    served_by = releases.find(release)
    outcome = outcomes["plugin-nbr" if release == releases.DEFAULT else f"{release} plugin-nbr"]
    assert outcome.served is not None, outcome.log[-4000:]
    quirk = served_by.quirks[served_by.worker]
    assert outcome.served.histograms == expected("norm_before_residual", quirk)
    assert outcome.served.histograms != expected("norm_before_residual_ignored", quirk)
    assert outcome.served.texts == OUTLOOK.texts[:PROMPTS]
    assert "draft-forward: computed for LlamaForCausalLMEagle3: norm_before_residual" in outcome.log


@pytest.mark.serves("plugin-d")
def test_the_promotion_is_told(outcomes: Outcomes) -> None:
    assert "is an EAGLE-3 draft; --speculative-algorithm EAGLE is taken for EAGLE3" in (
        outcomes["plugin-d"].log
    )


@pytest.mark.serves("reference", "stock-a", "stock-b")
@pytest.mark.parametrize("case", ["stock-a", "stock-b"])
def test_stock_serves_native_and_layers_names(outcomes: Outcomes, case: str) -> None:
    # At this release both names load; the native drafter serves alike with and without us.
    served = outcomes[case].served
    assert served is not None
    assert served.histograms == expected("trained")
    assert served.texts == OUTLOOK.texts[:PROMPTS]


# The stock failures. Each of these failing means that upstream has changed, for better or worse.
class TestStockFails:
    @pytest.mark.serves("stock-c")
    def test_speculators_form_is_not_understood(self, outcomes: Outcomes) -> None:
        assert outcomes["stock-c"].served is None
        assert "Should have a `model_type` key" in outcomes["stock-c"].log

    @pytest.mark.serves("stock-d")
    def test_eagle_mode_skips_fc(self, outcomes: Outcomes) -> None:
        served = outcomes["stock-d"].served
        assert served is not None
        assert served.histograms == expected("eagle_mode")
        assert served.texts == OUTLOOK.texts[:PROMPTS]
        assert served.accept_length is not None
        assert served.accept_length < 2.0

    @pytest.mark.serves("stock-nbr")
    def test_norm_before_residual_is_ignored(self, outcomes: Outcomes) -> None:
        served = outcomes["stock-nbr"].served
        assert served is not None
        assert served.histograms == expected("norm_before_residual_ignored")
        assert served.texts == OUTLOOK.texts[:PROMPTS]

    @pytest.mark.serves("stock-no-k")
    def test_a_missing_tensor_is_served_without_a_word(self, outcomes: Outcomes) -> None:
        served = outcomes["stock-no-k"].served
        assert served is not None
        assert served.texts == OUTLOOK.texts[:PROMPTS]
        assert served.accept_length is not None
        assert served.accept_length < 2.0
        assert telling_lines(outcomes["stock-no-k"].log) == []


class TestRefused:
    @pytest.mark.serves("plugin-no-k")
    def test_a_missing_tensor_before_serving(self, outcomes: Outcomes) -> None:
        outcome = outcomes["plugin-no-k"]
        assert outcome.served is None
        assert "1 missing: layers.0.self_attn.k_proj.weight [64, 256]" in outcome.log
        assert "SGLANG_EAGLE3_PATCH=-draft-weights" in outcome.log
        assert telling_lines(outcome.log) != []

    @pytest.mark.serves("plugin-nbr-off")
    def test_norm_before_residual_by_name_where_it_is_not_computed(
        self, outcomes: Outcomes
    ) -> None:
        assert outcomes["plugin-nbr-off"].served is None
        assert "norm_before_residual is true, which no SGLang release computes" in (
            outcomes["plugin-nbr-off"].log
        )


@pytest.mark.serves("plugin-tree", "reference")
def test_a_tree_of_drafts_keeps_the_text(outcomes: Outcomes) -> None:
    served = outcomes["plugin-tree"].served
    assert served is not None
    assert served.texts == OUTLOOK.texts[:PROMPTS]
    assert served.accept_length is not None
    assert served.accept_length > 3.8


@pytest.mark.serves("plugin-dummy")
def test_dummy_weights_are_exempt(outcomes: Outcomes) -> None:
    assert outcomes["plugin-dummy"].served is not None, outcomes["plugin-dummy"].log[-3000:]
