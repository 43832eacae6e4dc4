"""Sizes of a draft: as its config states them, and as the shapes of its tensors tell them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from sglang_eagle3_patch.checkpoint.header import TensorHeader


@dataclass(frozen=True)
class DraftSizes:
    """Sizes in elements; None is a size that nobody states, never a default.

    `head_dim` is an MHA draft's; an MLA draft has the five after it instead. `hidden` is the
    draft's own width H, `target_hidden` the width Ht of one aux hidden state, of which `fc`
    takes `num_aux` side by side.
    """

    hidden: int | None = None
    target_hidden: int | None = None
    num_aux: int | None = None
    intermediate: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    q_lora_rank: int | None = None
    kv_lora_rank: int | None = None
    qk_nope_head_dim: int | None = None
    qk_rope_head_dim: int | None = None
    v_head_dim: int | None = None
    vocab: int | None = None
    draft_vocab: int | None = None

    def or_else(self, other: DraftSizes) -> DraftSizes:
        """Return these sizes, with those of `other` where these are None."""
        gaps = {f.name: getattr(other, f.name) for f in fields(self)}
        return replace(self, **{k: v for k, v in gaps.items() if getattr(self, k) is None})

    def differing(self, other: DraftSizes) -> dict[str, tuple[int, int]]:
        """Return the sizes that both know and that differ: name to (own, other's)."""
        pairs = {f.name: (getattr(self, f.name), getattr(other, f.name)) for f in fields(self)}
        return {k: (a, b) for k, (a, b) in pairs.items() if None not in (a, b) and a != b}


# Where a config keeps each size. `intermediate_size_mlp` is llama4_text's dense width: its
# `intermediate_size` is that of an expert.
_KEYS = {
    "hidden": ("hidden_size",),
    "intermediate": ("intermediate_size_mlp", "intermediate_size"),
    "heads": ("num_attention_heads",),
    "kv_heads": ("num_key_value_heads", "num_attention_heads"),
    "head_dim": ("head_dim",),
    "q_lora_rank": ("q_lora_rank",),
    "kv_lora_rank": ("kv_lora_rank",),
    "qk_nope_head_dim": ("qk_nope_head_dim",),
    "qk_rope_head_dim": ("qk_rope_head_dim",),
    "v_head_dim": ("v_head_dim",),
    "vocab": ("vocab_size",),
}


def stated_sizes(config: Mapping[str, Any], layer: Mapping[str, Any]) -> DraftSizes:
    """Return what the config says; `layer` is the part of it that describes the decoder layer.

    Two sizes have a rule of transformers where they are unstated: `head_dim` is
    `hidden_size / num_attention_heads`, and there are as many key heads as heads.
    """
    found = {
        name: next((size for key in keys if (size := _size(layer.get(key)))), None)
        for name, keys in _KEYS.items()
    }
    if not found["head_dim"] and found["hidden"] and found["heads"]:
        found["head_dim"] = found["hidden"] // found["heads"]
    return DraftSizes(
        **found,
        target_hidden=_size(config.get("target_hidden_size")) or found["hidden"],
        num_aux=_stated_aux(config),
        draft_vocab=_size(config.get("draft_vocab_size")),
    )


def shaped_sizes(tensors: Mapping[str, TensorHeader], stated: DraftSizes) -> DraftSizes:
    """Return what the shapes of the first layer and the top-level tensors say.

    `tensors` are under canonical names. Counts of heads can't be seen in shapes; where a size
    follows from a shape and a count (`head_dim`, `num_aux`), the count is taken from `stated`.
    """

    def rows(name: str) -> int | None:
        return _dimension(tensors, name, 0)

    attention = "layers.0.self_attn."
    kv_lora = rows(attention + "kv_a_layernorm.weight")
    kv_a = rows(attention + "kv_a_proj_with_mqa.weight")
    rope = kv_a - kv_lora if kv_a and kv_lora and kv_a > kv_lora else None
    q_rows = rows(attention + "q_b_proj.weight") or rows(attention + "q_proj.weight")
    per_head = _quotient(q_rows, stated.heads)
    nope = per_head - rope if per_head and rope and per_head > rope else None
    head_dim = None if kv_a else per_head
    value = _dimension(tensors, attention + "o_proj.weight", 1)
    return DraftSizes(
        hidden=rows("fc.weight") or rows("norm.weight"),
        num_aux=_quotient(_dimension(tensors, "fc.weight", 1), stated.target_hidden),
        intermediate=rows("layers.0.mlp.gate_proj.weight"),
        kv_heads=_quotient(rows(attention + "k_proj.weight"), head_dim),
        head_dim=head_dim,
        q_lora_rank=rows(attention + "q_a_proj.weight"),
        kv_lora_rank=kv_lora,
        qk_nope_head_dim=nope,
        qk_rope_head_dim=rope,
        v_head_dim=_quotient(value, stated.heads) if kv_a else None,
        vocab=rows("embed_tokens.weight"),
        draft_vocab=rows("lm_head.weight"),
    )


def _stated_aux(config: Mapping[str, Any]) -> int | None:
    nested = config.get("eagle_config")
    ids = config.get("eagle_aux_hidden_state_layer_ids")
    if ids is None and isinstance(nested, Mapping):
        ids = nested.get("eagle_aux_hidden_state_layer_ids")
    return _size(config.get("num_aux_hidden_states")) or (
        len(ids) if isinstance(ids, list) and ids else None
    )


def _size(value: Any) -> int | None:
    return value if type(value) is int and value > 0 else None


def _dimension(tensors: Mapping[str, TensorHeader], name: str, axis: int) -> int | None:
    tensor = tensors.get(name)
    return tensor.shape[axis] if tensor is not None and len(tensor.shape) > axis else None


def _quotient(size: int | None, part: int | None) -> int | None:
    return size // part if size and part and size % part == 0 else None
