"""Draft trees as paths: a node is the tuple of child ranks that leads to it from the root ().

Beam search by definition: each step every beam gets `topk` children, the best `topk` of all
children are the next beams; of all candidates the best are selected. Numbers enter only where
SGLang's layout of the result is written down.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass

import torch
from torch import Tensor

Path = tuple[int, ...]


@dataclass
class DraftTree:
    topk: int
    steps: int
    scores: dict[Path, float]
    candidates: list[Path]  # in SGLang's numbering: step by step, beam by beam, rank by rank
    parent_list: list[int]
    nodes: list[Path]  # the root, then the selected candidates by number

    @property
    def selected_index(self) -> list[int]:
        return [self.candidates.index(path) for path in self.nodes[1:]]

    def children(self, path: Path) -> list[Path]:
        """Selected children of `path`, best first."""
        below = [node for node in self.nodes if node and node[:-1] == path]
        return sorted(below, key=lambda node: -self.scores[node])


def draw_tree(topk: int, steps: int, nodes: int, seed: int) -> DraftTree:
    """A tree with `nodes` nodes, root included; scores fall along every path."""
    source = random.Random(seed)
    scores: dict[Path, float] = {(): 1.0}
    beams: list[Path] = [()]
    candidates: list[Path] = []
    parents = [-1]
    for step in range(steps):
        fresh = []
        for beam in beams:
            shares = sorted((source.random() for _ in range(topk)), reverse=True)
            for rank, share in enumerate(shares):
                scores[(*beam, rank)] = scores[beam] * share
                fresh.append((*beam, rank))
        candidates += fresh
        beams = sorted(fresh, key=lambda path: -scores[path])[:topk]
        if step < steps - 1:
            parents += [candidates.index(beam) for beam in beams]
    best = sorted(candidates, key=lambda path: -scores[path])[: nodes - 1]
    selected = sorted(best, key=candidates.index)
    return DraftTree(topk, steps, scores, candidates, parents, [(), *selected])


def links(tree: DraftTree) -> tuple[list[int], list[int]]:
    """First child and next sibling of every node, -1 for none."""
    child, sibling = [-1] * len(tree.nodes), [-1] * len(tree.nodes)
    for node, path in enumerate(tree.nodes):
        family = [tree.nodes.index(one) for one in tree.children(path)]
        if family:
            child[node] = family[0]
        for one, following in itertools.pairwise(family):
            sibling[one] = following
    return child, sibling


def mask(tree: DraftTree) -> Tensor:
    """`[N, N]` bool: a node sees every node whose path its own begins with."""
    return torch.tensor(
        [[path[: len(other)] == other for other in tree.nodes] for path in tree.nodes]
    )
