"""What a `d2t` is, on a target vocabulary of ten tokens and a draft vocabulary of four."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from sglang_eagle3_patch.checkpoint import vocab_map

TARGETS = [1, 4, 7, 9]
OFFSETS = [1, 3, 5, 6]


def marks(ids: Sequence[int]) -> list[bool]:
    return [token in ids for token in range(10)]


@pytest.mark.parametrize("t2d", [None, marks(TARGETS)])
def test_offsets(t2d: list[bool] | None) -> None:
    assert vocab_map.check(OFFSETS, 10, 4, t2d).kind == "offset"


@pytest.mark.parametrize("t2d", [None, marks(TARGETS)])
def test_target_ids_themselves(t2d: list[bool] | None) -> None:
    assert vocab_map.check(TARGETS, 10, 4, t2d).kind == "absolute"


def test_a_whole_vocabulary() -> None:
    assert vocab_map.check([0] * 10, 10).kind == "identity"
    assert vocab_map.check([1, -1] + [0] * 8, 10).kind == "offset"  # two tokens swapped
    assert vocab_map.check(range(10), 10).kind == "absolute"


def test_t2d_tells_the_two_apart_where_both_would_fit() -> None:
    both = [0, 1, 2, 4]
    untold = vocab_map.check(both, 10, 4)
    assert (untold.kind, bool(untold.reason)) == ("offset", True)
    assert vocab_map.check(both, 10, 4, marks(both)).kind == "absolute"
    told = vocab_map.check(both, 10, 4, marks([0, 2, 4, 7]))
    assert (told.kind, told.reason) == ("offset", "")


def test_the_first_tokens_need_t2d_to_be_believed() -> None:
    assert vocab_map.check([0] * 4, 10, 4).kind == "broken"
    assert vocab_map.check([0] * 4, 10, 4, marks(range(4))).kind == "offset"
    assert vocab_map.check([0] * 4, 10, 4, [False] * 10).kind == "broken"
    assert vocab_map.check([0] * 4, 10, 4, [True] * 10).kind == "broken"


@pytest.mark.parametrize(
    ("d2t", "more", "reason", "values"),
    [
        ([0] * 4, {}, "all zeros for 4 of 10", ()),
        ([1, 3, 5], {}, "3 entries, the draft vocabulary 4", ()),
        ([0] * 11, {"draft_vocab": None}, "target vocabulary only 10", ()),
        ([[1], [2]], {}, "no flat list", ()),
        ([1.0, 3.0, 5.0, 6.0], {}, "no flat list", ()),
        ([1, 3, 3, 9], {}, "1 target ids lie outside 0 to 9", (12,)),
        ([-1, 3, 5, 6], {}, "outside", (-1,)),
        ([1, 0, 5, 6], {}, "1 target ids occur twice", (1,)),
        (OFFSETS, {"t2d": marks([1, 4, 7, 8])}, "does not mark 1", (9,)),
        (OFFSETS, {"t2d": marks([1, 2, 4, 7, 9])}, "marks 5 target ids, d2t maps 4", ()),
        (OFFSETS, {"t2d": [True] * 9}, "t2d has 9 entries", ()),
    ],
)
def test_broken(d2t: Any, more: dict[str, Any], reason: str, values: tuple[int, ...]) -> None:
    found = vocab_map.check(d2t, 10, **{"draft_vocab": 4, **more})
    assert found.kind == "broken"
    assert reason in found.reason
    assert found.values == values
