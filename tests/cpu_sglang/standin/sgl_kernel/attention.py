"""Attention over a paged KV cache, one request after the other, computed in float32.

Keys and values lie in buffers `[slots, kv_heads, D]` and `[slots, kv_heads, Dv]`. The slots of
request b's tokens, in order, are `req_to_token[req_pool_indices[b], :seq_lens[b]]`. With MLA the
cache holds one latent per token, kv_heads is 1, and the value buffer is a view into the first Dv
columns of the key buffer.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sgl_kernel.guard import cpu_op, require


def causal(new: int, prefix: int) -> Tensor:
    """Return `[new, prefix + new]` bool: the whole prefix, then each token and those before."""
    return torch.ones(new, prefix + new, dtype=torch.bool).tril(prefix)


def after_prefix(buffer: Tensor, slots: Tensor, new: Tensor) -> Tensor:
    """Return the cached rows `slots` of `buffer`, then the rows `new`, in the dtype of `new`.

    Without a prefix the two need not have the same shape: an MLA prefill passes full keys while
    the cache holds the latent.
    """
    if len(slots) == 0:
        return new
    return torch.cat([buffer[slots.long()].to(new.dtype), new])


def attend(queries: Tensor, keys: Tensor, values: Tensor, visible: Tensor, scale: float) -> Tensor:
    """Return softmax(scale * q k) v as float32 `[Q, heads, Dv]`.

    queries `[Q, heads, D]`, keys `[K, kv_heads, D]`, values `[K, kv_heads, Dv]`, visible `[Q, K]`
    bool. Query head h reads key-value head h // (heads // kv_heads).
    """
    groups = queries.shape[1] // keys.shape[1]
    q = queries.float().transpose(0, 1)
    k = keys.float().transpose(0, 1).repeat_interleave(groups, 0)
    v = values.float().transpose(0, 1).repeat_interleave(groups, 0)
    scores = (q * scale) @ k.transpose(1, 2)
    weights = scores.masked_fill(~visible, -math.inf).softmax(-1)
    return (weights @ v).transpose(0, 1)


def _require_plain(
    op: str,
    k_scale: float,
    v_scale: float,
    logit_cap: float,
    is_cross_attn: bool,
    sliding_window_size: int,
    encoder_lens: Tensor | None,
    sinks: Tensor | None,
) -> None:
    """Refuse what no EAGLE-3 pair of the tests uses, rather than compute something else."""
    asked = {
        "k_scale": k_scale != 1.0,
        "v_scale": v_scale != 1.0,
        "logit_cap": logit_cap != 0.0,
        "is_cross_attn": is_cross_attn,
        "sliding_window_size": sliding_window_size > 0,
        "encoder_lens": encoder_lens is not None,
        "sinks": sinks is not None,
    }
    wanted = [name for name, on in asked.items() if on]
    if wanted:
        raise NotImplementedError(
            f"sgl_kernel.{op}: {', '.join(wanted)} asked for, but the CPU stand-in computes plain "
            "attention only. Serve this model on a GPU."
        )


@cpu_op
def decode_attention_cpu(
    query: Tensor,
    k_buffer: Tensor,
    v_buffer: Tensor,
    k_scale: float,
    v_scale: float,
    output: Tensor,
    key: Tensor | None,
    value: Tensor | None,
    loc: Tensor,
    attn_logits: Tensor,
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    seq_lens: Tensor,
    sm_scale: float,
    logit_cap: float,
    is_cross_attn: bool,
    sliding_window_size: int,
    encoder_lens: Tensor | None,
    sinks: Tensor | None,
) -> None:
    """Store each row's new key and value at slot `loc`, then attend to the row's `seq_lens` tokens.

    query `[rows, heads, D]`, output `[rows, heads, Dv]` (written), key `[rows, kv_heads, D]` and
    value `[rows, kv_heads, Dv]` of the rows' own tokens, or None when they are cached already.
    `seq_lens` counts the own token. `attn_logits` is the real kernel's scratch space.
    Raises NotImplementedError for anything but plain attention.
    """
    _require_plain(
        "decode_attention_cpu",
        k_scale,
        v_scale,
        logit_cap,
        is_cross_attn,
        sliding_window_size,
        encoder_lens,
        sinks,
    )
    if key is not None and value is not None:
        k_buffer[loc] = key.to(k_buffer.dtype)
        if v_buffer.data_ptr() != k_buffer.data_ptr():  # else MLA: the value is part of the key
            v_buffer[loc] = value.to(v_buffer.dtype)
    for row, (pool, length) in enumerate(
        zip(req_pool_indices.tolist(), seq_lens.tolist(), strict=True)
    ):
        slots = req_to_token[pool, :length].long()
        visible = torch.ones(1, length, dtype=torch.bool)
        attended = attend(query[row : row + 1], k_buffer[slots], v_buffer[slots], visible, sm_scale)
        output[row] = attended[0].to(output.dtype)


@cpu_op
def extend_attention_cpu(
    q_extend: Tensor,
    k_extend: Tensor | None,
    v_extend: Tensor | None,
    o_extend: Tensor,
    k_buffer: Tensor,
    v_buffer: Tensor,
    k_scale: float,
    v_scale: float,
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    seq_lens: Tensor,
    extend_seq_lens: Tensor,
    extend_start_loc: Tensor,
    max_len_extend: int,
    sm_scale: float,
    logit_cap: float,
    is_cross_attn: bool,
    sliding_window_size: int,
    encoder_lens: Tensor | None,
    sinks: Tensor | None,
    tree_mask: Tensor | None = None,
    is_causal: bool = True,
) -> None:
    """Attend from each request's new tokens to its cached prefix and to the new tokens.

    q_extend `[T, heads, D]`, o_extend `[T, heads, Dv]` (written); the `extend_seq_lens[b]` new
    tokens of request b start at row `extend_start_loc[b]` and are the last of its `seq_lens[b]`.
    k_extend `[T, kv_heads, D]`, v_extend `[T, kv_heads, Dv]`: the new tokens' keys and values.

    The prefix is read from the cache, the new tokens from k_extend and v_extend, as the real
    kernel does. It matters: an MLA prefill passes full keys and values (kv_heads = heads) while
    the cache holds the latent, which may even have the same width.

    tree_mask: flat bool, `[new, new]` per request, in place of causality among the new tokens.
    Raises NotImplementedError for anything but plain attention.
    """
    op = "extend_attention_cpu"
    _require_plain(
        op,
        k_scale,
        v_scale,
        logit_cap,
        is_cross_attn or not is_causal,
        sliding_window_size,
        encoder_lens,
        sinks,
    )
    if k_extend is None or v_extend is None:
        raise NotImplementedError(f"sgl_kernel.{op}: layers that share another's keys and values")
    lengths = extend_seq_lens.tolist()
    if tree_mask is not None:
        cells = sum(new * new for new in lengths)
        require(
            tree_mask.numel() == cells, op, f"tree_mask has {tree_mask.numel()} cells, not {cells}"
        )
    mask_start = 0
    for pool, length, new, start in zip(
        req_pool_indices.tolist(),
        seq_lens.tolist(),
        lengths,
        extend_start_loc.tolist(),
        strict=True,
    ):
        if new == 0:
            continue
        prefix = length - new
        require(prefix >= 0, op, f"{new} new tokens in a sequence of {length}")
        visible = causal(new, prefix)
        if tree_mask is not None:
            block = tree_mask.flatten()[mask_start : mask_start + new * new]
            visible[:, prefix:] = block.view(new, new)
            mask_start += new * new
        rows = slice(start, start + new)
        slots = req_to_token[pool, :prefix]
        keys = after_prefix(k_buffer, slots, k_extend[rows])
        values = after_prefix(v_buffer, slots, v_extend[rows])
        o_extend[rows] = attend(q_extend[rows], keys, values, visible, sm_scale).to(o_extend.dtype)
