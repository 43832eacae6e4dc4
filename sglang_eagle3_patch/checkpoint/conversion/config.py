"""The `config.json` of a converted draft: flat, as SGLang reads it, and saying all it must say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sglang_eagle3_patch.checkpoint.aux_layers import KEY
from sglang_eagle3_patch.checkpoint.config import (
    ConfigNotUnderstood,
    from_speculators,
    is_speculators,
)
from sglang_eagle3_patch.checkpoint.conversion.options import NotConvertible
from sglang_eagle3_patch.checkpoint.flags import DraftFlags
from sglang_eagle3_patch.checkpoint.rope import rope_mappings
from sglang_eagle3_patch.checkpoint.spec import DraftSpec
from sglang_eagle3_patch.checkpoint.trained_rope import in_both_schemas

ARCHITECTURES = {"mha": "LlamaForCausalLMEagle3", "mla": "Eagle3DeepseekV2ForCausalLM"}
# Of the source, and wrong or without meaning in what is written.
_DROPPED = (
    KEY,
    "_name_or_path",
    "auto_map",
    "fc_norm",
    "norm_before_fc",
    "norm_output",
    "num_aux_hidden_states",
    "partial_rotary_factor",
    "qk_norm",
    "rope_parameters",
    "rope_scaling",
    "rope_theta",
    "speculators_config",
    "speculators_model_type",
    "speculators_version",
    "transformer_layer_config",
    "use_aux_norm",
)
# Of `eagle_config`: what SGLang ignores and computes as these values say.
NEUTRAL = {
    "eh_proj_before_attn": False,
    "next_layer_regular": True,
    "parallel_draft_step": 1,
    "use_input_layernorm_in_first_layer": True,
    "use_mtp_layernorm": False,
}
_EAGLE_DROPPED = (
    KEY,
    "fc_norm",
    "norm_before_fc",
    "norm_output",
    "return_hidden_post_norm",
    "use_last_layernorm",
    *NEUTRAL,
)


def converted_config(
    spec: DraftSpec, flags: DraftFlags, ids: tuple[int, ...] | None
) -> dict[str, Any]:
    """Return the config to write for a draft with these flags and these aux `ids`.

    Nulls say nothing and are dropped; only `draft_vocab_size: null` means something to SGLang,
    the target's head. Flags that are off are left out, since SpecForge's `norm_output: false`
    means another thing; `norm_before_residual` is always stated.
    Raises `NotConvertible` for a speculators config that can't be flattened.
    """
    flat = _flat(spec)
    eagle_config = {
        key: value
        for key, value in (spec.config.get("eagle_config") or {}).items()
        if key not in _EAGLE_DROPPED and value is not None
    }
    config = {k: v for k, v in flat.items() if v is not None and k not in _DROPPED}
    config.update(_sizes(spec), **_rope(spec, flat))
    config["architectures"] = [ARCHITECTURES[spec.attention or "mha"]]
    config.setdefault("model_type", "llama")
    config["num_hidden_layers"] = spec.num_layers
    head = spec.tensors.get("lm_head.weight")
    tied = head is None and spec.tie_word_embeddings is True
    config["tie_word_embeddings"] = tied
    config["draft_vocab_size"] = (
        head.shape[0] if head is not None else spec.sizes.vocab if tied else None
    )
    if "dtype" in config or "torch_dtype" in config:
        dtype = config.get("dtype", config.get("torch_dtype"))
        config.update(dtype=dtype, torch_dtype=dtype)
    config["norm_before_residual"] = flags.norm_before_residual
    on = ("norm_before_fc", "fc_norm", "norm_output", "qk_norm")
    config.update({name: True for name in on if getattr(flags, name)})
    if flags.qkv_bias or flags.o_bias:
        config["attention_bias"] = True
    config["num_aux_hidden_states"] = spec.num_aux
    config["eagle_config"] = {**eagle_config, "use_aux_hidden_state": True}
    if flags.norm_output:
        # SGLang reads the one above; this one has had one meaning to everybody ever since.
        config["eagle_config"]["return_hidden_post_norm"] = True
    if ids is not None:
        config["eagle_config"][KEY] = list(ids)
    return config


def _flat(spec: DraftSpec) -> dict[str, Any]:
    if not is_speculators(spec.config):
        return dict(spec.config)
    layer = spec.config["transformer_layer_config"]
    if isinstance(layer, Mapping) and layer.get("model_type") == "qwen3":
        # To SGLang's class it is a llama layer that also norms q and k.
        layer = {**layer, "model_type": "llama"}
    try:
        return from_speculators({**spec.config, "transformer_layer_config": layer})
    except ConfigNotUnderstood as error:
        raise NotConvertible(str(error), "train the draft anew with a llama layer") from error


def _sizes(spec: DraftSpec) -> dict[str, Any]:
    """State what transformers' config classes would otherwise fill in, each in its own way."""
    sizes = spec.sizes
    if spec.attention == "mla":
        return {}
    stated = {"head_dim": sizes.head_dim, "num_key_value_heads": sizes.kv_heads}
    return {key: value for key, value in stated.items() if value is not None}


def _rope(spec: DraftSpec, flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return the trained rope in both schemas of transformers: 5 reads `rope_parameters`, 4 the
    others. Without a theta it is 10000, which every trainer takes then."""
    for place in (flat, *rope_mappings(flat)):
        theta = place.get("rope_theta")
        if theta is not None and type(theta) not in (int, float):
            raise NotConvertible(f"rope_theta is {theta!r}, no number", "correct it in config.json")
    return in_both_schemas(flat, spec.trained_rope)
