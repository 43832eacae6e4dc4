"""Attention of the CPU route against token-by-token attention in float64."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.unit.standin import paged_cache
from tests.unit.standin.paged_cache import PagedRequests, Request, causal, tree

SCALE = 0.31
CHAIN_OF_4 = [-1, 0, 1, 2]
TREE_OF_6 = [-1, 0, 0, 1, 1, 2]  # two branches, siblings at both depths
OTHERS_OF_6 = [-1, 0, 1, 1, 2, 4], [-1, 0, 0, 2, 2, 3]
PLAIN: dict[str, Any] = {
    "logit_cap": 0.0,
    "is_cross_attn": False,
    "sliding_window_size": 0,
    "encoder_lens": None,
    "sinks": None,
}


def ints(values: list[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int64)


def run_extend(
    sgl_kernel: ModuleType,
    paged: PagedRequests,
    keys: Tensor,
    values: Tensor,
    mask: Tensor | None = None,
    **unusual: Any,
) -> Tensor:
    """Call the op as SGLang's backend does and return what it wrote."""
    new = [len(request.sees) for request in paged.requests]
    starts = [sum(new[:index]) for index in range(len(new))]
    output = torch.full((*paged.queries.shape[:2], values.shape[-1]), torch.nan)
    sgl_kernel.attention.extend_attention_cpu(
        paged.queries,
        keys,
        values,
        output,
        paged.k_buffer,
        paged.v_buffer,
        req_to_token=paged.req_to_token,
        req_pool_indices=ints(paged.pool_rows),
        seq_lens=ints([request.length for request in paged.requests]),
        extend_seq_lens=ints(new).int(),
        extend_start_loc=ints(starts).int(),
        max_len_extend=max(new),
        sm_scale=SCALE,
        tree_mask=mask,
        **({"k_scale": 1.0, "v_scale": 1.0} | PLAIN | unusual),
    )
    return output


def run_decode(
    sgl_kernel: ModuleType,
    paged: PagedRequests,
    keys: Tensor | None,
    values: Tensor | None,
    **unusual: Any,
) -> Tensor:
    output = torch.full((*paged.queries.shape[:2], paged.v_buffer.shape[-1]), torch.nan)
    own_slots = [int(paged.slots(index)[-1]) for index in range(len(paged.requests))]
    sgl_kernel.attention.decode_attention_cpu(
        paged.queries,
        paged.k_buffer,
        paged.v_buffer,
        output=output,
        key=keys,
        value=values,
        loc=ints(own_slots),
        attn_logits=torch.empty(0),
        req_to_token=paged.req_to_token,
        req_pool_indices=ints(paged.pool_rows),
        seq_lens=ints([request.length for request in paged.requests]),
        sm_scale=SCALE,
        **({"k_scale": 1.0, "v_scale": 1.0} | PLAIN | unusual),
    )
    return output


def assert_close(output: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(output.double(), wanted, rtol=1e-5, atol=1e-5)


@st.composite
def batches(draw: st.DrawFn) -> list[Request]:
    sizes = st.tuples(st.integers(0, 6), st.integers(1, 5))
    return [causal(*draw(sizes)) for _ in range(draw(st.integers(1, 3)))]


@settings(deadline=None, max_examples=30)
@given(batches(), st.sampled_from([(4, 4), (4, 2), (4, 1)]), st.integers(0, 99))
def test_extend_attends_to_the_cached_prefix_and_causally_to_the_new_tokens(
    sgl_kernel: ModuleType, requests: list[Request], heads: tuple[int, int], seed: int
) -> None:
    paged = paged_cache.make(requests, heads=heads[0], kv_heads=heads[1], dim=8, v_dim=6, seed=seed)
    output = run_extend(sgl_kernel, paged, paged.new_of(paged.keys), paged.new_of(paged.values))
    assert_close(output, paged_cache.expected(paged, SCALE))


@pytest.mark.parametrize(
    "forest", [[CHAIN_OF_4] * 3, [TREE_OF_6, *OTHERS_OF_6]], ids=["topk 1", "topk 2"]
)
def test_extend_with_a_mask_sees_the_prefix_and_the_own_branch(
    sgl_kernel: ModuleType, forest: list[list[int]]
) -> None:
    requests = [tree(prefix, parents) for prefix, parents in zip((5, 0, 3), forest, strict=True)]
    paged = paged_cache.make(requests, heads=4, kv_heads=2, dim=8, v_dim=8, seed=1)
    mask = torch.cat([paged_cache.tree_mask(request).flatten() for request in requests])
    output = run_extend(
        sgl_kernel, paged, paged.new_of(paged.keys), paged.new_of(paged.values), mask
    )
    assert_close(output, paged_cache.expected(paged, SCALE))


def test_an_mla_prefill_takes_its_keys_from_the_call_and_not_from_the_latent_cache(
    sgl_kernel: ModuleType,
) -> None:
    """Four full keys for each token, while the cache holds one latent of another width."""
    paged = paged_cache.make([causal(0, 5)], heads=4, kv_heads=4, dim=12, v_dim=8, seed=2)
    latent = torch.randn(len(paged.k_buffer), 1, 10)
    keys, values = paged.new_of(paged.keys), paged.new_of(paged.values)
    wanted = paged_cache.expected(paged, SCALE)
    paged.k_buffer, paged.v_buffer = latent, latent[..., :8]
    assert_close(run_extend(sgl_kernel, paged, keys, values), wanted)


def test_extend_in_the_absorbed_form_of_mla(sgl_kernel: ModuleType) -> None:
    """One latent per token for all heads; values are a view into the keys."""
    paged = paged_cache.make([tree(4, TREE_OF_6)], heads=4, kv_heads=1, dim=10, v_dim=8, seed=3)
    paged.values = [keys[..., :8] for keys in paged.keys]
    paged.v_buffer = paged.k_buffer[..., :8]
    keys = paged.new_of(paged.keys)
    mask = paged_cache.tree_mask(paged.requests[0])
    output = run_extend(sgl_kernel, paged, keys, keys[..., :8], mask)
    assert_close(output, paged_cache.expected(paged, SCALE))


def test_extend_leaves_a_request_without_new_tokens_alone(sgl_kernel: ModuleType) -> None:
    paged = paged_cache.make(
        [causal(3, 2), Request(4, []), causal(1, 1)], heads=2, kv_heads=2, dim=4, v_dim=4, seed=4
    )
    output = run_extend(sgl_kernel, paged, paged.new_of(paged.keys), paged.new_of(paged.values))
    assert_close(output, paged_cache.expected(paged, SCALE))


def test_extend_refuses_a_mask_of_another_size(sgl_kernel: ModuleType) -> None:
    paged = paged_cache.make([tree(2, CHAIN_OF_4)], heads=2, kv_heads=2, dim=4, v_dim=4, seed=5)
    keys = paged.new_of(paged.keys)
    with pytest.raises(ValueError, match="tree_mask has 24 cells, not 16"):
        run_extend(sgl_kernel, paged, keys, keys, torch.ones(4 * 6, dtype=torch.bool))


@settings(deadline=None, max_examples=20)
@given(st.lists(st.integers(0, 6), min_size=1, max_size=4), st.integers(0, 99))
def test_decode_stores_the_own_token_and_attends_to_everything(
    sgl_kernel: ModuleType, prefixes: list[int], seed: int
) -> None:
    requests = [causal(prefix, 1) for prefix in prefixes]
    paged = paged_cache.make(requests, heads=4, kv_heads=2, dim=8, v_dim=6, seed=seed)
    keys, values = paged.new_of(paged.keys), paged.new_of(paged.values)
    output = run_decode(sgl_kernel, paged, keys, values)
    assert_close(output, paged_cache.expected(paged, SCALE))
    for index in range(len(requests)):
        slots = paged.slots(index)
        torch.testing.assert_close(paged.k_buffer[slots], paged.keys[index])
        torch.testing.assert_close(paged.v_buffer[slots], paged.values[index])


def test_decode_with_mla_writes_the_latent_once(sgl_kernel: ModuleType) -> None:
    paged = paged_cache.make([causal(4, 1)] * 2, heads=4, kv_heads=1, dim=10, v_dim=8, seed=6)
    paged.values = [keys[..., :8] for keys in paged.keys]
    paged.v_buffer = paged.k_buffer[..., :8]
    keys = paged.new_of(paged.keys)
    # What is passed as value is part of the key; a second write would put it over the latent.
    output = run_decode(sgl_kernel, paged, keys, torch.full((2, 1, 8), torch.nan))
    assert_close(output, paged_cache.expected(paged, SCALE))


def test_decode_without_keys_reads_the_cache_as_it_is(sgl_kernel: ModuleType) -> None:
    paged = paged_cache.make([causal(3, 1)], heads=2, kv_heads=2, dim=4, v_dim=4, seed=7)
    paged.k_buffer[paged.slots(0)] = paged.keys[0]
    paged.v_buffer[paged.slots(0)] = paged.values[0]
    output = run_decode(sgl_kernel, paged, None, None)
    assert_close(output, paged_cache.expected(paged, SCALE))


@pytest.mark.parametrize(
    "unusual",
    [
        {"k_scale": 0.5},
        {"v_scale": 2.0},
        {"logit_cap": 30.0},
        {"is_cross_attn": True},
        {"sliding_window_size": 128},
        {"encoder_lens": torch.zeros(1)},
        {"sinks": torch.zeros(2)},
    ],
    ids=lambda unusual: next(iter(unusual)),
)
def test_what_is_not_plain_attention_is_refused_by_name(
    sgl_kernel: ModuleType, unusual: dict[str, Any]
) -> None:
    paged = paged_cache.make([causal(3, 1)], heads=2, kv_heads=2, dim=4, v_dim=4, seed=8)
    keys = paged.new_of(paged.keys)
    (name,) = unusual
    with pytest.raises(NotImplementedError, match=f"extend_attention_cpu: {name} "):
        run_extend(sgl_kernel, paged, keys, keys, **unusual)
    with pytest.raises(NotImplementedError, match=f"decode_attention_cpu: {name} "):
        run_decode(sgl_kernel, paged, keys, keys, **unusual)


def test_bfloat16_is_computed_in_float32_and_rounded_once(sgl_kernel: ModuleType) -> None:
    queries, keys, values = (torch.randn(3, 2, 16).bfloat16() for _ in range(3))
    visible = torch.ones(3, 3, dtype=torch.bool)
    low = sgl_kernel.attention.attend(queries, keys, values, visible, SCALE)
    high = sgl_kernel.attention.attend(
        queries.float(), keys.float(), values.float(), visible, SCALE
    )
    assert low.dtype == torch.float32
    torch.testing.assert_close(low, high, rtol=0, atol=0)
