"""Drafts with latent attention (MLA), of the class Eagle3DeepseekV2ForCausalLM, on real servers."""

from __future__ import annotations

import pytest

from tests.cpu_sglang import releases
from tests.cpu_sglang.releases import WHOLE
from tests.server.background import Outcomes
from tests.server.cases import MLA_OLDER_WORKER, MLA_RELEASES, OUTLOOK, PROMPTS

# What each server's draft is in the expectation. The weak one shows what the other is blind to.
REPAIRED = {
    "plugin-mla": (releases.DEFAULT, "mla", "v2"),
    **{f"{release} plugin-mla-weak": (release, "mla_weak", "v2") for release in MLA_RELEASES},
}
if WHOLE:
    REPAIRED[MLA_OLDER_WORKER] = ("0.5.12.post1", "mla_weak", "v1")
    for older in MLA_RELEASES[:-1]:
        REPAIRED[f"{older} plugin-mla"] = (older, "mla", "v2")


def expected(release: str, case: str, worker: str = "v2") -> list[list[int]]:
    return OUTLOOK.histograms(case, releases.find(release).quirks[worker], PROMPTS)


@pytest.mark.parametrize(
    ("name", "release", "case", "worker"),
    [
        pytest.param(name, *served, id=name, marks=pytest.mark.serves(name))
        for name, served in REPAIRED.items()
    ],
)
def test_served_as_trained(
    outcomes: Outcomes, name: str, release: str, case: str, worker: str
) -> None:
    outcome = outcomes[name]
    assert outcome.served is not None, outcome.log[-4000:]
    assert outcome.served.histograms == expected(release, case, worker)
    assert outcome.served.texts == OUTLOOK.texts[:PROMPTS]
    assert outcome.at_once is not None
    assert outcome.at_once.histograms == expected(release, case, worker)
    assert outcome.at_once.texts == OUTLOOK.texts[:PROMPTS]
    loaded = "all 17 tensors of the draft loaded into Eagle3DeepseekV2ForCausalLM"
    assert outcome.log.count(loaded) == 1
    told = "computed for Eagle3DeepseekV2ForCausalLM: norm_before_residual"
    assert outcome.log.count(told) == (case == "mla_weak")


@pytest.mark.serves("stock-mla-weak")
def test_stock_ignores_norm_before_residual(outcomes: Outcomes) -> None:
    outcome = outcomes["stock-mla-weak"]
    assert outcome.served is not None, outcome.log[-4000:]
    assert outcome.served.histograms == expected(
        releases.DEFAULT, "mla_weak_norm_before_residual_ignored"
    )
    assert outcome.served.histograms != expected(releases.DEFAULT, "mla_weak")
    assert outcome.served.texts == OUTLOOK.texts[:PROMPTS]
    assert "norm_before_residual" not in outcome.log
