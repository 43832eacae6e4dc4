"""Every cell of `fidelity_cells` in the SGLang of this environment: parity, or a refusal?

Each draft folder is loaded twice by SGLang's own reader of configs, class and loader, with the
plugin and without it, and its logits over three steps are compared with its trainer's.
"""

from __future__ import annotations

import importlib.util
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from sglang_eagle3_patch.checkpoint.config import from_speculators, is_speculators
from sglang_eagle3_patch.errors import DraftError
from sglang_eagle3_patch.hooks.draft_config import as_llama
from sglang_eagle3_patch.parity.checkpoints import draft_tensors
from sglang_eagle3_patch.parity.compare import compare_steps
from sglang_eagle3_patch.parity.sglang_draft import DraftClassMissing, SglangDraft
from tests.contract import flagged_drafts
from tests.contract.releases.fidelity_cells import Cell, cells
from tests.cpu_sglang.pair import forms
from tests.oracles import golden_files as golden

PARITY, OTHER, REFUSED = "parity", "other numbers", "refused: "
# Longer texts list tensors.
_LONGEST_REASON = 180
Outcomes = dict[str, dict[str, Any]]


def measure(folder: Path) -> Outcomes:
    """Return by cell what became of it, and how far its logits are from its trainer's, in units
    of their scale: None where there are none to compare, or they are no numbers."""
    return {
        cell.name: _measure_one(cell, folder / str(number)) for number, cell in enumerate(cells())
    }


def measure_stock(folder: Path) -> Outcomes:
    """The same for a process without the plugin."""
    return {
        cell.name: _measure_one(as_stock_wants_it(cell), folder / str(number))
        for number, cell in enumerate(cells())
    }


def as_stock_wants_it(cell: Cell) -> Cell:
    """Return a speculators cell with its config in SGLang's form and the names that every release
    knows, or stock would read none of it; any other as it is."""
    if not is_speculators(cell.config):
        return cell
    tensors = {name.replace("layers.0.", "midlayer."): x for name, x in cell.tensors.items()}
    return replace(cell, config=from_speculators(as_llama(cell.config)), tensors=tensors)


def _measure_one(cell: Cell, folder: Path) -> dict[str, Any]:
    forms.write(folder, cell.tensors, cell.config)
    try:
        logits = loaded(cell, folder).forward(*cell.inputs, golden.STEPS)
    except Exception as error:  # noqa: BLE001 - SGLang raises anything over a draft it can't serve
        return {"outcome": REFUSED + reason(error, folder), "delta": None}
    if cell.wanted is None:
        return {"outcome": OTHER, "delta": None}
    steps = compare_steps([step[list(cell.rows)] for step in logits], cell.wanted)
    delta = max(step.delta for step in steps)
    agrees = all(step.agrees for step in steps)
    return {
        "outcome": PARITY if agrees else OTHER,
        "delta": delta if math.isfinite(delta) else None,
    }


def loaded(cell: Cell, folder: Path) -> SglangDraft:
    """Return the draft of `folder`, which is the cell's, with the target's tensors lent.

    Raises whatever SGLang or the plugin raises over it.
    """
    draft = SglangDraft(folder)
    with torch.no_grad():
        for name, parameter in draft.model.named_parameters():
            # What is built as ones stays: a norm that nothing fills would be served with them.
            if parameter.dim() > 1 or name.endswith("bias"):
                parameter.fill_(12.0)
    return draft.load(draft_tensors(folder), *cell.lent)


def reason(error: Exception, folder: Path) -> str:
    """Return in one line who refused the draft of `folder`, and why."""
    if isinstance(error, DraftError):
        said = f"{error.patch}: {error.problem}"
    elif isinstance(error, DraftClassMissing):
        said = re.sub(r"SGLang \S+ has", "SGLang has", str(error))
    else:
        said = f"SGLang: {type(error).__name__}: {error}".partition("\n")[0]
    said = said.replace(str(folder), "DRAFT")
    return said if len(said) <= _LONGEST_REASON else f"{said[:_LONGEST_REASON].rstrip()} …"


def scale_of_fc(folder: Path) -> dict[str, dict[str, float]]:
    """Return by class how much the logits change, in units of their scale, when `fc` is 16 times
    as large: `normed` with norm_before_residual, `raw` without it.

    Needs no reference: with the flag, all that fc's output goes through first is a norm.
    """
    makers: dict[str, Callable[..., dict[str, Any]]] = {"llama": flagged_drafts.llama_config}
    if importlib.util.find_spec("sglang.srt.models.kimi_k25_eagle3") is not None:
        makers["mla"] = flagged_drafts.deepseek_config
    changes: dict[str, dict[str, float]] = {}
    for draft_class, make in makers.items():
        for kind, flag in (("normed", True), ("raw", False)):
            config = make(norm_before_residual=flag)
            tensors = flagged_drafts.tensors_for(config)
            scaled = {**tensors, "fc.weight": 16 * tensors["fc.weight"]}
            at = folder / f"{draft_class}-{kind}"
            plain, larger = (
                flagged_drafts.served(at / str(n), x, config)
                for n, x in enumerate((tensors, scaled))
            )
            change = flagged_drafts.difference(larger, plain)
            changes.setdefault(draft_class, {})[kind] = change
    return changes
