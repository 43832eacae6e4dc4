"""The releases at which something changed, or all of them, stock and patched, on real servers."""

from __future__ import annotations

import pytest

from tests.cpu_sglang.releases import WHOLE
from tests.cpu_sglang.server import telling_lines
from tests.server.background import Outcomes
from tests.server.cases import OUTLOOK, PROMPTS
from tests.server.matrix import Cell, cells, keep, read_results, result

# A draft whose layer was dropped runs on what memory held: its text is right, its numbers nobody's.
WELL_BELOW = 1.6


@pytest.mark.parametrize(
    "cell",
    [pytest.param(cell, id=cell.name, marks=pytest.mark.serves(cell.name)) for cell in cells()],
)
def test_cell(outcomes: Outcomes, cell: Cell) -> None:
    outcome = outcomes[cell.name]
    if cell.refusal is not None:
        assert outcome.served is None
        assert cell.refusal in outcome.log
    else:
        assert outcome.served is not None, outcome.log[-4000:]
        assert (outcome.served.texts == OUTLOOK.texts[:PROMPTS]) is cell.text_is_right
        if cell.expected is not None:
            assert outcome.served.histograms == cell.expected
        elif cell.text_is_right:
            assert outcome.served.accept_length is not None
            assert outcome.served.accept_length < WELL_BELOW
            assert telling_lines(outcome.log) == []
    if cell.what == "patched":
        assert "Verify steps: 40, accept len: " in outcome.log
    if WHOLE:
        keep(cell, outcome)
    elif cell.expected is not None or cell.refusal is not None:
        assert read_results()[cell.name] == result(outcome)
