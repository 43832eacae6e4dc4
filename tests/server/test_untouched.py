"""Where nothing is EAGLE-3, nothing of ours happens: same text, same acceptance, no word."""

from __future__ import annotations

import shutil
import sys

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


# SGLang compiles NGRAM's corpus on first use, by a build that does not quote paths.
cannot_compile = pytest.mark.skipif(
    " " in sys.prefix or shutil.which("c++") is None,
    reason=f"NGRAM needs c++ and an environment at a path without spaces, not {sys.prefix}",
)


@pytest.mark.parametrize(
    "algorithm",
    [
        # An EAGLE-1 draft under NEXTN goes through the same workers; NGRAM has no draft model.
        pytest.param("nextn", marks=pytest.mark.serves("stock-nextn", "plugin-nextn")),
        pytest.param(
            "ngram", marks=[pytest.mark.serves("stock-ngram", "plugin-ngram"), cannot_compile]
        ),
    ],
)
def test_other_speculation(outcomes: Outcomes, algorithm: str) -> None:
    stock, plugin = outcomes[f"stock-{algorithm}"], outcomes[f"plugin-{algorithm}"]
    assert stock.served is not None, stock.log[-3000:]
    assert plugin.served is not None, plugin.log[-3000:]
    assert plugin.served.histograms == stock.served.histograms
    assert plugin.served.texts == stock.served.texts == OUTLOOK.texts[:PROMPTS]
    assert "sglang-eagle3-patch" not in plugin.log
