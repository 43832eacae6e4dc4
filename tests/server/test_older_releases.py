"""The founding release and both of its silent failures."""

from __future__ import annotations

import pytest

from tests.cpu_sglang import releases
from tests.cpu_sglang.server import telling_lines
from tests.server.background import Outcomes
from tests.server.cases import OUTLOOK, PROMPTS
from tests.server.test_acceptance_log import LINE, steps_in


def expected(case: str, release: str, worker: str) -> list[list[int]]:
    return OUTLOOK.histograms(case, releases.find(release).quirks[worker], PROMPTS)


@pytest.mark.serves("0.5.9 reference")
def test_the_reference_is_transformers_own_text(outcomes: Outcomes) -> None:
    served = outcomes["0.5.9 reference"].served
    assert served is not None, outcomes["0.5.9 reference"].log[-4000:]
    assert served.texts == OUTLOOK.texts[:PROMPTS]


REPAIRED = ["0.5.9 plugin-a", "0.5.9 plugin-b", "0.5.9 plugin-c", "0.5.9 plugin-d"]


@pytest.mark.serves(*REPAIRED)
@pytest.mark.parametrize("case", REPAIRED)
def test_repaired_at_the_founding_release(outcomes: Outcomes, case: str) -> None:
    outcome = outcomes[case]
    assert outcome.served is not None, outcome.log[-4000:]
    assert outcome.served.histograms == expected("trained", "0.5.9", "v1")
    assert outcome.served.texts == OUTLOOK.texts[:PROMPTS]
    assert "inputs of layers [2, 4, 5] of 8 are captured" in outcome.log
    assert "of the draft loaded into LlamaForCausalLMEagle3" in outcome.log


class TestStockFailsAtTheFoundingRelease:
    @pytest.mark.serves("0.5.9 stock-a", "0.5.9 stock-d")
    @pytest.mark.parametrize(
        ("case", "lacks"),
        [
            ("0.5.9 stock-a", "set_eagle3_layers_to_capture"),
            ("0.5.9 stock-d", "get_embed_and_head"),
        ],
    )
    def test_kimi_cannot_be_captured(self, outcomes: Outcomes, case: str, lacks: str) -> None:
        assert outcomes[case].served is None
        assert f"'KimiK25ForConditionalGeneration' object has no attribute '{lacks}'" in (
            outcomes[case].log
        )

    @pytest.mark.serves("0.5.9 partial-b")
    def test_with_capture_alone_layers_names_are_dropped(self, outcomes: Outcomes) -> None:
        outcome = outcomes["0.5.9 partial-b"]
        assert outcome.served is not None, outcome.log[-4000:]
        assert outcome.served.accept_length is not None
        assert outcome.served.accept_length < 1.6
        assert outcome.served.texts == OUTLOOK.texts[:PROMPTS]
        assert telling_lines(outcome.log) == []

    @pytest.mark.serves("0.5.9 partial-d")
    def test_with_capture_alone_eagle_mode_skips_fc(self, outcomes: Outcomes) -> None:
        outcome = outcomes["0.5.9 partial-d"]
        assert outcome.served is not None, outcome.log[-4000:]
        assert outcome.served.histograms == expected("eagle_mode", "0.5.9", "v1")
        assert outcome.served.texts == OUTLOOK.texts[:PROMPTS]
        assert telling_lines(outcome.log) == []


@pytest.mark.serves("0.5.9 plugin-a")
def test_every_verify_step_of_the_first_worker_is_told(outcomes: Outcomes) -> None:
    outcome = outcomes["0.5.9 plugin-a"]
    steps = steps_in(outcome.log)
    requests_steps = sum(len(accepted) for accepted in steps)
    # Asked one by one and then at once, and the warm-up request, of one to three steps.
    assert 1 <= requests_steps - 2 * sum(outcome.histogram) <= 3
    accepted_in_all = sum(sum(accepted) for accepted in steps)
    told_by_sglang = 2 * sum(n * count for n, count in enumerate(outcome.histogram))
    # What is more is the warm-up request's, of three drafts a step.
    assert 0 <= accepted_in_all - told_by_sglang <= 3 * 3
    assert max(int(match[2]) for match in LINE.finditer(outcome.log)) == 4
