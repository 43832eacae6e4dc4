"""What SGLang's classes do with the drafts of `doctor_fixtures`, in the words of the doctor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sglang_eagle3_patch.parity.compare import compare_steps
from tests.contract.releases import fidelity
from tests.contract.releases.doctor_fixtures import Fixture, Side, fixtures
from tests.cpu_sglang.pair import forms
from tests.oracles import golden_files as golden

SERVES, DEGRADED, REFUSES = "serves", "degraded", "refuses"


def observe(folder: Path, side: Side) -> dict[str, dict[str, str]]:
    """Return by fixture its `outcome`, and `why` it is no better.

    `side` says whether the plugin is active in this process.
    """
    return {
        fixture.name: _observe(fixture, folder / f"doctor-{side}-{number}", side)
        for number, fixture in enumerate(fixtures())
    }


def _observe(fixture: Fixture, folder: Path, side: Side) -> dict[str, str]:
    cell = fixture.cell
    forms.write(folder, cell.tensors, cell.config)
    try:
        draft = fidelity.loaded(cell, folder)
        logits = draft.forward(*fixture.inputs(side), golden.STEPS)
    except Exception as error:  # noqa: BLE001 - SGLang raises anything over a draft it can't serve
        return {"outcome": REFUSES, "why": fidelity.reason(error, folder)}
    if cell.wanted is None:
        return {"outcome": DEGRADED, "why": "nothing computes what it was trained to"}
    if not _stand_for(draft.model.hot_token_id, fixture.tokens, logits[0].shape[1]):
        return {"outcome": DEGRADED, "why": "draft ids are taken for other tokens"}
    steps = compare_steps(logits, cell.wanted)
    if all(step.agrees for step in steps):
        return {"outcome": SERVES, "why": ""}
    return {"outcome": DEGRADED, "why": f"other logits, by {max(s.delta for s in steps):.2g}"}


def _stand_for(hot_token_ids: Any, tokens: Tensor | None, rows: int) -> bool:
    """Whether the head's rows stand for the target's tokens that they were trained for.

    SGLang looks draft ids up in `hot_token_ids`, or takes them as they are where it has none.
    """
    taken = torch.arange(rows) if hot_token_ids is None else hot_token_ids
    return tokens is not None and torch.equal(taken, tokens)
