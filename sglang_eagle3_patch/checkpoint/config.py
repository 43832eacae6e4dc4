"""Draft configs as their producers write them, and as SGLang reads them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard

EAGLE3_ARCHITECTURES = ("LlamaForCausalLMEagle3", "Eagle3DeepseekV2ForCausalLM")
# Fields of a speculators config that mean something to the draft itself.
_CARRIED = (
    "draft_vocab_size",
    "norm_before_residual",
    "norm_before_fc",
    "fc_norm",
    "norm_output",
    "embed_requires_grad",
    "eagle_aux_hidden_state_layer_ids",
    "target_hidden_size",
    "speculators_model_type",
    "speculators_version",
)


class ConfigNotUnderstood(ValueError):
    """A draft config that can't be translated; the text names the field and what it holds."""


def is_speculators(config: Mapping[str, Any]) -> bool:
    """Whether `config` is one of the `speculators` library, of whatever algorithm."""
    return "speculators_model_type" in config and "transformer_layer_config" in config


def is_eagle3(config: Mapping[str, Any]) -> bool:
    """Whether `config` is an EAGLE-3 draft's, in SGLang's own form or in speculators'."""
    if is_speculators(config):
        return bool(config["speculators_model_type"] == "eagle3")
    architectures = config.get("architectures") or []
    return any(name in EAGLE3_ARCHITECTURES for name in architectures)


def as_llama(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a speculators config whose Qwen3 layer is called what it is to SGLang's draft class:
    a llama layer that also norms q and k (`qk_norm`)."""
    layer = config["transformer_layer_config"]
    if not isinstance(layer, Mapping) or layer.get("model_type") != "qwen3":
        return config
    return {
        **config,
        "transformer_layer_config": {**layer, "model_type": "llama", "qk_norm": True},
    }


def from_speculators(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config SGLang needs for a draft that speculators wrote.

    Nested `transformer_layer_config` comes to the top; rope is written in both forms that
    transformers has had. Flags stay under their own names, `norm_before_residual` is None when
    it is unstated: its trainers default to true, its config class to false, so nobody may guess.
    Layer ids move where SGLang looks for them, as outputs (SGLang adds 1).

    Raises `ConfigNotUnderstood` for a layer SGLang has no draft class for, or a field that holds
    something it can't hold.
    """
    layer = config["transformer_layer_config"]
    if not isinstance(layer, Mapping):
        raise ConfigNotUnderstood(f"transformer_layer_config is {type(layer).__name__}, no object")
    model_type = layer.get("model_type", "llama")
    if model_type != "llama":
        raise ConfigNotUnderstood(
            f"transformer_layer_config.model_type is {model_type!r}; SGLang's draft class is a "
            "llama layer and drops what that type adds (q_norm and k_norm)"
        )
    if "vocab_size" not in layer or "hidden_size" not in layer:
        raise ConfigNotUnderstood("transformer_layer_config lacks vocab_size or hidden_size")
    carried = {name: config[name] for name in _CARRIED if config.get(name) is not None}
    translated = {**layer, **carried}
    translated.setdefault("draft_vocab_size", layer["vocab_size"])
    translated.update(
        architectures=["LlamaForCausalLMEagle3"],
        model_type="llama",
        tie_word_embeddings=False,
        norm_before_residual=config.get("norm_before_residual"),
        eagle_config={"use_aux_hidden_state": True},
    )
    if "dtype" in config or "torch_dtype" in config:
        translated["torch_dtype"] = config.get("dtype", config.get("torch_dtype"))
    layers = stated_layer_ids(config)
    if layers:
        translated["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = [x - 1 for x in layers]
    _write_rope_both_ways(translated)
    return translated


def is_layer_list(ids: Any) -> TypeGuard[list[int]]:
    """Whether `ids` is a list of layer numbers that isn't empty."""
    return isinstance(ids, list) and bool(ids) and all(type(i) is int and i >= 0 for i in ids)


def stated_layer_ids(config: Mapping[str, Any]) -> list[int] | None:
    """Return the top-level aux layer ids of a config, None when it states none.

    Raises `ConfigNotUnderstood` when they are anything but a list of layer numbers.
    """
    ids = config.get("eagle_aux_hidden_state_layer_ids")
    if ids is None:
        return None
    if not is_layer_list(ids):
        raise ConfigNotUnderstood(
            f"eagle_aux_hidden_state_layer_ids is {ids!r}, no list of layer numbers"
        )
    return ids


def _write_rope_both_ways(config: dict[str, Any]) -> None:
    """transformers 5 reads and writes `rope_parameters`, 4 reads `rope_theta`, `rope_scaling`."""
    parameters = config.get("rope_parameters")
    if isinstance(parameters, Mapping):
        config.setdefault("rope_theta", parameters.get("rope_theta", 10000.0))
        if "partial_rotary_factor" in parameters:  # SGLang looks for it at the top alone
            config.setdefault("partial_rotary_factor", parameters["partial_rotary_factor"])
        kind = parameters.get("rope_type", "default")
        if kind != "default" and not config.get("rope_scaling"):
            config["rope_scaling"] = {k: v for k, v in parameters.items() if k != "rope_theta"}
    elif "rope_theta" in config:
        scaling = config.get("rope_scaling") or {"rope_type": "default"}
        config["rope_parameters"] = {"rope_theta": config["rope_theta"], **scaling}
    if not config.get("rope_scaling"):
        config.pop("rope_scaling", None)
