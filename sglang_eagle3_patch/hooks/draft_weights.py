"""draft-weights: every tensor of a draft checkpoint reaches the model, or loading fails.

Why: SGLang's draft classes drop a tensor whose name they don't know and never notice a parameter
that nothing filled; fused and parallel linears cut a tensor that is too large down to size. The
server comes up healthy, the drafter runs on uninitialised memory, and every draft is rejected.
Where: `load_weights` of both draft classes, all releases.
How: names are brought to those of the class in hand (`midlayer.*` or `layers.0.*`, asked of the
model, not of the version), full shapes are compared, and each call of a parameter's weight loader
is watched. The first load of a model is strict; later ones are weight updates, which come in
partial buckets, sometimes the target's: they are reported and filtered, and never raise.
When it can go: when upstream accounts for draft weights itself; no release does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from sglang_eagle3_patch.engine.patch import Hook, Patch, Risk
from sglang_eagle3_patch.errors import DraftError
from sglang_eagle3_patch.hooks.parts.expected_tensors import expected_tensors
from sglang_eagle3_patch.hooks.parts.weight_ledger import WeightLedger

logger = logging.getLogger(__name__)

NAME = "draft-weights"
_LOADED = "_eagle3_patch_first_load_done"


def load_weights(
    wrapped: Callable[..., Any], draft: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Around a draft class's `load_weights(weights)`."""
    weights, rest = (args[0], args[1:]) if args else (kwargs.pop("weights"), ())
    ledger = WeightLedger.for_draft(draft, expected_tensors(draft))
    if getattr(draft, _LOADED, False):
        result = wrapped(ledger.pass_on(weights), *rest, **kwargs)
        _report_update(ledger)
        return result
    with ledger.watching(draft):
        result = wrapped(ledger.pass_on(weights), *rest, **kwargs)
    _refuse_unless_whole(draft, ledger)
    setattr(draft, _LOADED, True)
    return result


def remember_first_load(
    wrapped: Callable[..., Any], runner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Around `ModelRunner.load_model`: loaders that bypass `load_weights` (`--load-format dummy`,
    sharded state) have done the first load too, so that what comes later is an update."""
    result = wrapped(*args, **kwargs)
    if getattr(runner, "is_draft_worker", False):
        setattr(runner.model, _LOADED, True)
    return result


def _refuse_unless_whole(draft: Any, ledger: WeightLedger) -> None:
    complaints = {
        "missing": ledger.missing(),
        "not used": ledger.unused + ledger.dropped(),
        "of another shape": list(ledger.misshapen.values()),
    }
    told = [
        f"{len(names)} {what}: {', '.join(names)}" for what, names in complaints.items() if names
    ]
    if told:
        raise DraftError(
            NAME,
            f"the draft checkpoint does not fit {type(draft).__name__}: {'; '.join(told)}",
            "give a checkpoint whose tensors are those of the model, or correct its config.json",
        )
    logger.info(
        "sglang-eagle3-patch: %s: all %d tensors of the draft loaded into %s",
        NAME,
        len(ledger.seen),
        type(draft).__name__,
    )


def _report_update(ledger: WeightLedger) -> None:
    skipped = ledger.unused + list(ledger.misshapen.values())
    if skipped:
        logger.warning(
            "sglang-eagle3-patch: %s: weight update: %d tensors taken, %d skipped that are not "
            "the draft's, the first: %s",
            NAME,
            len(ledger.seen) - len(ledger.misshapen),
            len(skipped),
            skipped[0],
        )


PATCH = Patch(
    name=NAME,
    title="Account for every draft tensor, or refuse to load",
    hooks=(
        Hook(
            module="sglang.srt.models.llama_eagle3",
            attribute="LlamaForCausalLMEagle3.load_weights",
            parameters=("weights",),
            wrapper=load_weights,
        ),
        Hook(
            module="sglang.srt.models.kimi_k25_eagle3",
            attribute="Eagle3DeepseekV2ForCausalLM.load_weights",
            parameters=("weights",),
            wrapper=load_weights,
        ),
        Hook(
            module="sglang.srt.model_executor.model_runner",
            attribute="ModelRunner.load_model",
            wrapper=remember_first_load,
        ),
    ),
    processes=("scheduler",),
    applies=">=0.5.9",
    reason="Unknown names are dropped, missing ones never noticed, too large ones cut to size.",
    upstream="https://github.com/sgl-project/sglang/issues/27908",
    remove_when="the draft classes raise on missing and unused tensors themselves",
    risk=Risk.LOAD_TIME,
)
