"""draft-config: a draft config is read as its trainer meant it, or refused by name.

Why: SGLang has no word for `speculators` configs (no top-level `model_type`, the layer's config
nested), and its draft classes ignore flags they don't implement: the draft then computes
something else than was trained, without a word.
Where: `PretrainedConfig.get_config_dict`, through which transformers and SGLang read every
`config.json`; `__init__` of both draft classes, where it is known what the class can compute.
How: a speculators EAGLE-3 config is translated in memory; everything else passes untouched. After
construction, each flag of the config is compared with what the model has, draft-forward's pieces
included.
When it can go: when upstream reads speculators configs and refuses flags it ignores.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from sglang_eagle3_patch.checkpoint.config import (
    ConfigNotUnderstood,
    as_llama,
    from_speculators,
    is_eagle3,
    is_speculators,
)
from sglang_eagle3_patch.checkpoint.config_keys import never_computed
from sglang_eagle3_patch.engine.patch import Hook, Patch, Risk
from sglang_eagle3_patch.errors import DraftError
from sglang_eagle3_patch.hooks.parts.asked_flags import AskedFlags
from sglang_eagle3_patch.hooks.parts.draft_pieces import lacking, trained_amplitude
from sglang_eagle3_patch.hooks.parts.source_probe import raises_over, source_says

logger = logging.getLogger(__name__)

NAME = "draft-config"
_RETRAIN = "serve a draft trained without it, or a release that computes it"
_ONE_WINDOW = "train all of its layers with one window, or none"
# What the draft class lacks and nothing put in; draft-forward puts most of it in.
_IGNORED = {
    "norm_before_residual": "norm_before_residual is true, which no SGLang release computes",
    "norm_before_fc": "norm_before_fc is true, and the class has no input_norm",
    "fc_norm": "fc_norm is true, and the class has no fc_norm",
    "norm_output": "norm_output is true, and the class recurs before the norm",
    "qk_norm": "its layer is Qwen3's, and the class has no q_norm and k_norm",
    "qkv_bias": "attention_bias is true, and the class builds q, k and v without a bias",
    "mlp_bias": "mlp_bias is true, and the class builds its MLP without a bias",
}


def get_config_dict(
    wrapped: Callable[..., Any], _class: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Around `get_config_dict(path, …) -> (config, unused keyword arguments)`."""
    result = wrapped(*args, **kwargs)
    config = result[0]
    if not (isinstance(config, dict) and is_eagle3(config)):
        return result
    path = args[0] if args else kwargs.get("pretrained_model_name_or_path")
    never = never_computed(config)
    if never:
        raise DraftError(
            NAME,
            f"the config of the draft {path} asks for what no SGLang release computes: "
            + ", ".join(never),
            "serve a draft trained without it, or drop the key from its config.json if it means "
            "nothing to the draft",
        )
    if not is_speculators(config):
        return result
    try:
        return (from_speculators(as_llama(config)), *result[1:])
    except ConfigNotUnderstood as error:
        raise DraftError(
            NAME,
            f"the config of the draft {path} can't be read: {error}",
            "train or convert the draft with a llama layer",
        ) from error


def draft_init(
    wrapped: Callable[..., Any], draft: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Around a draft class's `__init__(config, …)`."""
    result = wrapped(*args, **kwargs)
    ignored = ignored_flags(draft)
    if ignored:
        problems, remedies = zip(*ignored, strict=True)
        raise DraftError(
            NAME,
            f"{type(draft).__name__} would not compute what the draft was trained to compute: "
            + "; ".join(problems),
            remedies[0],
        )
    return result


def ignored_flags(draft: Any) -> list[tuple[str, str]]:
    """Return what the draft's config asks for and the model in hand ignores, with remedies."""
    asked = AskedFlags.of(draft.config)
    found: list[tuple[str, str]] = []
    if asked.norm_before_residual is None:
        found.append(
            (
                "norm_before_residual is unstated, and trainers differ in what they take it for",
                "write norm_before_residual: false (or true) into the draft's config.json, "
                "as it was trained",
            )
        )
    found += [(_IGNORED[flag], _RETRAIN) for flag in lacking(draft, asked)]
    if (amplitude := trained_amplitude(draft)) is not None:
        found.append(
            (f"its yarn has an amplitude of {amplitude:.4g}, and the class another", _RETRAIN)
        )
    window = _trained_window(draft.config)
    if window is not None and set(draft.config.layer_types) != {"sliding_attention"}:
        found.append(
            (
                f"its layer_types are {draft.config.layer_types}, and SGLang gives all layers of a "
                "draft one window or none",
                _ONE_WINDOW,
            )
        )
    # Trainers count a window's keys with the token itself, SGLang without it.
    elif window is not None and _served_window(draft) != window - 1:
        remedy = (
            f"start with --speculative-draft-window-size {window - 1}"
            if hasattr(draft, "get_attention_sliding_window_size")
            else _RETRAIN
        )
        found.append((f"it attends to a sliding window of {window} tokens", remedy))
    return found


def _served_window(draft: Any) -> int | None:
    # Releases before 0.5.12 have no window for drafts.
    ask = getattr(draft, "get_attention_sliding_window_size", None)
    window: int | None = ask() if ask is not None else None
    return window


def _trained_window(config: Any) -> int | None:
    # Config classes of other families fill windows in by themselves; llama's states what it was
    # given, and speculators' configs become llama's.
    if config.model_type != "llama":
        return None
    types = getattr(config, "layer_types", None) or ()
    if len(types) > config.num_hidden_layers:  # a list copied from the target
        return None
    return getattr(config, "sliding_window", None) if "sliding_attention" in types else None


def reads_speculators(_config_class: Any) -> bool:
    """Whether SGLang's own reader of configs, which moved, knows what speculators writes."""
    readers = ("srt/utils/hf_transformers/config.py", "srt/utils/hf_transformers_utils.py")
    return any(source_says(file, "speculators", "get_config_dict") for file in readers)


def refuses_flags(draft_class: Any) -> bool:
    """Whether the draft class raises over a flag that it would ignore."""
    return raises_over(draft_class, "__init__", "norm_before_residual")


PATCH = Patch(
    name=NAME,
    title="Read speculators configs; refuse flags the draft class ignores",
    hooks=(
        Hook(
            module="transformers.configuration_utils",
            attribute="PretrainedConfig.get_config_dict",
            parameters=("pretrained_model_name_or_path",),
            wrapper=get_config_dict,
            fixed_when=reads_speculators,
        ),
        Hook(
            module="sglang.srt.models.llama_eagle3",
            attribute="LlamaForCausalLMEagle3.__init__",
            parameters=("config",),
            wrapper=draft_init,
            fixed_when=refuses_flags,
        ),
        Hook(
            module="sglang.srt.models.kimi_k25_eagle3",
            attribute="Eagle3DeepseekV2ForCausalLM.__init__",
            absent_module_ok=True,
            parameters=("config",),
            wrapper=draft_init,
            fixed_when=refuses_flags,
        ),
    ),
    processes=("main", "scheduler"),
    applies=">=0.5.9",
    reason="speculators configs are not understood, unknown flags are ignored without a word.",
    upstream="https://github.com/sgl-project/sglang/issues/33966",
    remove_when="a speculators config loads and a flag the class lacks is an error",
    risk=Risk.NUMERICS,
    # What draft-forward put into the model is no longer ignored; draft-rope reads the config as it
    # was written.
    after=("draft-forward", "draft-rope"),
)
