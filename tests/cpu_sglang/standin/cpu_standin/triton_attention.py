"""The Triton backend's two attention functions in torch.

Their signatures grow from release to release. A replacement therefore binds its arguments by the
original's own signature, takes those it knows by name, and refuses any other that isn't left at
its default: a feature which is asked for is never silently dropped.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from sgl_kernel.attention import after_prefix, attend, causal
from torch import Tensor

# Scratch space and hints: they have no bearing on what is computed.
HINTS = {
    "max_len_extend",
    "attn_logits",
    "attn_lse",
    "num_kv_splits",
    "max_kv_splits",
    "has_mla",
    "use_pdl",
}
# No default in the signature, and 1.0 for every cache that isn't float8.
NEUTRAL = {"k_scale": 1.0, "v_scale": 1.0}


def bound_like(original: Callable[..., None], replacement: Callable[..., None]) -> Any:
    """Return `replacement`, callable exactly as `original` is.

    Raises NotImplementedError, at the call, for an argument that `replacement` doesn't take and
    that asks for something: it is neither a hint nor at its neutral value.
    """
    signature = inspect.signature(original)
    taken = set(inspect.signature(replacement).parameters)

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> None:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        for name, value in bound.arguments.items():
            if name in taken or name in HINTS:
                continue
            neutral = NEUTRAL.get(name, signature.parameters[name].default)
            if value is not neutral and value != neutral:
                raise NotImplementedError(
                    f"{original.__name__}({name}={value!r}): the CPU stand-in computes plain "
                    f"attention only, that is {name}={neutral!r}. Serve this model on a GPU."
                )
        replacement(**{name: bound.arguments[name] for name in taken})

    return call


def extend(
    q_extend: Tensor,
    k_extend: Tensor,
    v_extend: Tensor,
    o_extend: Tensor,
    k_buffer: Tensor,
    v_buffer: Tensor,
    qo_indptr: Tensor,
    kv_indptr: Tensor,
    kv_indices: Tensor,
    custom_mask: Tensor | None,
    is_causal: bool,
    mask_indptr: Tensor | None,
    sm_scale: float | None,
    skip_prefix_custom_mask: bool,
) -> None:
    """Attend from new tokens to a cached prefix and to the new tokens, written to `o_extend`.

    q_extend `[T, heads, D]`, k_extend `[T, kv_heads, D]`, v_extend `[T, kv_heads, Dv]`, o_extend
    `[T, heads, Dv]`: tokens of request b are rows qo_indptr[b] to qo_indptr[b + 1].
    k_buffer, v_buffer `[slots, kv_heads, D or Dv]`: the cache; the prefix of request b are the
    slots kv_indices[kv_indptr[b] : kv_indptr[b + 1]].
    custom_mask: flat bool, per request from mask_indptr[b] on `[new, prefix + new]`, in place of
    causality. With `skip_prefix_custom_mask` its prefix columns count as visible.
    """
    scale = q_extend.shape[-1] ** -0.5 if sm_scale is None else sm_scale
    rows, prefixes = qo_indptr.tolist(), kv_indptr.tolist()
    for request in range(len(rows) - 1):
        new = slice(rows[request], rows[request + 1])
        count = new.stop - new.start
        if count == 0:
            continue
        slots = kv_indices[prefixes[request] : prefixes[request + 1]]
        keys = after_prefix(k_buffer, slots, k_extend[new])
        values = after_prefix(v_buffer, slots, v_extend[new])
        if custom_mask is not None:
            assert mask_indptr is not None, "a mask comes with its offsets"
            start = int(mask_indptr[request])
            visible = custom_mask[start : start + count * len(keys)].view(count, -1).bool()
            if skip_prefix_custom_mask:
                visible = visible.clone()
                visible[:, : len(slots)] = True
        elif is_causal:
            visible = causal(count, len(slots))
        else:
            visible = torch.ones(count, len(keys), dtype=torch.bool)
        o_extend[new] = attend(q_extend[new], keys, values, visible, scale).to(o_extend.dtype)


def decode(
    q: Tensor,
    k_buffer: Tensor,
    v_buffer: Tensor,
    o: Tensor,
    kv_indptr: Tensor,
    kv_indices: Tensor,
    sm_scale: float,
) -> None:
    """Attend from one token per row to the row's cached tokens, written to `o`.

    q `[rows, heads, D]`, o `[rows, heads, Dv]`; row i sees the slots
    kv_indices[kv_indptr[i] : kv_indptr[i + 1]] of k_buffer, v_buffer `[slots, kv_heads, ..]`.
    """
    starts = kv_indptr.tolist()
    for row in range(len(q)):
        slots = kv_indices[starts[row] : starts[row + 1]].long()
        visible = torch.ones(1, len(slots), dtype=torch.bool)
        this = slice(row, row + 1)
        o[this] = attend(q[this], k_buffer[slots], v_buffer[slots], visible, sm_scale).to(o.dtype)
