"""Which cache slot a token has: reads and writes of the table `req_to_token` `[requests, P]` int32.

Row r, column t of the table is the slot of token t of the request in pool row r. `pool_len` is P,
which the real kernels need as a stride. All indices and lengths are integer tensors `[B]`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sgl_kernel.guard import cpu_op, require


@cpu_op
def assign_req_to_token_pool_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    start_offset: Tensor,
    end_offset: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
) -> None:
    """Enter new slots: columns start to end of each request take the next of `out_cache_loc`.

    req_to_token is written; out_cache_loc int64 holds the slots of all requests one after the
    other. Raises ValueError when it holds too few.
    """
    taken = 0
    for pool, start, end in _rows(req_pool_indices, start_offset, end_offset):
        slots = out_cache_loc[taken : taken + end - start]
        require(len(slots) == end - start, "assign_req_to_token_pool_cpu", "too few slots")
        req_to_token[pool, start:end] = slots.to(req_to_token.dtype)
        taken += end - start


@cpu_op
def assign_extend_cache_locs_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    start_offset: Tensor,
    end_offset: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
) -> None:
    """Read slots back: columns start to end of each request, one after the other.

    out_cache_loc int64 (written) may be longer than that; its tail stays as it is. Raises
    ValueError when it is too short.
    """
    written = 0
    for pool, start, end in _rows(req_pool_indices, start_offset, end_offset):
        target = out_cache_loc[written : written + end - start]
        require(len(target) == end - start, "assign_extend_cache_locs_cpu", "output too short")
        target.copy_(req_to_token[pool, start:end])
        written += end - start


@cpu_op
def assign_draft_cache_locs_contiguous_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    seq_lens: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
    topk: int,
    num_steps: int,
) -> None:
    """Read the slots set aside for drafting: `topk * num_steps` columns from each seq_len on.

    out_cache_loc `[B * topk * num_steps]` int64 (written).
    """
    drafted = topk * num_steps
    assign_extend_cache_locs_cpu(
        req_pool_indices, req_to_token, seq_lens, seq_lens + drafted, out_cache_loc, pool_len
    )


@cpu_op
def build_draft_decode_metadata_cpu(
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    seq_lens: Tensor,
    topk: int,
    num_steps: int,
    pool_len: int,
) -> Tensor:
    """Return a table `[B * topk, P]` int32 with one row for each branch of each draft tree.

    Row b * topk + k: the request's verified slots, then branch k's own `num_steps` draft slots,
    which lie in the request's row at seq_len + k * num_steps. The rest of a row is undefined; here
    it is a slot that no cache has, so that reading it raises.
    """
    table = torch.full(
        (len(seq_lens) * topk, pool_len),
        torch.iinfo(req_to_token.dtype).max,
        dtype=req_to_token.dtype,
    )
    for request, (pool, length) in enumerate(
        zip(req_pool_indices.tolist(), seq_lens.tolist(), strict=True)
    ):
        for branch in range(topk):
            row = table[request * topk + branch]
            drafts = length + branch * num_steps
            row[:length] = req_to_token[pool, :length]
            row[length : length + num_steps] = req_to_token[pool, drafts : drafts + num_steps]
    return table


@cpu_op
def fill_accept_out_cache_loc_cpu(
    accept_index: Tensor, out_cache_loc: Tensor, accept_out_cache_loc: Tensor
) -> None:
    """Collect the slots of accepted nodes: `out_cache_loc[i]` for each i of accept_index but -1.

    accept_index: integer, flat or `[B, S]`; accept_out_cache_loc int64 (written from the front;
    its tail stays as it is).
    """
    accepted = accept_index.flatten()
    accepted = accepted[accepted >= 0].long()
    accept_out_cache_loc[: len(accepted)] = out_cache_loc[accepted]


def _rows(pools: Tensor, starts: Tensor, ends: Tensor) -> zip[tuple[int, int, int]]:
    return zip(pools.tolist(), starts.tolist(), ends.tolist(), strict=True)
