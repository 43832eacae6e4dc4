"""draft-forward: a draft computes what its trainer computed, where SGLang's class lacks a piece.

Why: `norm_before_residual`, on by default in speculators' trainers, is computed by no release;
`norm_before_fc`, `fc_norm` and `norm_output` only by newer ones and not by both draft classes;
biases of q, k and v, and Qwen3's norms of q and k, by neither; yarn's `mscale` only by newer ones,
its `attention_factor` by none. What the class ignores loads, and something else is computed.
`norm_output` also has two meanings: SpecForge switched the norm before the head by it until
September 2026, and what recurs since.
ModelOpt's trainer norms the hidden state twice, and its config doesn't say so.
Where: `__init__` of both draft classes, where the model is built and nothing is loaded yet;
`load_weights`, where names tell the producer.
How: what the config asks for and the class has not is put into the built model: a submodule under
the name that checkpoints and the class's loader know it by, or a torch hook on one.
When it can go: when both draft classes compute `norm_before_residual` and `norm_before_fc`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

from sglang_eagle3_patch.checkpoint.flags import norm_output_alone
from sglang_eagle3_patch.checkpoint.producers import recognise
from sglang_eagle3_patch.engine.patch import Hook, Patch, Risk
from sglang_eagle3_patch.errors import DraftError
from sglang_eagle3_patch.hooks.parts.asked_flags import AskedFlags
from sglang_eagle3_patch.hooks.parts.draft_pieces import (
    PIECES,
    double_input_norm,
    lacking,
    set_amplitude,
    trained_amplitude,
)
from sglang_eagle3_patch.hooks.parts.expected_tensors import inner_model
from sglang_eagle3_patch.hooks.parts.launch_facts import facts
from sglang_eagle3_patch.hooks.parts.source_probe import source_says

logger = logging.getLogger(__name__)

NAME = "draft-forward"
# Set on a draft whose producer has been asked for, once.
_RECOGNISED = "_eagle3_patch_producer_recognised"


def draft_init(
    wrapped: Callable[..., Any], draft: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """After a draft class's `__init__(config, …)`."""
    result = wrapped(*args, **kwargs)
    added = add_what_is_lacking(draft)
    asked = [flag for flag, on in asdict(AskedFlags.of(draft.config)).items() if on]
    facts.draft_flags = tuple(
        f"{flag} on ({'patched' if flag in added else 'by its class'})"
        for flag in dict.fromkeys((*asked, *added))
    )
    if added:
        logger.info(
            "sglang-eagle3-patch: %s: computed for %s: %s",
            NAME,
            type(draft).__name__,
            ", ".join(added),
        )
    return result


def add_what_is_lacking(draft: Any) -> list[str]:
    """Put into the draft what its config asks for and its class lacks; returns their names.

    What can't be put in is left to draft-config to refuse.
    """
    flags = [flag for flag in lacking(draft, AskedFlags.of(draft.config)) if flag in PIECES]
    if "norm_before_fc" in flags and getattr(inner_model(draft), "fc_norm", None) is not None:
        # The class norms each state right before fc, and the norm over all comes before that.
        flags.remove("norm_before_fc")
    for flag in flags:
        PIECES[flag](draft)
    amplitude = trained_amplitude(draft)
    if amplitude is not None:
        set_amplitude(draft, amplitude)
        flags.append(f"yarn's amplitude {amplitude:.4g}")
    return flags


def load_weights(
    wrapped: Callable[..., Any], draft: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Around a draft class's first `load_weights(weights)`, whose names tell the producer."""
    if getattr(draft, _RECOGNISED, False):
        return wrapped(*args, **kwargs)
    weights, rest = (args[0], args[1:]) if args else (kwargs.pop("weights"), ())
    names: list[str] = []

    def noting() -> Iterator[tuple[str, Any]]:
        for name, tensor in weights:
            names.append(name)
            yield name, tensor

    result = wrapped(noting(), *rest, **kwargs)
    setattr(draft, _RECOGNISED, True)
    heed_producer(draft, names)
    return result


def heed_producer(draft: Any, names: list[str]) -> None:
    """Put in what only the producer tells, whom these names and the config tell: the second norm.

    Raises `DraftError` for a `norm_output` whose meaning to its producer changed with time, unless
    `return_hidden_post_norm` says what recurs.
    """
    config = draft.config.to_dict()
    stated = norm_output_alone(config)
    producer = recognise(config, names)
    if producer.double_input_norm:
        double_input_norm(draft)
        facts.draft_flags += ("double_input_norm on (patched)",)
        logger.info(
            "sglang-eagle3-patch: %s: this draft looks like one of %s, whose trainer norms the "
            "hidden state by input_layernorm and then by hidden_norm: both are computed",
            NAME,
            producer.name,
        )
    if producer.norm_output == "head" and stated is not None:
        raise DraftError(
            NAME,
            f"norm_output is {str(stated).lower()} and this looks like a draft of "
            f"{producer.name}: to SpecForge it meant the norm before the head until September "
            "2026, and what recurs since",
            "say what recurs: write return_hidden_post_norm: true or false into the eagle_config "
            "of its config.json, and drop norm_output",
        )
    if producer.norm_output == "unknown" and stated:
        logger.warning(
            "sglang-eagle3-patch: %s: norm_output is true, and nothing tells who wrote this draft: "
            "what recurs is normed, as SGLang and speculators mean it; to SpecForge it meant the "
            "norm before the head until September 2026. Fix: write return_hidden_post_norm: true "
            "or false into the eagle_config of its config.json, and drop norm_output.",
            NAME,
        )


def llama_class_computes(_draft_class: Any) -> bool:
    """Whether `llama_eagle3`'s layer knows `norm_before_residual`."""
    return source_says("srt/models/llama_eagle3.py", "norm_before_residual", "hidden_norm")


def mla_class_computes(_draft_class: Any) -> bool:
    """Whether `kimi_k25_eagle3`'s layer knows it, and its model `norm_before_fc`."""
    file = "srt/models/kimi_k25_eagle3.py"
    return source_says(file, "norm_before_residual", "hidden_norm") and source_says(
        file, "input_norm"
    )


def _hooks(module: str, draft_class: str, computes: Callable[[Any], bool]) -> tuple[Hook, ...]:
    wrappers = ((draft_init, "__init__", "config"), (load_weights, "load_weights", "weights"))
    return tuple(
        Hook(
            module=module,
            attribute=f"{draft_class}.{method}",
            # The MLA class came with 0.5.12.
            absent_module_ok=module.endswith("kimi_k25_eagle3"),
            parameters=(parameter,),
            wrapper=wrapper,
            fixed_when=computes,
        )
        for wrapper, method, parameter in wrappers
    )


PATCH = Patch(
    name=NAME,
    title="Compute norms and biases that the draft class lacks",
    hooks=(
        *_hooks("sglang.srt.models.llama_eagle3", "LlamaForCausalLMEagle3", llama_class_computes),
        *_hooks(
            "sglang.srt.models.kimi_k25_eagle3", "Eagle3DeepseekV2ForCausalLM", mla_class_computes
        ),
    ),
    processes=("scheduler",),
    applies=">=0.5.9",
    reason="The draft classes ignore flags of training that they don't implement.",
    upstream="https://github.com/sgl-project/sglang/issues/33966",
    remove_when="both draft classes compute norm_before_residual and norm_before_fc",
    risk=Risk.NUMERICS,
    # Names are as in the file only outside of draft-weights, which renames them.
    after=("draft-weights",),
)
