"""Puts the attention ops where SGLang's CPU backend looks for them: `torch.ops.sgl_kernel`."""

from __future__ import annotations

import importlib.metadata
from typing import Any

import torch
from cpu_standin.route import sglang_release

from sgl_kernel.attention import decode_attention_cpu, extend_attention_cpu

# Releases before this one call the attention ops without scales for a float8 cache.
KV_SCALES_SINCE = (0, 5, 20)
_SCALES = "float k_scale, float v_scale, "

_DECODE = (
    "decode_attention_cpu(Tensor query, Tensor(a!) k_buffer, Tensor(b!) v_buffer, {scales}"
    "Tensor(c!) output, Tensor? key, Tensor? value, Tensor loc, Tensor(d!) attn_logits, "
    "Tensor req_to_token, Tensor req_pool_indices, Tensor seq_lens, float sm_scale, "
    "float logit_cap, bool is_cross_attn, int sliding_window_size, Tensor? encoder_lens, "
    "Tensor? sinks) -> ()"
)
_EXTEND = (
    "extend_attention_cpu(Tensor q_extend, Tensor? k_extend, Tensor? v_extend, "
    "Tensor(a!) o_extend, Tensor k_buffer, Tensor v_buffer, {scales}Tensor req_to_token, "
    "Tensor req_pool_indices, Tensor seq_lens, Tensor extend_seq_lens, Tensor extend_start_loc, "
    "int max_len_extend, float sm_scale, float logit_cap, bool is_cross_attn, "
    "int sliding_window_size, Tensor? encoder_lens, Tensor? sinks, Tensor? tree_mask=None, "
    "bool is_causal=True) -> ()"
)

# Definitions live as long as the library object does.
_library = torch.library.Library("sgl_kernel", "FRAGMENT")


def with_kv_scales() -> bool:
    """Tell whether the SGLang on the path passes k_scale and v_scale to the attention ops."""
    try:
        return sglang_release() >= KV_SCALES_SINCE
    except importlib.metadata.PackageNotFoundError:  # ops are tested without SGLang, too
        return True


def register() -> None:
    """Define the ops for every device, so that a tensor elsewhere meets our own refusal."""
    scales = _SCALES
    decode: Any = decode_attention_cpu
    extend: Any = extend_attention_cpu
    if not with_kv_scales():
        scales, decode, extend = "", _decode_without_scales, _extend_without_scales
    _define(_DECODE.format(scales=scales), decode)
    _define(_EXTEND.format(scales=scales), extend)


def _define(schema: str, function: Any) -> None:
    name = schema.partition("(")[0]
    _library.define(schema)
    _library.impl(name, function, "CompositeExplicitAutograd")


def _decode_without_scales(query: Any, k_buffer: Any, v_buffer: Any, *rest: Any) -> None:
    decode_attention_cpu(query, k_buffer, v_buffer, 1.0, 1.0, *rest)


def _extend_without_scales(
    q: Any, k: Any, v: Any, o: Any, k_buffer: Any, v_buffer: Any, *rest: Any
) -> None:
    extend_attention_cpu(q, k, v, o, k_buffer, v_buffer, 1.0, 1.0, *rest)
