"""The tree build against trees defined by paths."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from types import ModuleType

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.unit.standin import draft_trees
from tests.unit.standin.draft_trees import DraftTree, draw_tree

FULL_MASK, QLEN_ONLY = 0, 1


@dataclass
class Built:
    mask: Tensor
    positions: Tensor
    index: Tensor
    child: Tensor
    sibling: Tensor


def build(
    sgl_kernel: ModuleType, trees: list[DraftTree], lengths: list[int], mode: int, spare: int = 0
) -> Built:
    """Call the op as SGLang does, with outputs as it prepares them."""
    batch, nodes, steps = len(trees), len(trees[0].nodes), trees[0].steps
    cells = batch * nodes * nodes + (nodes * sum(lengths) if mode == FULL_MASK else 0)
    links = torch.full((3, batch, nodes), -1, dtype=torch.long)
    positions = torch.full((batch * nodes,), -7, dtype=torch.long)
    mask = torch.full((cells + spare,), True)
    # A single step leaves no parents to list; SGLang then passes an empty float tensor.
    parents = (
        torch.tensor([tree.parent_list for tree in trees]) if steps > 1 else torch.empty(batch, 0)
    )
    sgl_kernel.build_tree_kernel_efficient(
        parents,
        torch.tensor([tree.selected_index for tree in trees]).view(batch, nodes - 1),
        torch.tensor(lengths),
        mask,
        positions,
        *links,
        trees[0].topk,
        steps,
        nodes,
        mode,
    )
    return Built(mask, positions, *links)


@st.composite
def forests(draw: st.DrawFn) -> tuple[list[DraftTree], list[int]]:
    topk, steps = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    candidates = topk + (steps - 1) * topk * topk
    nodes = 1 + draw(st.integers(1, min(candidates, 12)))
    seeds = draw(st.lists(st.integers(0, 10**6), min_size=1, max_size=3))
    lengths = [draw(st.integers(0, 9)) for _ in seeds]
    return [draw_tree(topk, steps, nodes, seed) for seed in seeds], lengths


@settings(deadline=None, max_examples=150)
@given(forests(), st.sampled_from([FULL_MASK, QLEN_ONLY]), st.integers(0, 9))
def test_mask_positions_and_links_follow_the_paths(
    sgl_kernel: ModuleType, forest: tuple[list[DraftTree], list[int]], mode: int, spare: int
) -> None:
    trees, lengths = forest
    built = build(sgl_kernel, trees, lengths, mode, spare)
    nodes = len(trees[0].nodes)
    start = 0
    for row, (tree, length) in enumerate(zip(trees, lengths, strict=True)):
        prefix = length if mode == FULL_MASK else 0
        wanted = torch.cat([torch.ones(nodes, prefix).bool(), draft_trees.mask(tree)], 1)
        cells = built.mask[start : start + wanted.numel()].view_as(wanted)
        start += wanted.numel()
        assert torch.equal(cells, wanted)
        depths = [length + len(path) for path in tree.nodes]
        assert built.positions.view(-1, nodes)[row].tolist() == depths
        assert built.index[row].tolist() == list(range(row * nodes, (row + 1) * nodes))
        child, sibling = draft_trees.links(tree)
        assert built.child[row].tolist() == child
        assert built.sibling[row].tolist() == sibling
    assert built.mask[start:].tolist() == [True] * spare


def test_a_chain_by_hand(sgl_kernel: ModuleType) -> None:
    built = build(sgl_kernel, [draw_tree(1, 3, 4, seed=0)], [7], QLEN_ONLY)
    assert built.mask.view(4, 4).int().tolist() == [
        [1, 0, 0, 0],
        [1, 1, 0, 0],
        [1, 1, 1, 0],
        [1, 1, 1, 1],
    ]
    assert built.positions.tolist() == [7, 8, 9, 10]
    assert built.child.tolist() == [[1, 2, 3, -1]]
    assert built.sibling.tolist() == [[-1, -1, -1, -1]]


def test_siblings_by_hand(sgl_kernel: ModuleType) -> None:
    """topk 2, two steps: candidates 0 1 | 2 3 (below the better beam) 4 5 (below the other).

    The better beam is candidate 1's sibling 0, so group 1 belongs to 0 and group 2 to 1.
    """
    links = torch.full((3, 1, 6), -1)
    positions, mask = torch.empty(6, dtype=torch.long), torch.ones(36, dtype=torch.bool)
    sgl_kernel.build_tree_kernel_efficient_cpu(
        torch.tensor([[-1, 0, 1]]),
        torch.tensor([[0, 1, 2, 3, 4]]),
        torch.tensor([10]),
        mask,
        positions,
        *links,
        2,
        2,
        6,
        QLEN_ONLY,
    )
    assert positions.tolist() == [10, 11, 11, 12, 12, 12]
    assert links[1].tolist() == [[1, 3, 5, -1, -1, -1]]
    assert links[2].tolist() == [[-1, 2, -1, 4, -1, -1]]
    assert mask.view(6, 6)[4].tolist() == [True, True, False, False, True, False]


def test_a_node_without_its_parent_is_left_out_with_a_warning(
    sgl_kernel: ModuleType, caplog: pytest.LogCaptureFixture
) -> None:
    """Scores that are no numbers select children without their parents; a GPU goes on, too."""
    links = torch.full((3, 1, 3), -1)
    positions, mask = torch.empty(3, dtype=torch.long), torch.ones(9, dtype=torch.bool)
    with caplog.at_level(logging.WARNING):
        sgl_kernel.build_tree_kernel_efficient_cpu(
            torch.tensor([[-1, 0, 1]]),
            torch.tensor([[0, 4]]),
            torch.tensor([5]),
            mask,
            positions,
            *links,
            2,
            2,
            3,
            QLEN_ONLY,
        )
    assert "node 2 of request 0 has no parent" in caplog.text
    assert links[1].tolist() == [[1, -1, -1]]
    assert mask.view(3, 3)[2].tolist() == [True, False, True]


@pytest.mark.parametrize("mode", [FULL_MASK, QLEN_ONLY])
def test_too_small_a_mask_is_refused(sgl_kernel: ModuleType, mode: int) -> None:
    tree = draw_tree(1, 3, 4, seed=0)
    links = torch.full((3, 1, 4), -1)
    with pytest.raises(ValueError, match="tree_mask has 15 cells"):
        sgl_kernel.build_tree_kernel_efficient_cpu(
            torch.tensor([tree.parent_list]),
            torch.tensor([tree.selected_index]),
            torch.tensor([3]),
            torch.ones(15, dtype=torch.bool),
            torch.empty(4, dtype=torch.long),
            *links,
            1,
            3,
            4,
            mode,
        )


def test_a_packed_mask_is_refused(sgl_kernel: ModuleType) -> None:
    with pytest.raises(NotImplementedError, match="tree_mask_mode 2"):
        build(sgl_kernel, [draw_tree(1, 3, 4, seed=0)], [3], 2)
