"""Whether a draft's `d2t` maps its ids to target ids, and in which of two ways.

Every producer writes offsets, `target = draft + d2t[draft]`, and every engine adds; a table of
target ids themselves, or one left at its initial zeros, loads as well and maps to nonsense.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

# Bytes of a map of half a million tokens; norms are far smaller.
LARGEST_MAP = 4_000_000
_SHOWN = 5


@dataclass(frozen=True)
class VocabMap:
    """What a `d2t` is. `reason` and up to five `values` say why it is broken, or ambiguous."""

    kind: Literal["offset", "absolute", "identity", "broken"]
    reason: str = ""
    values: tuple[int, ...] = ()


def check(
    d2t: Sequence[int],
    vocab: int,
    draft_vocab: int | None = None,
    t2d: Sequence[bool] | Sequence[int] | None = None,
) -> VocabMap:
    """Return what `d2t` `[draft_vocab]` is for a target vocabulary of `vocab` tokens.

    `t2d` `[vocab]`, when given, marks the target tokens that the draft knows and must agree.
    `draft_vocab` is the number of rows of the head. Values are plain integers.
    """
    strange = [value for value in d2t if type(value) is not int]
    if strange:
        return VocabMap("broken", f"d2t is no flat list of integers: it holds {strange[0]!r}")
    size = len(d2t)
    if draft_vocab is not None and size != draft_vocab:
        return VocabMap("broken", f"d2t has {size} entries, the draft vocabulary {draft_vocab}")
    if size > vocab:
        return VocabMap("broken", f"d2t has {size} entries, the target vocabulary only {vocab}")
    if t2d is not None and len(t2d) != vocab:
        return VocabMap("broken", f"t2d has {len(t2d)} entries, the target vocabulary {vocab}")
    if not any(d2t) and size < vocab and t2d is None:
        return VocabMap(
            "broken", f"d2t is all zeros for {size} of {vocab} tokens: a table never filled in"
        )
    targets = [draft + offset for draft, offset in enumerate(d2t)]
    as_offsets, as_ids = _fault(targets, vocab, t2d), _fault(d2t, vocab, t2d)
    if as_offsets is None:
        if not any(d2t) and size == vocab:
            return VocabMap("identity")
        if as_ids is None and t2d is None and _ascending(d2t):
            return VocabMap("offset", "target ids would fit too, and there is no t2d to tell")
        return VocabMap("offset")
    if as_ids is None and _ascending(d2t):
        return VocabMap("absolute")
    return as_offsets


def _fault(
    targets: Sequence[int], vocab: int, t2d: Sequence[bool] | Sequence[int] | None
) -> VocabMap | None:
    """Return what is wrong with these target ids, None when nothing is."""
    outside = [target for target in targets if not 0 <= target < vocab]
    if outside:
        return _broken(f"{len(outside)} target ids lie outside 0 to {vocab - 1}", outside)
    seen: set[int] = set()
    twice = [target for target in targets if target in seen or seen.add(target)]  # type: ignore[func-returns-value]
    if twice:
        return _broken(f"{len(twice)} target ids occur twice", twice)
    if t2d is None:
        return None
    unmarked = [target for target in targets if not t2d[target]]
    if unmarked:
        return _broken(f"t2d does not mark {len(unmarked)} of the target ids", unmarked)
    marked = sum(map(bool, t2d))
    if marked != len(targets):
        return _broken(f"t2d marks {marked} target ids, d2t maps {len(targets)}", [])
    return None


def _ascending(ids: Sequence[int]) -> bool:
    return all(low < high for low, high in itertools.pairwise(ids))


def _broken(reason: str, values: Sequence[int]) -> VocabMap:
    return VocabMap("broken", reason, tuple(values[:_SHOWN]))
