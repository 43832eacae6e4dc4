"""The links of NGRAM's draft trees, against trees whose links are known when they are made."""

from __future__ import annotations

from types import ModuleType

import torch
from hypothesis import given, settings
from hypothesis import strategies as st


@settings(deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 5), min_size=5, max_size=5), min_size=1, max_size=3),
    st.lists(st.integers(1, 50), min_size=3, max_size=3),
)
def test_links_of_known_trees(
    sgl_kernel: ModuleType, choices: list[list[int]], lengths: list[int]
) -> None:
    batch, nodes = len(choices), 6
    mask = torch.zeros(batch, nodes, nodes, dtype=torch.bool)
    first = torch.full((batch, nodes), -1)
    following = torch.full((batch, nodes), -1)
    depth = torch.zeros(batch, nodes, dtype=torch.long)
    for row, picks in enumerate(choices):
        newest_child: dict[int, int] = {}
        mask[row, 0, 0] = True
        for node in range(1, nodes):
            parent = picks[node - 1] % node  # hung below any node made before
            mask[row, node] = mask[row, parent]
            mask[row, node, node] = True
            depth[row, node] = depth[row, parent] + 1
            if parent in newest_child:
                following[row, newest_child[parent]] = node
            else:
                first[row, parent] = node
            newest_child[parent] = node
    out = [torch.full((batch * nodes,), 99) for _ in range(4)]
    seq_lens = torch.tensor(lengths[:batch])
    sgl_kernel.speculative.reconstruct_indices_from_tree_mask(
        mask.flatten(), seq_lens, *out, batch, nodes
    )
    positions, index, next_token, next_sibling = (tensor.view(batch, nodes) for tensor in out)
    assert torch.equal(positions, depth + seq_lens[:, None])
    assert torch.equal(index.flatten(), torch.arange(batch * nodes))
    assert torch.equal(next_token, first)
    assert torch.equal(next_sibling, following)
