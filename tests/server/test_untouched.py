"""Where nothing is EAGLE-3, nothing of ours happens: same text, same acceptance, no word."""

from __future__ import annotations

import re
import shutil
import sys

import pytest

from sglang_eagle3_patch.hooks import PATCHES, startup_watch
from tests.server.background import Outcomes
from tests.server.cases import OUTLOOK, PROMPTS

# What a patch says of what it does is "sglang-eagle3-patch: <its name>: ..", and acceptance.
OURS = re.compile(
    rf"sglang-eagle3-patch: (?:{'|'.join(p.name for p in PATCHES)}):|Verify steps?:? \d"
)
# The start of any server is watched: a hang needs no EAGLE-3.
OF_THE_START = re.compile(
    rf"sglang-eagle3-patch: {startup_watch.NAME}: (?:started in|the first batch took) \d"
)


def told_by_patches(log: str) -> list[str]:
    """What is said beyond the two lines that end the watch of a start."""
    lines = [line for line in log.splitlines() if OURS.search(line)]
    of_the_start = [line for line in lines if OF_THE_START.search(line)]
    assert len(of_the_start) == 2
    return [line for line in lines if line not in of_the_start]


@pytest.mark.serves("plugin-no-speculation")
def test_without_speculation(outcomes: Outcomes) -> None:
    outcome = outcomes["plugin-no-speculation"]
    assert outcome.served is not None
    assert outcome.served.texts == OUTLOOK.texts[:PROMPTS]
    assert outcome.served.accept_length is None
    assert told_by_patches(outcome.log) == []


# SGLang compiles NGRAM's corpus on first use, by a build that does not quote paths.
cannot_compile = pytest.mark.skipif(
    " " in sys.prefix or shutil.which("c++") is None,
    reason=f"NGRAM needs c++ and an environment at a path without spaces, not {sys.prefix}",
)


@pytest.mark.parametrize(
    "algorithm",
    [
        # An EAGLE-1 draft under NEXTN goes through the same workers; so does the MTP layer of a
        # DeepSeek, for which the name was made, and a STANDALONE draft, which is a model of its
        # own. DFLASH has an fc over captured states, NGRAM no draft model.
        pytest.param("nextn", marks=pytest.mark.serves("stock-nextn", "plugin-nextn")),
        pytest.param("mtp", marks=pytest.mark.serves("stock-mtp", "plugin-mtp")),
        pytest.param(
            "standalone", marks=pytest.mark.serves("stock-standalone", "plugin-standalone")
        ),
        pytest.param("dflash", marks=pytest.mark.serves("stock-dflash", "plugin-dflash")),
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
    assert told_by_patches(plugin.log) == []


@pytest.mark.serves("plugin-mtp")
def test_a_deepseek_layer_is_what_drafted(outcomes: Outcomes) -> None:
    outcome = outcomes["plugin-mtp"]
    assert "type=DeepseekV3ForCausalLMNextN" in outcome.log
    assert any(accepted for accepted in outcome.histogram[1:])
