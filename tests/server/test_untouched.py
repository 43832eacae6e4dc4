"""Where nothing is EAGLE-3, nothing of ours happens: same text, same acceptance, no word."""

from __future__ import annotations

import pytest

from tests.server.cases import OUTLOOK, PROMPTS
from tests.server.conftest import Outcomes


@pytest.mark.serves("plugin-no-speculation")
def test_without_speculation(outcomes: Outcomes) -> None:
    outcome = outcomes["plugin-no-speculation"]
    assert outcome.served is not None
    assert outcome.served.texts == OUTLOOK.texts[:PROMPTS]
    assert outcome.served.accept_length is None
    assert "sglang-eagle3-patch" not in outcome.log


@pytest.mark.serves("stock-nextn", "plugin-nextn", "stock-ngram", "plugin-ngram")
@pytest.mark.parametrize("algorithm", ["nextn", "ngram"])
def test_other_speculation(outcomes: Outcomes, algorithm: str) -> None:
    # NEXTN with an EAGLE-1 draft goes through the same workers; NGRAM has no draft model.
    stock, plugin = outcomes[f"stock-{algorithm}"], outcomes[f"plugin-{algorithm}"]
    assert stock.served is not None, stock.log[-3000:]
    assert plugin.served is not None, plugin.log[-3000:]
    assert plugin.served.histograms == stock.served.histograms
    assert plugin.served.texts == stock.served.texts == OUTLOOK.texts[:PROMPTS]
    assert "sglang-eagle3-patch" not in plugin.log
