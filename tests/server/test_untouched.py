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


@pytest.mark.serves("stock-nextn", "plugin-nextn")
def test_another_draft_under_nextn(outcomes: Outcomes) -> None:
    stock, plugin = outcomes["stock-nextn"], outcomes["plugin-nextn"]
    assert stock.served is not None, stock.log[-3000:]
    assert plugin.served is not None, plugin.log[-3000:]
    assert plugin.served.histograms == stock.served.histograms
    assert plugin.served.texts == stock.served.texts == OUTLOOK.texts[:PROMPTS]
    assert "sglang-eagle3-patch" not in plugin.log


@pytest.mark.serves("stock-ngram", "plugin-ngram")
def test_ngram(outcomes: Outcomes) -> None:
    stock, plugin = outcomes["stock-ngram"], outcomes["plugin-ngram"]
    assert stock.served is not None, stock.log[-3000:]
    assert plugin.served is not None, plugin.log[-3000:]
    assert plugin.served.histograms == stock.served.histograms
    assert plugin.served.texts == stock.served.texts == OUTLOOK.texts[:PROMPTS]
    assert "sglang-eagle3-patch" not in plugin.log
