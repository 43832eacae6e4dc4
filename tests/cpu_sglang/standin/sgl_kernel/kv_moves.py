"""Moves of cached keys and values from slot to slot."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from sgl_kernel.guard import cpu_op


@cpu_op
def copy_all_layer_kv_cache_cpu(
    data_ptrs: Tensor, strides: Tensor, tgt_loc: Tensor, src_loc: Tensor
) -> None:
    """Copy slots `src_loc` to slots `tgt_loc` in every buffer.

    data_ptrs: addresses of contiguous host buffers, one or two for each layer; strides: bytes of
    one slot in each; src_loc, tgt_loc `[M]` integer. All sources are read before any target is
    written, so the two may overlap.
    """
    if len(tgt_loc) == 0:
        return
    targets, sources = tgt_loc.long(), src_loc.long()
    slots = int(torch.cat([targets, sources]).max()) + 1
    for address, stride in zip(data_ptrs.tolist(), strides.tolist(), strict=True):
        memory = (ctypes.c_uint8 * (slots * stride)).from_address(address)
        buffer = torch.frombuffer(memory, dtype=torch.uint8).view(slots, stride)
        buffer[targets] = buffer[sources]
