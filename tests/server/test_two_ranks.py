"""Two tensor-parallel ranks: each holds half of the draft, and one speaks for both.

Stock SGLang carries this on a CPU: its collectives go over gloo wherever AMX is missing, at 0.5.9
as at 0.5.23, so the stand-in needs no kernel for it. What must be set for two ranks on one memory
node is in `cases.py`.
"""

from __future__ import annotations

import re

import pytest

from tests.cpu_sglang import releases
from tests.server.background import Outcomes
from tests.server.cases import CASES, OUTLOOK, PROMPTS
from tests.server.test_acceptance_log import LINE, steps_in

RANKS = ["TP0", "TP1"]
WHOLE = ["two-ranks", "0.5.9 two-ranks"]


def of_rank(rank: str, log: str) -> str:
    """The lines of a log that one rank wrote; SGLang puts the rank behind the time."""
    return "\n".join(line for line in log.splitlines() if re.match(rf"\[[-\d: ]+ {rank}\]", line))


@pytest.mark.serves(*WHOLE)
@pytest.mark.parametrize("case", WHOLE)
class TestTwoRanks:
    def test_they_serve_as_one_does(self, outcomes: Outcomes, case: str) -> None:
        release = releases.find(CASES[case].release)
        expected = OUTLOOK.histograms("trained", release.quirks[release.worker], PROMPTS)
        outcome = outcomes[case]
        assert outcome.served is not None, outcome.log[-4000:]
        assert outcome.at_once is not None
        for served in (outcome.served, outcome.at_once):
            assert served.histograms == expected
            assert served.texts == OUTLOOK.texts[:PROMPTS]

    @pytest.mark.parametrize("rank", RANKS)
    def test_each_accounts_for_its_shards(self, outcomes: Outcomes, case: str, rank: str) -> None:
        told = "draft-weights: all 14 tensors of the draft loaded into LlamaForCausalLMEagle3"
        assert of_rank(rank, outcomes[case].log).count(told) == 1

    @pytest.mark.parametrize("rank", RANKS)
    def test_each_checks_what_it_captures(self, outcomes: Outcomes, case: str, rank: str) -> None:
        told = "aux-capture: inputs of layers [2, 4, 5] of 8 are captured"
        assert told in of_rank(rank, outcomes[case].log)

    def test_acceptance_is_recorded_once(self, outcomes: Outcomes, case: str) -> None:
        log = outcomes[case].log
        assert LINE.search(of_rank("TP1", log)) is None
        numbers = [int(match[1]) for match in LINE.finditer(of_rank("TP0", log))]
        assert numbers == list(range(1, len(numbers) + 1))
        # Asked one by one and then at once, and the warm-up request, of one to three steps.
        requests_steps = sum(len(accepted) for accepted in steps_in(log))
        assert 1 <= requests_steps - 2 * sum(outcomes[case].histogram) <= 3


@pytest.mark.serves("two-ranks no-k")
def test_a_missing_tensor_is_refused(outcomes: Outcomes) -> None:
    outcome = outcomes["two-ranks no-k"]
    assert outcome.served is None
    assert outcome.exit_status not in (0, None)
    assert "1 missing: layers.0.self_attn.k_proj.weight [64, 256]" in outcome.log
