"""Token rows between two steps of speculation."""

from __future__ import annotations

from torch import Tensor

from sgl_kernel.guard import cpu_op


@cpu_op
def fill_bonus_tokens_cpu(
    accept_tokens: Tensor, accept_lens: Tensor, bonus_tokens: Tensor, accept_stride: int
) -> None:
    """Take each request's last accepted token: row b, column accept_lens[b] - 1.

    accept_tokens: B rows of `accept_stride` int32, flat or not; accept_lens `[B]` int32 counts
    the bonus token; bonus_tokens `[B]` int32 (written).
    """
    rows = accept_tokens.view(-1, accept_stride)
    last = accept_lens.long().unsqueeze(1) - 1
    bonus_tokens.copy_(rows.gather(1, last).squeeze(1))


@cpu_op
def rotate_input_ids_cpu(
    input_ids: Tensor,
    extend_start_loc: Tensor,
    extend_seq_lens: Tensor,
    topk_index: Tensor,
    select_index: Tensor | None = None,
) -> None:
    """Shift each request's tokens left by one and put its new token in.

    input_ids int64 (written): request b is the `extend_seq_lens[b]` entries from
    `extend_start_loc[b]` on. The new token `topk_index[b]` goes to their last place, or to the
    absolute place `select_index[b]`. Requests without tokens are left alone.
    """
    new_tokens = topk_index.flatten().tolist()
    places = None if select_index is None else select_index.tolist()
    for row, (start, count) in enumerate(
        zip(extend_start_loc.tolist(), extend_seq_lens.tolist(), strict=True)
    ):
        if count == 0:
            continue
        last = start + count - 1
        input_ids[start:last] = input_ids[start + 1 : last + 1].clone()
        input_ids[last if places is None else places[row]] = new_tokens[row]
