"""load-paths: launch arguments that are meant for the target do not change the draft in silence.

Why: `--quantization` is inherited by the draft, so that one trained in bfloat16 is built with the
target's method; `--json-model-override-args` is written over the draft's config too, which then
describes another model than its tensors are.
Where: `ServerArgs.resolve_once` where arguments are resolved on demand, else
`ServerArgs.__post_init__`; both run in every route (launcher, `sglang serve`, `sgl.Engine`).
How: before SGLang resolves its arguments the draft's config and headers are read. A draft that is
not quantised becomes `unquant`, unless its own flag says otherwise. Overrides that change what the
draft is built of are refused, those that change what it computes are told.
When it can go: when upstream keeps the target's arguments from the draft.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from typing import Any

from sglang_eagle3_patch.checkpoint.config import is_eagle3
from sglang_eagle3_patch.checkpoint.locate import local_folder
from sglang_eagle3_patch.engine.patch import Hook, Patch, Risk
from sglang_eagle3_patch.errors import DraftError
from sglang_eagle3_patch.hooks.parts.local_draft import read_draft
from sglang_eagle3_patch.hooks.parts.source_probe import source_says

logger = logging.getLogger(__name__)

NAME = "load-paths"
# EAGLE and its alias NEXTN may have been meant for an EAGLE-3 draft: eagle3-mode promotes them.
_ALGORITHMS = ("EAGLE3", "EAGLE", "NEXTN")
# What a checkpoint says of its quantisation, in config.json or in a file beside it.
_QUANTISATION_KEYS = ("quantization_config", "compression_config")
_QUANTISATION_FILES = ("hf_quant_config.json", "quant_config.json", "quantize_config.json")
# Integers and booleans by nature.
_MAPS = ("d2t", "t2d")
_FLOATS = ("F64", "F32", "F16", "BF16")
# Keys that say what the draft is built of: its tensors fit one value of each.
_STRUCTURE = """
architectures draft_vocab_size fc_norm head_dim hidden_size intermediate_size kv_lora_rank
model_type norm_before_fc num_attention_heads num_aux_hidden_states num_hidden_layers
num_key_value_heads q_lora_rank qk_nope_head_dim qk_rope_head_dim quantization_config
target_hidden_size tie_word_embeddings use_aux_norm v_head_dim vocab_size
"""
# Keys by which the same tensors compute something else.
_COMPUTATION = """
attention_bias bias eagle_config hidden_act layer_types mlp_bias norm_before_residual norm_output
partial_rotary_factor rms_norm_eps rope_interleave rope_parameters rope_scaling rope_theta
sliding_window use_sliding_window
"""


def before_resolution(
    wrapped: Callable[..., Any], server_args: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Before `ServerArgs` resolves itself."""
    if getattr(server_args, "_resolution_finished", False):
        return wrapped(*args, **kwargs)
    algorithm = str(getattr(server_args, "speculative_algorithm", None) or "").upper()
    if algorithm in _ALGORITHMS and _concerns_the_draft(server_args):
        draft = server_args.speculative_draft_model_path
        config = _read_config(server_args, draft)
        if config is not None and is_eagle3(config):
            _keep_unquantised(server_args, draft, config)
            check_overrides(_overrides(server_args), config, draft)
    return wrapped(*args, **kwargs)


def _concerns_the_draft(server_args: Any) -> bool:
    return bool(server_args.speculative_draft_model_path) and bool(
        _inherits(server_args) or _overrides(server_args)
    )


def _inherits(server_args: Any) -> bool:
    own = server_args.speculative_draft_model_quantization
    return own is None and server_args.quantization not in (None, "unquant")


def _overrides(server_args: Any) -> Mapping[str, Any]:
    try:
        overrides = json.loads(server_args.json_model_override_args or "{}")
    except (TypeError, ValueError):
        return {}  # SGLang reads it next, and its error is the user's
    return overrides if isinstance(overrides, dict) else {}


def _read_config(server_args: Any, draft: str) -> dict[str, Any] | None:
    from transformers import PretrainedConfig

    config: dict[str, Any]
    try:
        config, _ = PretrainedConfig.get_config_dict(
            draft, revision=server_args.speculative_draft_model_revision
        )
    except DraftError:
        raise
    except Exception as error:  # noqa: BLE001 - SGLang reads it next, and its error is the user's
        logger.debug("sglang-eagle3-patch: %s: %s can't be read: %s", NAME, draft, error)
        return None
    return config


def _keep_unquantised(server_args: Any, draft: str, config: Mapping[str, Any]) -> None:
    revision = server_args.speculative_draft_model_revision
    if not _inherits(server_args) or is_quantised(draft, revision, config):
        return
    logger.warning(
        "sglang-eagle3-patch: %s: %s is not quantised and would be built with the target's "
        "--quantization %s; it is served as it is. Fix: say so with "
        "--speculative-draft-model-quantization unquant, or name the method to quantise it.",
        NAME,
        draft,
        server_args.quantization,
    )
    server_args.speculative_draft_model_quantization = "unquant"


def is_quantised(draft: str, revision: str | None, config: Mapping[str, Any]) -> bool:
    """Return whether a draft checkpoint is quantised, by its config, the files beside it and the
    dtypes of its tensors; what isn't local says nothing."""
    if any(config.get(key) for key in _QUANTISATION_KEYS):
        return True
    folder = local_folder(draft, revision)
    if folder is not None and any((folder / name).is_file() for name in _QUANTISATION_FILES):
        return True
    spec = read_draft(draft, revision, NAME)
    tensors = {} if spec is None else spec.tensors
    return any(header.dtype not in _FLOATS for name, header in tensors.items() if name not in _MAPS)


def check_overrides(overrides: Mapping[str, Any], config: Mapping[str, Any], draft: str) -> None:
    """Refuse overrides of a draft's structure, and warn of those that change its computation.

    Raises `DraftError` naming the keys with both values.
    """
    changed = {key: value for key, value in overrides.items() if config.get(key) != value}
    structure = sorted(changed.keys() & set(_STRUCTURE.split()))
    if structure:
        told = ", ".join(
            f"{key} {json.dumps(changed[key])} over {json.dumps(config.get(key))}"
            for key in structure
        )
        raise DraftError(
            NAME,
            f"--json-model-override-args is written over the config of {draft} too, whose tensors "
            f"are of another structure: {told}",
            "put what is meant for the target into the target's config.json",
        )
    computation = sorted(changed.keys() & set(_COMPUTATION.split()))
    if computation:
        logger.warning(
            "sglang-eagle3-patch: %s: --json-model-override-args is written over the config of %s "
            "too and changes what it computes: %s. Fix: put what is meant for the target into the "
            "target's config.json.",
            NAME,
            draft,
            ", ".join(computation),
        )


def keeps_target_arguments_from_draft(_server_args_class: Any) -> bool:
    """Whether the resolution of arguments, which moved, looks at the draft's own quantisation."""
    resolutions = ("srt/arg_groups/serving_hook.py", "srt/server_args.py")
    return any(
        source_says(file, "speculative_draft_model_quantization", "quantization_config")
        for file in resolutions
    )


PATCH = Patch(
    name=NAME,
    title="Keep the target's quantisation and overrides from the draft",
    hooks=(
        Hook(
            module="sglang.srt.server_args",
            attribute="ServerArgs.resolve_once",
            wrapper=before_resolution,
            fixed_when=keeps_target_arguments_from_draft,
            optional=True,
            slot="resolution",
        ),
        Hook(
            module="sglang.srt.server_args",
            attribute="ServerArgs.__post_init__",
            wrapper=before_resolution,
            fixed_when=keeps_target_arguments_from_draft,
            slot="resolution",
        ),
    ),
    processes=("main",),
    applies=">=0.5.9",
    reason="The draft inherits --quantization and --json-model-override-args from the target.",
    upstream="none: no issue asks for separate overrides",
    remove_when="the draft's quantisation and config are its own",
    risk=Risk.LOAD_TIME,
)
