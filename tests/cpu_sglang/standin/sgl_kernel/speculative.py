"""What NGRAM speculation asks of sgl-kernel: not EAGLE's, but a test shows it untouched by us."""

from __future__ import annotations

from torch import Tensor

from sgl_kernel.guard import cpu_op

NONE = -1


@cpu_op
def reconstruct_indices_from_tree_mask(
    tree_mask: Tensor,
    verified_seq_len: Tensor,
    positions: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    batch_size: int,
    draft_token_num: int,
) -> None:
    """Write the links of each request's draft tree, told by a mask of ancestors.

    tree_mask, flat `[B * N * N]` bool: entry (b, i, j) says that node j is node i or an ancestor
    of it; ancestors stand before their descendants. verified_seq_len `[B]` integer.
    Written, each flat `[B * N]` or `[B, N]` integer: positions, the sequence's length plus the
    node's depth; retrive_index, the node's flat index; retrive_next_token, its first child;
    retrive_next_sibling, the next child of its parent; -1 for none.
    """
    shape = (batch_size, draft_token_num)
    masks = tree_mask.view(batch_size, draft_token_num, draft_token_num).tolist()
    for row, mask in enumerate(masks):
        above = [
            [other for other in range(node) if mask[node][other]] for node in range(draft_token_num)
        ]
        parent = [max(ancestors, default=NONE) for ancestors in above]
        for node, ancestors in enumerate(above):
            later = range(node + 1, draft_token_num)
            children = [other for other in later if parent[other] == node]
            siblings = [other for other in later if parent[other] == parent[node] != NONE]
            positions.view(shape)[row, node] = int(verified_seq_len[row]) + len(ancestors)
            retrive_index.view(shape)[row, node] = row * draft_token_num + node
            retrive_next_token.view(shape)[row, node] = min(children, default=NONE)
            retrive_next_sibling.view(shape)[row, node] = min(siblings, default=NONE)
