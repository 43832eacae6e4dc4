"""Cache locations, cache moves and token rows against definitions in Python lists."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

COLUMNS = 12
Spans = list[tuple[int, int, int]]  # pool row, first column, end column


@st.composite
def spans(draw: st.DrawFn) -> Spans:
    rows = draw(st.lists(st.integers(0, 5), min_size=1, max_size=4, unique=True))
    result = []
    for row in rows:
        start = draw(st.integers(0, COLUMNS))
        result.append((row, start, draw(st.integers(start, COLUMNS))))
    return result


def columns_of(spans: Spans) -> tuple[Tensor, Tensor, Tensor]:
    rows, starts, ends = (torch.tensor(column) for column in zip(*spans, strict=True))
    return rows, starts.int(), ends.int()


def numbered_table() -> Tensor:
    """Every cell another number, so that a misplaced copy shows."""
    return torch.randperm(6 * COLUMNS, generator=torch.Generator().manual_seed(0)).view(6, -1).int()


@settings(deadline=None)
@given(spans())
def test_new_slots_are_entered_one_request_after_the_other(
    sgl_kernel: ModuleType, spans: Spans
) -> None:
    table = numbered_table()
    wanted = table.tolist()
    rows, starts, ends = columns_of(spans)
    fresh = iter(range(1000, 2000))
    for row, start, end in spans:
        for column in range(start, end):
            wanted[row][column] = next(fresh)
    count = int((ends - starts).sum())
    sgl_kernel.assign_req_to_token_pool_cpu(
        rows, table, starts, ends, torch.arange(1000, 1000 + count), COLUMNS
    )
    assert table.tolist() == wanted


def test_too_few_new_slots_are_refused(sgl_kernel: ModuleType) -> None:
    rows, starts, ends = columns_of([(0, 2, 5)])
    with pytest.raises(ValueError, match="too few slots"):
        sgl_kernel.assign_req_to_token_pool_cpu(
            rows, numbered_table(), starts, ends, torch.arange(2), COLUMNS
        )


@settings(deadline=None)
@given(spans(), st.integers(0, 3))
def test_slots_are_read_back_and_a_longer_output_keeps_its_tail(
    sgl_kernel: ModuleType, spans: Spans, tail: int
) -> None:
    table = numbered_table()
    rows, starts, ends = columns_of(spans)
    wanted = [int(table[row, column]) for row, start, end in spans for column in range(start, end)]
    output = torch.full((len(wanted) + tail,), -3)
    sgl_kernel.assign_extend_cache_locs_cpu(rows, table, starts, ends, output, COLUMNS)
    assert output.tolist() == wanted + [-3] * tail


def test_too_short_an_output_is_refused(sgl_kernel: ModuleType) -> None:
    rows, starts, ends = columns_of([(0, 2, 5)])
    with pytest.raises(ValueError, match="output too short"):
        sgl_kernel.assign_extend_cache_locs_cpu(
            rows, numbered_table(), starts, ends, torch.empty(2, dtype=torch.long), COLUMNS
        )


@pytest.mark.parametrize(("topk", "steps"), [(1, 3), (2, 3), (4, 2)])
def test_each_branch_drafts_into_its_own_slots(
    sgl_kernel: ModuleType, topk: int, steps: int
) -> None:
    """The table of a draft tree and the flat list of its slots describe the same slots."""
    table, lengths, rows = numbered_table(), [4, 0, 3], [5, 1, 2]
    flat = torch.empty(3 * topk * steps, dtype=torch.long)
    lens, pools = torch.tensor(lengths), torch.tensor(rows)
    sgl_kernel.assign_draft_cache_locs_contiguous_cpu(
        pools, table, lens, flat, COLUMNS, topk, steps
    )
    branches = sgl_kernel.build_draft_decode_metadata_cpu(table, pools, lens, topk, steps, COLUMNS)
    assert branches.shape == (3 * topk, COLUMNS)
    assert branches.dtype == torch.int32
    for request, (row, length) in enumerate(zip(rows, lengths, strict=True)):
        for branch in range(topk):
            own = [int(table[row, length + branch * steps + step]) for step in range(steps)]
            at = request * topk + branch
            assert flat[at * steps : (at + 1) * steps].tolist() == own
            got = branches[at].tolist()
            assert got[: length + steps] == table[row, :length].tolist() + own
            assert set(got[length + steps :]) <= {2**31 - 1}


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(-1, 7), min_size=3, max_size=3), min_size=1, max_size=3))
def test_slots_of_accepted_nodes_are_collected(
    sgl_kernel: ModuleType, accepted: list[list[int]]
) -> None:
    slots = torch.arange(100, 108)
    output = torch.full((3 * len(accepted),), -3)
    sgl_kernel.fill_accept_out_cache_loc_cpu(torch.tensor(accepted).int(), slots, output)
    wanted = [100 + index for row in accepted for index in row if index != -1]
    assert output.tolist() == wanted + [-3] * (len(output) - len(wanted))


def test_the_bonus_token_is_the_last_accepted_one(sgl_kernel: ModuleType) -> None:
    tokens = [[11, 12, 13, 14], [21, 22, 23, 24], [31, 32, 33, 34]]
    bonus = torch.zeros(3, dtype=torch.int32)
    sgl_kernel.fill_bonus_tokens_cpu(
        torch.tensor(tokens).flatten().int(), torch.tensor([1, 4, 2]).int(), bonus, 4
    )
    assert bonus.tolist() == [11, 24, 32]


@pytest.mark.parametrize("places", [None, [0, 6, 3]])
def test_tokens_move_up_by_one(sgl_kernel: ModuleType, places: list[int] | None) -> None:
    """Requests of 2, 0 and 4 tokens at 1, 3 and 3; 9s belong to nobody."""
    tokens = torch.tensor([9, 10, 11, 20, 21, 22, 23, 9])
    sgl_kernel.rotate_input_ids_cpu(
        tokens,
        torch.tensor([1, 3, 3]).int(),
        torch.tensor([2, 0, 4]),
        torch.tensor([[77], [88], [99]]),
        None if places is None else torch.tensor(places),
    )
    wanted = [9, 11, 11, 21, 22, 23, 23, 9]
    first, last = (2, 6) if places is None else (0, 3)
    wanted[first], wanted[last] = 77, 99
    assert tokens.tolist() == wanted


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=6, unique_by=lambda p: p[0])
)
def test_cache_rows_move_in_every_buffer_even_when_they_overlap(
    sgl_kernel: ModuleType, moves: list[tuple[int, int]]
) -> None:
    """Buffers of different row sizes; targets are distinct, sources may be targets."""
    buffers = [torch.randn(8, 2, 3), torch.randn(8, 5).bfloat16(), torch.randn(8, 1, 4)]
    before = [buffer.clone() for buffer in buffers]
    sgl_kernel.copy_all_layer_kv_cache_cpu(
        torch.tensor([buffer.data_ptr() for buffer in buffers], dtype=torch.uint64),
        torch.tensor([buffer[0].nbytes for buffer in buffers]),
        torch.tensor([target for target, _ in moves], dtype=torch.long),
        torch.tensor([source for _, source in moves], dtype=torch.long),
    )
    origin = dict(moves)
    for buffer, old in zip(buffers, before, strict=True):
        for row in range(8):
            assert torch.equal(buffer[row], old[origin.get(row, row)])
