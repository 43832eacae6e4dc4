"""Turns the drafter's scored candidates into the tree that the target verifies."""

from __future__ import annotations

import logging

from torch import Tensor

from sgl_kernel.guard import cpu_op, require

logger = logging.getLogger(__name__)

FULL_MASK, QLEN_ONLY = 0, 1
ROOT, NONE = 0, -1


@cpu_op
def build_tree_kernel_efficient_cpu(
    parent_list: Tensor,
    selected_index: Tensor,
    verified_seq_len: Tensor,
    tree_mask: Tensor,
    positions: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    topk: int,
    depth: int,
    draft_token_num: int,
    tree_mask_mode: int,
) -> None:
    """Write mask, positions and links of each request's draft tree.

    A tree has `draft_token_num` nodes: node 0 is the last verified token, node i the candidate
    `selected_index[b, i - 1]`. Candidates are numbered step by step, `topk` children for each
    parent: c belongs to parent group c // topk, group 0 hangs on the root, and the parent of any
    other group g is the candidate `parent_list[b, g]`. Lower numbers in a group score higher.

    parent_list `[B, topk * (depth - 1) + 1]`, or `[B, 0]` for a single step; selected_index
    `[B, N - 1]`, ascending; verified_seq_len `[B]`: all integer.
    tree_mask, flat bool (written): which nodes a node sees, itself and its ancestors. QLEN_ONLY:
    `[B, N, N]`. FULL_MASK: for each request `[N, seq_len + N]`, whose seq_len prefix columns the
    caller has set. It may be longer; releases reckon its size from the longest possible sequence.
    positions, retrive_index, next_token, next_sibling (written), B * N integers each: seq_len plus
    the node's depth; the flat index b * N + i; first child; next sibling. The caller has filled
    the links with -1 for none. Siblings follow in order of score.

    Raises NotImplementedError for another mask mode, ValueError for too small a mask. A
    candidate whose parent wasn't selected (scores that are not numbers) is left unlinked with a
    warning, as the real kernels do.
    """
    op = "build_tree_kernel_efficient"
    mode = int(tree_mask_mode)
    if mode not in (FULL_MASK, QLEN_ONLY):
        raise NotImplementedError(f"sgl_kernel.{op}: tree_mask_mode {mode}, a bit-packed mask")
    nodes = draft_token_num
    lengths = verified_seq_len.flatten().tolist()
    prefixes = lengths if mode == FULL_MASK else [0] * len(lengths)
    cells = sum(nodes * (prefix + nodes) for prefix in prefixes)
    require(tree_mask.numel() >= cells, op, f"tree_mask has {tree_mask.numel()} cells of {cells}")

    masks, start = tree_mask.view(-1), 0
    index, place = retrive_index.view(-1, nodes), positions.view(-1, nodes)
    child, sibling = retrive_next_token.view(-1, nodes), retrive_next_sibling.view(-1, nodes)
    for row, (length, prefix) in enumerate(zip(lengths, prefixes, strict=True)):
        parents = _parents(selected_index[row].tolist(), parent_list[row].tolist(), topk)
        mask = masks[start : start + nodes * (prefix + nodes)].view(nodes, prefix + nodes)
        start += mask.numel()
        mask[:, prefix:] = False
        # Last node first, each one put at the head of its parent's list: lower numbers, which
        # score higher, end up in front.
        for node in range(nodes - 1, 0, -1):
            parent = parents[node]
            if parent is None:
                logger.warning("%s: node %d of request %d has no parent", op, node, row)
                continue
            if child[row, parent] != NONE:
                sibling[row, node] = child[row, parent]
            child[row, parent] = node
        for node in range(nodes):
            seen = _path_to_root(node, parents, depth)
            mask[node, prefix] = True
            for ancestor in seen:
                mask[node, prefix + ancestor] = True
            place[row, node] = length + len(seen)
            index[row, node] = row * nodes + node


def _parents(selected: list[int], parent_of_group: list[int], topk: int) -> list[int | None]:
    """Return the parent node of every node; the root's own entry is None, as is an orphan's."""
    node_of = {candidate: node for node, candidate in enumerate(selected, start=1)}
    parents: list[int | None] = [None]
    for candidate in selected:
        group = candidate // topk
        parents.append(ROOT if group == 0 else node_of.get(int(parent_of_group[group])))
    return parents


def _path_to_root(node: int, parents: list[int | None], depth: int) -> list[int]:
    """Return `node` and its ancestors without the root; at most `depth` of them."""
    path: list[int] = []
    at: int | None = node
    while at is not None and at != ROOT and len(path) < depth:
        path.append(at)
        at = parents[at]
    return path
