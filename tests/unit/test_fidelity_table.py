"""`docs/fidelity.md` against the committed results, and those against the list of drafts."""

from __future__ import annotations

import pytest

from tests.contract.releases import run, write_fidelity
from tests.contract.releases.fidelity import OTHER
from tests.contract.releases.fidelity_cells import TRAINER, Cell, cells
from tests.oracles import golden_files as golden

CELLS = cells()


def test_the_text_is_that_of_the_results() -> None:
    written = write_fidelity.TEXT.read_text(encoding="utf-8")
    again = "write it anew: ./launch.sh run -- python -m tests.contract.releases.write_fidelity"
    assert written == write_fidelity.text(write_fidelity.read()), again


def test_every_draft_has_a_result_in_each_examined_release() -> None:
    results = write_fidelity.read()
    examined = write_fidelity.examined(results)
    assert set(examined) >= set(run.IN_CI)
    assert list(results) == [cell.name for cell in CELLS]
    for kinds in results.values():
        for kind in ("plugin", "stock"):
            releases = [release for some in kinds[kind].values() for release in some]
            assert sorted(releases) == sorted(examined)


def test_nothing_is_served_with_other_numbers() -> None:
    served_wrong = [
        name for name, kinds in write_fidelity.read().items() if OTHER in kinds["plugin"]
    ]
    assert served_wrong == []


def test_every_golden_draft_is_judged_by_its_trainer() -> None:
    judged = [cell for cell in CELLS if cell.judge == TRAINER]
    assert {cell.flags for cell in judged} >= {case.name for case in golden.cases()}
    assert len({cell.name for cell in CELLS}) == len(CELLS)


def test_the_text_tells_spans_of_releases() -> None:
    outcomes = {
        "parity": [*run.ALL_RELEASES[:2], *run.ALL_RELEASES[3:]],
        "refused: no": [run.ALL_RELEASES[2]],
    }
    results = {cell.name: {"plugin": outcomes, "stock": outcomes} for cell in CELLS}
    told = write_fidelity.text(results)
    assert told.count(
        "| 0.5.9 to 0.5.10: parity; 0.5.10.post1: refused (1); 0.5.11 to 0.5.23: parity |"
    ) == len(CELLS)
    assert told.endswith("## Reasons\n\n1. no\n")


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.name)
def test_wanted_logits_have_a_contrast(cell: Cell) -> None:
    for step in cell.wanted or ():
        assert step.isfinite().all()
        assert step.abs().max() > 1.0
