"""Greedy verification: how far the target agrees with the draft tree."""

from __future__ import annotations

from torch import Tensor

from sgl_kernel.guard import cpu_op

NONE = -1


@cpu_op
def verify_tree_greedy_cpu(
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    target_predict: Tensor,
) -> None:
    """Accept, from the root down, the child that is the target's own choice, while there is one.

    candidates, retrive_index, next_token, next_sibling, target_predict `[B, N]` integer: the
    node's token, its flat index, its first child and next sibling (-1 for none), and the token
    which the target picks after it.
    accept_index `[B, S]` (written; the caller has filled it with -1): flat indices of the root
    and the accepted nodes, at most S - 1 of them. accept_token_num `[B]` (written): accepted
    nodes, root excluded. predicts, flat `[B * N]` (written): at each of these nodes the token
    that follows it; the one after the last is the bonus token.
    """
    choices = target_predict.flatten().tolist()
    for row, tokens in enumerate(candidates.tolist()):
        flat = retrive_index[row].tolist()
        child, sibling = retrive_next_token[row].tolist(), retrive_next_sibling[row].tolist()
        path = [0]
        while len(path) < accept_index.shape[1]:
            wanted = choices[flat[path[-1]]]
            node = child[path[-1]]
            while node != NONE and tokens[node] != wanted:
                node = sibling[node]
            if node == NONE:
                break
            path.append(node)
        for step, node in enumerate(path):
            accept_index[row, step] = flat[node]
            predicts[flat[node]] = choices[flat[node]]
        accept_token_num[row] = len(path) - 1
