"""What a draft model in hand wants from its checkpoint: every tensor, its full shape, its place.

Read off the modules themselves, by their attributes rather than by class or release: SGLang's
fused and parallel layers keep the unsharded sizes they were built from.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

Shape = tuple[int, ...]
# What every draft has of a module; scales and packed forms belong to its quantisation.
WEIGHT_LEAVES = ("weight", "bias")
# Of a quantised weight: the forms in which it comes, and what it must be multiplied by.
PACKED_LEAVES = ("qweight", "weight_packed")
SCALE_LEAVES = ("scales", "weight_scale", "weight_scale_inv", "weight_scale_2")
BY_QUANTISATION = "its quantisation decides"


@dataclass(frozen=True)
class Expected:
    """One tensor the model takes from a checkpoint.

    `shape` is the full, unsharded shape, None when it can't be told (quantised layers).
    `parameter` and `shard` say what the class's loader fills with it. `optional` says why it may
    be missing, "" when it may not.
    """

    shape: Shape | None
    parameter: str
    shard: Any = None
    optional: str = ""


def inner_model(draft: Any) -> Any:
    """Return the module that holds `fc` and the decoder layers."""
    return draft.model


def fc_input_width(fc: Any) -> int:
    """Return the number of values `fc` takes: a torch or an SGLang linear."""
    return int(fc.in_features if hasattr(fc, "in_features") else fc.input_size)


def uses_aux_hidden_states(model: Any) -> bool:
    """Whether a draft (or its inner model) takes aux hidden states; its config can say no."""
    eagle_config = getattr(model.config, "eagle_config", None) or {}
    return bool(eagle_config.get("use_aux_hidden_state", True))


def expected_tensors(draft: Any) -> dict[str, Expected]:
    """Return the tensors that the draft model wants, by canonical name."""
    wanted: dict[str, Expected] = {}
    modules = dict(draft.named_modules())
    heads_padded, mlp_padded = _padded_for_cpu(draft.config)
    for name, parameter in draft.named_parameters():
        path, _, leaf = name.rpartition(".")
        padded = (heads_padded and ".self_attn." in name) or (mlp_padded and ".mlp." in name)
        own_business = leaf not in (*WEIGHT_LEAVES, *PACKED_LEAVES) and _is_quantised(modules[path])
        for tensor, expected in _of_parameter(modules, path, leaf, parameter, padded):
            optional = _may_be_missing(draft, tensor)
            if own_business and not optional:
                optional = BY_QUANTISATION
            wanted[tensor] = Expected(expected.shape, name, expected.shard, optional)
    vocab, draft_vocab = draft.config.vocab_size, getattr(draft.config, "draft_vocab_size", None)
    if draft_vocab is not None:
        reason = "" if draft_vocab < vocab else "the draft's vocabulary is the target's"
        wanted["d2t"] = Expected((draft_vocab,), "", optional=reason)
    return wanted


def _of_parameter(
    modules: dict[str, Any], path: str, leaf: str, parameter: Any, padded: bool
) -> Iterator[tuple[str, Expected]]:
    module = modules[path]
    base, _, own = _canonical(path).rpartition(".")
    base = f"{base}." if base else ""
    plain = leaf in WEIGHT_LEAVES and not _is_quantised(module) and not padded
    if own == "qkv_proj":
        v_size = getattr(module, "v_head_size", module.head_size)
        sizes = {
            "q": module.total_num_heads * module.head_size,
            "k": module.total_num_kv_heads * module.head_size,
            "v": module.total_num_kv_heads * v_size,
        }
        for shard, size in sizes.items():
            full = _linear_shape(leaf, size, module.hidden_size)
            yield f"{base}{shard}_proj.{leaf}", Expected(full if plain else None, "", shard)
    elif own == "gate_up_proj":
        for index, part in enumerate(("gate_proj", "up_proj")):
            full = _linear_shape(leaf, module.output_sizes[index], module.input_size)
            yield f"{base}{part}.{leaf}", Expected(full if plain else None, "", index)
    elif own == "fused_qkv_a_proj_with_mqa":
        attention = modules[path.rpartition(".")[0]]
        rows = {
            "q_a_proj": attention.q_lora_rank,
            "kv_a_proj_with_mqa": attention.kv_lora_rank + attention.qk_rope_head_dim,
        }
        for part, size in rows.items():
            full = _linear_shape(leaf, size, module.input_size)
            yield f"{base}{part}.{leaf}", Expected(full if plain else None, "")
    else:
        full = _full_shape(module, leaf, parameter)
        yield f"{base}{own}.{leaf}", Expected(full if plain else None, "")


def _padded_for_cpu(config: Any) -> tuple[bool, bool]:
    """Whether heads are, and the MLP may be, padded to the tensor-parallel size.

    SGLang does it on CPUs alone, and keeps only the heads' original numbers.
    """
    heads = getattr(config, "original_num_attention_heads", None)
    if heads is None:
        return False, False
    original = (heads, getattr(config, "original_total_num_kv_heads", None))
    return original != (config.num_attention_heads, config.num_key_value_heads), True


def _canonical(path: str) -> str:
    path = path.removeprefix("model.")
    return "layers.0" + path.removeprefix("midlayer") if path.startswith("midlayer") else path


def _linear_shape(leaf: str, rows: int, columns: int) -> Shape:
    return (rows,) if leaf == "bias" else (rows, columns)


def _full_shape(module: Any, leaf: str, parameter: Any) -> Shape:
    if hasattr(module, "org_vocab_size"):
        return _linear_shape(leaf, module.org_vocab_size, module.embedding_dim)
    if hasattr(module, "input_size") and hasattr(module, "output_size"):
        return _linear_shape(leaf, module.output_size, module.input_size)
    return tuple(parameter.shape)


def _is_quantised(module: Any) -> bool:
    method = getattr(module, "quant_method", None)
    return method is not None and not type(method).__name__.startswith("Unquantized")


def _may_be_missing(draft: Any, tensor: str) -> str:
    config = draft.config
    own_width = getattr(config, "target_hidden_size", None) in (None, config.hidden_size)
    if tensor == "embed_tokens.weight" and own_width:
        return "the target's is shared"
    if tensor == "lm_head.weight" and getattr(draft, "load_lm_head_from_target", False):
        return "the target's is shared"
    if tensor.startswith("fc.") and not uses_aux_hidden_states(draft):
        return "the draft takes no aux hidden states"
    if tensor.endswith((".k_scale", ".v_scale")):
        return "a scale of the KV cache"
    if tensor.startswith("layers.") and ".input_layernorm." in tensor:
        layers = getattr(inner_model(draft), "layers", None)
        if layers is not None and not layers[int(tensor.split(".")[1])].is_input_layer:
            return "only the first layer normalises the embedding"
    return ""
