"""Greedy verification against the longest match in the tree, defined by recursion on paths."""

from __future__ import annotations

import random
from types import ModuleType

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.standin import draft_trees
from tests.unit.standin.draft_trees import DraftTree, Path, draw_tree

UNTOUCHED = -5


def longest_match(
    tree: DraftTree, at: Path, token: dict[Path, int], choice: dict[Path, int], limit: int
) -> list[Path]:
    """The longest way down from `at` on which each node is what the target picks before it."""
    if limit == 0:
        return []
    ways = [
        [child, *longest_match(tree, child, token, choice, limit - 1)]
        for child in tree.children(at)
        if token[child] == choice[at]
    ]
    return max(ways, key=len, default=[])


def draw_tokens(tree: DraftTree, source: random.Random) -> tuple[dict[Path, int], dict[Path, int]]:
    """Drafted tokens (different ones below each node) and the target's choices, which often hit."""
    token: dict[Path, int] = dict.fromkeys(tree.nodes, 9)
    choice: dict[Path, int] = {}
    for path in tree.nodes:
        children = tree.children(path)
        drafted = source.sample(range(6), len(children))
        token |= dict(zip(children, drafted, strict=True))
        choice[path] = source.choice(drafted) if drafted and source.random() < 0.8 else 7
    return token, choice


@settings(deadline=None, max_examples=150)
@given(
    topk=st.integers(1, 4),
    steps=st.integers(1, 4),
    size=st.integers(1, 11),
    accept_width=st.integers(1, 5),
    seeds=st.lists(st.integers(0, 10**6), min_size=1, max_size=3),
)
def test_the_longest_match_is_accepted(
    sgl_kernel: ModuleType, topk: int, steps: int, size: int, accept_width: int, seeds: list[int]
) -> None:
    nodes = 1 + min(size, topk + (steps - 1) * topk * topk)
    trees = [draw_tree(topk, steps, nodes, seed) for seed in seeds]
    drawn = [
        draw_tokens(tree, random.Random(seed)) for tree, seed in zip(trees, seeds, strict=True)
    ]
    batch = len(trees)
    candidates = [list(token.values()) for token, _ in drawn]  # both in the order of the nodes
    choices = [list(choice.values()) for _, choice in drawn]
    links = [draft_trees.links(tree) for tree in trees]
    predicts = torch.full((batch * nodes,), UNTOUCHED, dtype=torch.int32)
    accept_index = torch.full((batch, accept_width), -1, dtype=torch.int32)
    accept_token_num = torch.full((batch,), UNTOUCHED, dtype=torch.int32)
    sgl_kernel.verify_tree_greedy(
        predicts=predicts,
        accept_index=accept_index,
        accept_token_num=accept_token_num,
        candidates=torch.tensor(candidates),
        retrive_index=torch.arange(batch * nodes).view(batch, nodes),
        retrive_next_token=torch.tensor([child for child, _ in links]),
        retrive_next_sibling=torch.tensor([sibling for _, sibling in links]),
        target_predict=torch.tensor(choices),
    )
    predicted = [UNTOUCHED] * (batch * nodes)
    for row, (tree, (token, choice)) in enumerate(zip(trees, drawn, strict=True)):
        way = [(), *longest_match(tree, (), token, choice, accept_width - 1)]
        flat = [row * nodes + tree.nodes.index(path) for path in way]
        assert accept_index[row].tolist() == flat + [-1] * (accept_width - len(flat))
        assert accept_token_num[row] == len(way) - 1
        for path, place in zip(way, flat, strict=True):
            predicted[place] = choice[path]
    assert predicts.tolist() == predicted


def test_a_second_sibling_is_found_by_hand(sgl_kernel: ModuleType) -> None:
    """Root with children 11 and 12; the target wants 12, then 13, which is not drafted."""
    predicts = torch.zeros(3, dtype=torch.int32)
    accept_index = torch.full((1, 3), -1, dtype=torch.int32)
    accept_token_num = torch.zeros(1, dtype=torch.int32)
    sgl_kernel.verify_tree_greedy_cpu(
        predicts,
        accept_index,
        accept_token_num,
        torch.tensor([[10, 11, 12]]),
        torch.tensor([[0, 1, 2]]),
        torch.tensor([[1, -1, -1]]),
        torch.tensor([[-1, 2, -1]]),
        torch.tensor([[12, 99, 13]]),
    )
    assert accept_index.tolist() == [[0, 2, -1]]
    assert accept_token_num.tolist() == [1]
    assert predicts.tolist() == [12, 0, 13]
