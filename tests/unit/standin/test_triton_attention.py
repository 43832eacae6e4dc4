"""The Triton route's attention functions against token-by-token attention in float64."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.unit.standin import paged_cache
from tests.unit.standin.paged_cache import PagedRequests, Request, causal, tree

SCALE = 0.31
CHAIN_OF_4 = [-1, 0, 1, 2]
TREE_OF_6 = [-1, 0, 0, 1, 1, 2]


def offsets(counts: list[int]) -> Tensor:
    return torch.tensor([0, *counts]).cumsum(0)


def run_extend(
    standin: SimpleNamespace, paged: PagedRequests, masks: list[Tensor] | None = None, **more: Any
) -> Tensor:
    keys, values = paged.new_of(paged.keys), paged.new_of(paged.values)
    output = torch.full((*paged.queries.shape[:2], values.shape[-1]), torch.nan)
    prefixes = [request.prefix for request in paged.requests]
    slots = [paged.slots(index)[:prefix] for index, prefix in enumerate(prefixes)]
    arguments: dict[str, Any] = {
        "custom_mask": None if masks is None else torch.cat([mask.flatten() for mask in masks]),
        "mask_indptr": None if masks is None else offsets([mask.numel() for mask in masks]),
        "is_causal": True,
        "sm_scale": SCALE,
        "skip_prefix_custom_mask": True,
    }
    standin.triton_attention.extend(
        paged.queries,
        keys,
        values,
        output,
        paged.k_buffer,
        paged.v_buffer,
        qo_indptr=offsets([len(request.sees) for request in paged.requests]),
        kv_indptr=offsets(prefixes),
        kv_indices=torch.cat(slots),
        **(arguments | more),
    )
    return output


def assert_close(output: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(output.double(), wanted, rtol=1e-5, atol=1e-5)


def test_extend_is_causal_after_the_cached_prefix(standin: SimpleNamespace) -> None:
    requests = [causal(4, 3), causal(0, 2), Request(3, []), causal(1, 4)]
    paged = paged_cache.make(requests, heads=4, kv_heads=2, dim=8, v_dim=6, seed=1)
    assert_close(run_extend(standin, paged), paged_cache.expected(paged, SCALE))


def test_extend_scales_by_the_head_size_when_no_scale_is_given(standin: SimpleNamespace) -> None:
    paged = paged_cache.make([causal(2, 3)], heads=2, kv_heads=2, dim=8, v_dim=8, seed=2)
    wanted = paged_cache.expected(paged, 8**-0.5)
    assert_close(run_extend(standin, paged, sm_scale=None), wanted)


@pytest.mark.parametrize("parents", [CHAIN_OF_4, TREE_OF_6], ids=["topk 1", "topk 2"])
@pytest.mark.parametrize("skip_prefix", [True, False])
def test_extend_with_a_full_mask(
    standin: SimpleNamespace, parents: list[int], skip_prefix: bool
) -> None:
    requests = [tree(3, parents), tree(0, parents), tree(5, parents)]
    paged = paged_cache.make(requests, heads=4, kv_heads=2, dim=8, v_dim=8, seed=3)
    masks = []
    for request in requests:
        # Skipped prefix columns count as visible whatever they hold.
        prefix = torch.full((len(parents), request.prefix), not skip_prefix)
        masks.append(torch.cat([prefix, paged_cache.tree_mask(request)], 1))
    before = [mask.clone() for mask in masks]
    output = run_extend(standin, paged, masks, skip_prefix_custom_mask=skip_prefix)
    assert_close(output, paged_cache.expected(paged, SCALE))
    assert all(torch.equal(*pair) for pair in zip(masks, before, strict=True))


def test_a_mask_may_hide_parts_of_the_prefix(standin: SimpleNamespace) -> None:
    request = Request(4, [[1, 3, 4], [0, 4, 5]])
    paged = paged_cache.make([request], heads=2, kv_heads=1, dim=8, v_dim=8, seed=4)
    mask = torch.zeros(2, 6, dtype=torch.bool)
    mask[0, [1, 3, 4]] = mask[1, [0, 4, 5]] = True
    output = run_extend(standin, paged, [mask], skip_prefix_custom_mask=False)
    assert_close(output, paged_cache.expected(paged, SCALE))


def test_extend_without_causality_sees_all_new_tokens(standin: SimpleNamespace) -> None:
    request = Request(2, [list(range(5))] * 3)
    paged = paged_cache.make([request], heads=2, kv_heads=2, dim=4, v_dim=4, seed=5)
    output = run_extend(standin, paged, is_causal=False)
    assert_close(output, paged_cache.expected(paged, SCALE))


def test_an_mla_prefill_ignores_the_shape_of_the_latent_cache(standin: SimpleNamespace) -> None:
    paged = paged_cache.make([causal(0, 3)], heads=4, kv_heads=4, dim=12, v_dim=8, seed=6)
    paged.k_buffer, paged.v_buffer = torch.randn(9, 1, 10), torch.randn(9, 1, 8)
    assert_close(run_extend(standin, paged), paged_cache.expected(paged, SCALE))


def test_decode_attends_to_the_slots_of_its_row(standin: SimpleNamespace) -> None:
    paged = paged_cache.make(
        [causal(length, 1) for length in (4, 0, 6)], heads=4, kv_heads=2, dim=8, v_dim=6, seed=7
    )
    slots = [paged.slots(index) for index in range(3)]
    for index in range(3):
        paged.k_buffer[slots[index]] = paged.keys[index]
        paged.v_buffer[slots[index]] = paged.values[index]
    output = torch.full((3, 4, 6), torch.nan)
    standin.triton_attention.decode(
        paged.queries,
        paged.k_buffer,
        paged.v_buffer,
        output,
        offsets([len(own) for own in slots]),
        torch.cat(slots),
        SCALE,
    )
    assert_close(output, paged_cache.expected(paged, SCALE))


def original(
    q: object, kv_indices: object, max_kv_splits: int, k_scale: float, sinks: object = None
) -> None:
    """Stands for a Triton function of some release: more parameters than the replacement."""


def replacement(q: object, kv_indices: object) -> None:
    CALLS.append((q, kv_indices))


CALLS: list[tuple[object, object]] = []


def test_a_replacement_is_called_as_the_original_is(standin: SimpleNamespace) -> None:
    CALLS.clear()
    call = standin.triton_attention.bound_like(original, replacement)
    call("q", "slots", 8, 1.0)
    call("q", max_kv_splits=8, k_scale=1.0, kv_indices="others", sinks=None)
    assert CALLS == [("q", "slots"), ("q", "others")]
    assert call.__name__ == "original"


@pytest.mark.parametrize("asked", [{"k_scale": 0.5}, {"sinks": torch.ones(2)}])
def test_a_feature_that_is_asked_for_is_refused_by_name(
    standin: SimpleNamespace, asked: dict[str, Any]
) -> None:
    CALLS.clear()
    call = standin.triton_attention.bound_like(original, replacement)
    (name,) = asked
    with pytest.raises(NotImplementedError, match=f"original\\({name}="):
        call("q", "slots", 8, **({"k_scale": 1.0} | asked))
    assert CALLS == []
