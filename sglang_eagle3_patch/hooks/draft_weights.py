"""draft-weights: every tensor of a draft checkpoint reaches the model, or loading fails.

Why: SGLang's draft classes drop a tensor whose name they don't know and never notice a parameter
that nothing filled; fused and parallel linears cut a tensor that is too large down to size. The
server comes up healthy, the drafter runs on uninitialised memory, and every draft is rejected.
Where: `load_weights` of both draft classes, all releases.
How: names are brought to those of the class in hand (`midlayer.*` or `layers.0.*`, asked of the
model, not of the version), full shapes are compared, and each call of a parameter's weight loader
is watched. The first load of a model is strict; later ones are weight updates, which come in
partial buckets, sometimes the target's: of those only the names of the first load are taken, the
rest is skipped and reported, and nothing raises. Load formats that fill the model past
`load_weights` are refused, dummy weights apart.
When it can go: when upstream accounts for draft weights itself; no release does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from sglang_eagle3_patch.engine.patch import Hook, Patch, Risk
from sglang_eagle3_patch.errors import DraftError
from sglang_eagle3_patch.hooks.parts.expected_tensors import (
    expected_tensors,
    uses_aux_hidden_states,
)
from sglang_eagle3_patch.hooks.parts.launch_facts import facts
from sglang_eagle3_patch.hooks.parts.source_probe import raises_over, source_says
from sglang_eagle3_patch.hooks.parts.weight_ledger import WeightLedger

logger = logging.getLogger(__name__)

NAME = "draft-weights"
# Set on a draft once its first load is over: the names its checkpoint had, none after loaders that
# bypass `load_weights`.
_LOADED = "_eagle3_patch_loaded_names"
# Set on a draft once it was told that a weight update brought the target's tensors.
_TOLD = "_eagle3_patch_update_told"
_OWN_FORMAT = "--speculative-draft-load-format auto"


def load_weights(
    wrapped: Callable[..., Any], draft: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Around a draft class's `load_weights(weights)`."""
    weights, rest = (args[0], args[1:]) if args else (kwargs.pop("weights"), ())
    ledger = WeightLedger.for_draft(draft, expected_tensors(draft))
    names = getattr(draft, _LOADED, None)
    if names is not None:
        own = ledger.of_the_draft(weights, names)
        result = wrapped(ledger.pass_on(own), *rest, **kwargs)
        _report_update(draft, ledger)
        return result
    with ledger.watching(draft):
        result = wrapped(ledger.pass_on(weights), *rest, **kwargs)
    _refuse_unless_whole(draft, ledger)
    setattr(draft, _LOADED, frozenset(ledger.seen.values()))
    return result


def remember_first_load(
    wrapped: Callable[..., Any], runner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Around `ModelRunner.load_model`: dummy weights bypass `load_weights` and are a first load
    too, so that what comes later is an update; other loaders that bypass it are refused."""
    result = wrapped(*args, **kwargs)
    if not (runner.is_draft_worker and runner.spec_algorithm.is_eagle3()):
        return result
    # Since 0.5.23 loading may overlap start-up: then the first load is still to come.
    deferred = getattr(runner, "startup_weight_load", None) is not None
    if not deferred and not hasattr(runner.model, _LOADED):
        load_format = runner.load_config.load_format
        refuse_unaccounted(
            type(runner.model).__name__,
            getattr(load_format, "value", load_format),
            type(runner.loader).__name__,
        )
        setattr(runner.model, _LOADED, frozenset())
    return result


def refuse_unaccounted(draft_class: str, load_format: Any, loader_class: str) -> None:
    """Raise `DraftError` for a load format that fills parameters past `load_weights`, where no
    tensor can be accounted for; dummy weights are asked for as such.

    The loader is named too, since some put another format in the place of their own.
    """
    if load_format == "dummy":
        facts.draft_weights = "dummy"
        return
    cached = load_format == "ipc_cache"
    raise DraftError(
        NAME,
        f"load format {load_format} ({loader_class}) fills {draft_class} without naming tensors, "
        "so that none can be accounted for",
        "start with " + ("--weight-cache-mode off" if cached else _OWN_FORMAT),
    )


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
    if "fc.weight" in ledger.seen and not uses_aux_hidden_states(draft):
        raise DraftError(
            NAME,
            "eagle_config says use_aux_hidden_state: false, but the checkpoint has an fc over "
            f"several aux hidden states {list(ledger.wanted['fc.weight'].shape or ())}, which "
            "would never run",
            "set use_aux_hidden_state to true in the draft's config.json",
        )
    facts.draft_weights = f"all {len(ledger.seen)} tensors"
    facts.draft_tensors = len(ledger.seen)
    logger.info(
        "sglang-eagle3-patch: %s: all %d tensors of the draft loaded into %s",
        NAME,
        len(ledger.seen),
        type(draft).__name__,
    )


def _report_update(draft: Any, ledger: WeightLedger) -> None:
    taken = len(ledger.seen) - len(ledger.misshapen)
    if taken:
        logger.info("sglang-eagle3-patch: %s: weight update: %d tensors taken", NAME, taken)
    failed = ledger.kept_back + list(ledger.misshapen.values())
    if failed:
        logger.warning(
            "sglang-eagle3-patch: %s: weight update: %d of the draft's own tensors are not taken "
            "(%s)%s",
            NAME,
            len(failed),
            ", ".join(failed),
            f"; beside them came {ledger.unused[0]}" if ledger.kept_back else "",
        )
    # A trainer sends the target's tensors in many buckets, and again at every step.
    if ledger.unused and not hasattr(draft, _TOLD):
        setattr(draft, _TOLD, True)
        logger.warning(
            "sglang-eagle3-patch: %s: weight update: %d tensors skipped that are not the draft's, "
            "the first: %s; said once. Names that a target has too are taken in a bucket with "
            "one that only the draft has.",
            NAME,
            len(ledger.unused),
            ledger.unused[0],
        )


def accounts_for_weights(draft_class: Any) -> bool:
    """Whether the class's `load_weights` raises over what is missing."""
    return raises_over(draft_class, "load_weights", "missing")


def draft_classes_account(_runner_class: Any) -> bool:
    """The same, of a class that is read and not imported: whether `load_weights` keeps account."""
    return source_says("srt/models/llama_eagle3.py", "load_weights", "mark_loaded")


PATCH = Patch(
    name=NAME,
    title="Account for every draft tensor, or refuse to load",
    hooks=(
        Hook(
            module="sglang.srt.models.llama_eagle3",
            attribute="LlamaForCausalLMEagle3.load_weights",
            parameters=("weights",),
            wrapper=load_weights,
            fixed_when=accounts_for_weights,
        ),
        Hook(
            module="sglang.srt.models.kimi_k25_eagle3",
            attribute="Eagle3DeepseekV2ForCausalLM.load_weights",
            absent_module_ok=True,
            parameters=("weights",),
            wrapper=load_weights,
            fixed_when=accounts_for_weights,
        ),
        Hook(
            module="sglang.srt.model_executor.model_runner",
            attribute="ModelRunner.load_model",
            wrapper=remember_first_load,
            fixed_when=draft_classes_account,
        ),
    ),
    processes=("scheduler",),
    applies=">=0.5.9",
    reason="Unknown names are dropped, missing ones never noticed, too large ones cut to size.",
    upstream="https://github.com/sgl-project/sglang/issues/27908",
    remove_when="the draft classes raise on missing and unused tensors themselves",
    risk=Risk.LOAD_TIME,
)
