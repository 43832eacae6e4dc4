"""Examines the plugin in the SGLang of this environment; prints one JSON object, last of all.

Run by `run.examine`, with the stand-in's variables and none of the plugin's.
"""

from __future__ import annotations

import gc
import importlib.util
import json
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

import sglang_eagle3_patch
from sglang_eagle3_patch.checkpoint.spec import DraftSpec
from sglang_eagle3_patch.engine.patch import Status
from sglang_eagle3_patch.errors import DraftError
from sglang_eagle3_patch.hooks.parts.target_capture import captured_inputs, capturing_module
from sglang_eagle3_patch.parity.checkpoints import draft_tensors, target_tensors
from sglang_eagle3_patch.parity.compare import compare_steps, random_inputs
from sglang_eagle3_patch.parity.sglang_draft import SglangDraft, become_rank, make_batch
from sglang_eagle3_patch.reference import ReferenceDraft
from tests.contract import drafts
from tests.contract.releases import capturing, doctor_observed, fidelity, launching
from tests.cpu_sglang.pair import forms

STEPS = 3
# The forwards in which states come from a target: over a prompt, and after verifying.
TARGET_FED = ("EXTEND", "DRAFT_EXTEND_V2")
TARGET = forms.TARGET
Form = tuple[drafts.Tensors, dict[str, Any]]


def prefixed_form() -> Form:
    tensors, config = forms.founding()
    return drafts.prefixed("model.")(tensors), config


def mla_form() -> Form:
    return drafts.mla_tensors(), drafts.mla_config()


DRAFTS: dict[str, Callable[[], Form]] = {
    "native": forms.FORMS["native"],
    "founding": forms.FORMS["founding"],
    "speculators": forms.FORMS["speculators"],
    "speculators-norm-before-residual": forms.FORMS["speculators-norm-before-residual"],
    "prefixed": prefixed_form,
    "mla": mla_form,
}


def main() -> None:
    """Print what was found; a part that raises is reported as `{"error": …}`."""
    import sglang

    reports = sglang_eagle3_patch.rehearse()
    become_rank(str(TARGET))
    with tempfile.TemporaryDirectory() as folder:
        folders = {
            name: forms.write(Path(folder) / name, *make())
            for name, make in DRAFTS.items()
            if name != "mla" or has_mla_class()
        }
        found = {
            "release": sglang.__version__,
            "patches": {report.name: report.status.value for report in reports},
            "details": {report.name: report.detail for report in reports if report.detail},
            "waiting": [
                f"{hook.path}: {hook.detail}"
                for report in reports
                for hook in report.hooks
                if hook.status is Status.WAITING
            ],
            "drafts": {name: attempt(examine_draft, folders[name]) for name in folders},
            "one_state": {
                name: attempt(feed_one_state, folders[name])
                for name in ("native", "mla")
                if name in folders
            },
            "kimi": attempt(examine_kimi),
            "launching": attempt(launching.observe),
            "capturing": attempt(capturing.observe),
            "fidelity": attempt(fidelity.measure, Path(folder) / "fidelity"),
            "scale_of_fc": attempt(fidelity.scale_of_fc, Path(folder) / "scale"),
            "doctor": {"plugin": attempt(doctor_observed.observe, Path(folder), "plugin")},
        }
        sglang_eagle3_patch.deactivate()
        found["stock"] = attempt(fidelity.measure_stock, Path(folder) / "stock")
        found["doctor"]["stock"] = attempt(doctor_observed.observe, Path(folder), "stock")
    print(json.dumps(found))


def attempt(part: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
    # SGLang collects garbage for each draft, for a second where all its models are imported.
    gc.freeze()
    try:
        return part(*arguments)
    except Exception:  # noqa: BLE001 - the other parts are still to be told
        return {"error": traceback.format_exc()}


def has_mla_class() -> bool:
    """Whether this release has the MLA draft class; one that can't be imported is an error."""
    name = "sglang.srt.models.kimi_k25_eagle3"
    return importlib.util.find_spec(name) is not None


def examine_draft(folder: Path) -> dict[str, Any]:
    """Load a draft whole and run it beside the reference."""
    spec, tensors, shared = DraftSpec.read(folder), draft_tensors(folder), target_tensors(TARGET)
    draft = SglangDraft(folder)
    with torch.no_grad():
        for parameter in draft.model.parameters():
            parameter.fill_(12.0)
    draft.load(tensors, *shared)
    inputs = (*random_inputs(spec.tensors["fc.weight"].shape[1], 320, STEPS, seed=5), STEPS)
    # The founding config says nothing of its training; no trainer that wrote it did otherwise.
    residual = bool(spec.flags.norm_before_residual)
    flags = replace(spec.flags, norm_before_residual=residual)
    reference = ReferenceDraft.from_spec(spec, tensors, *shared, flags=flags)
    wanted = reference.forward(*inputs)
    return {
        "class": type(draft.model).__name__,
        "unfilled": drafts.unfilled(draft.model),
        "steps": {
            mode: list(map(asdict, compare_steps(draft.forward(*inputs, None, mode), wanted)))
            for mode in TARGET_FED
        },
    }


def feed_one_state(folder: Path) -> dict[str, Any]:
    """Feed target states as wide as a single layer's, in both forwards that a target feeds."""
    from sglang.srt.model_executor.forward_batch_info import ForwardMode

    draft = SglangDraft(folder).load(draft_tensors(folder), *target_tensors(TARGET))
    refusals = {}
    for mode in map(ForwardMode.__getitem__, TARGET_FED):
        ids = torch.arange(4)
        try:
            draft.run(make_batch(ids, ids, torch.randn(4, 128), mode))
        except DraftError as refusal:
            refusals[mode.name] = str(refusal)
    return refusals


def examine_kimi() -> dict[str, Any]:
    """Build the tiny target as the real Kimi-K2.5 class and ask of it what EAGLE-3 asks."""
    from sglang.srt.configs.model_config import ModelConfig
    from sglang.srt.models.kimi_k25 import KimiK25ForConditionalGeneration

    model = KimiK25ForConditionalGeneration(ModelConfig(str(TARGET)).hf_config)
    model.set_eagle3_layers_to_capture([1, 3, 4])
    captured = captured_inputs(capturing_module(model))
    embedding, head = model.get_embed_and_head()
    model.set_embed_and_head(embedding, head)
    return {"captured": captured, "shapes": [list(embedding.shape), list(head.shape)]}


if __name__ == "__main__":
    main()
