"""What the trace advises: how many draft steps and draft tokens, why, and what it can't tell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sglang_eagle3_patch.acceptance.alarm import DEAD_LENGTH
from sglang_eagle3_patch.acceptance.report.aggregate import Aggregate, batch_label
from sglang_eagle3_patch.acceptance.report.speedup import (
    Cost,
    Option,
    Position,
    best,
    expected_lengths,
    measured_cost,
    options,
)


@dataclass(frozen=True)
class Choice:
    """What to give as `--speculative-num-steps` and `--speculative-num-draft-tokens`."""

    steps: int
    draft_tokens: int | None


@dataclass(frozen=True)
class Speedup:
    """What numbers of draft steps give; `present` is the one most steps ran with."""

    present: int
    topk: int | None
    cost: Cost | None
    options: list[Option]
    choice: Choice | None
    notes: list[str]


def advise(counted: Aggregate, measured: Sequence[Position], draft_cost: float | None) -> Speedup:
    """Return the table of options and the choice among them.

    `draft_cost` is one draft step's time / one verify step's; without it the costs that the trace
    shows are taken, if it does.
    """
    present = max(counted.counts, key=lambda proposed: counted.counts[proposed].total())
    cost = measured_cost(counted.durations)
    if draft_cost is not None:
        cost = Cost(draft_cost, "given")
    table = options(expected_lengths(measured), cost, present)
    trees = {(start.topk, start.draft_tokens) for start in counted.starts}
    topk, draft_tokens = trees.pop() if len(trees) == 1 else (None, None)
    fastest = best(table)
    choice = None
    if fastest is not None:
        choice = Choice(fastest.steps, _draft_tokens(fastest.steps, topk, draft_tokens))
    notes = _notes(table, measured, cost, topk, fastest, present, len(counted.counts) > 1)
    return Speedup(present, topk, cost, table, choice, notes)


def _draft_tokens(steps: int, topk: int | None, present: int | None) -> int | None:
    """With topk 1 a chain of the steps and the last token; a tree keeps its tokens, as many as
    it has places for: topk at the first depth, topk * topk at each after it, and the last token."""
    if not steps or topk is None:
        return None
    if topk == 1:
        return steps + 1
    return None if present is None else min(present, 1 + topk + (steps - 1) * topk**2)


def _notes(
    table: Sequence[Option],
    measured: Sequence[Position],
    cost: Cost | None,
    topk: int | None,
    fastest: Option | None,
    present: int,
    adapted: bool,
) -> list[str]:
    deepest = len(table) - 1
    notes = []
    if cost is None:
        notes.append(
            "no cost measured; give --draft-cost: one draft step's time / one verify step's"
        )
        if 0 < present <= deepest:
            notes.append(
                f"the number in use, {present}, is as fast as none where it is "
                f"{table[present].break_even:.3f}, and its last step pays below "
                f"{table[present].last_step_pays_below:.3f}"
            )
    elif cost.source == "measured":
        notes.append(
            f"cost measured at batch size {batch_label(cost.smallest or 0, cost.largest or 0)}: "
            "others have other costs"
        )
    if cost is not None:
        notes.append(
            "speed-up against none takes for granted that a step of the target takes as long with "
            "drafts to verify as without"
        )
    if table[-1].expected_length <= DEAD_LENGTH:
        notes.append("next to nothing is accepted: check the draft with sglang-eagle3 doctor")
    elif fastest is not None and fastest.steps == deepest:
        notes.append(
            f"no more than {deepest} were measured: whether more draft steps are better can't be "
            "told from this trace"
        )
    if adapted:
        notes.append(
            "the number of draft steps changed: a position tells of the steps that proposed it; "
            "adaptive speculation picks those where more is accepted, so that many look better"
        )
    if deepest < len(measured):
        notes.append(f"positions after {deepest} were reached by too few steps to choose by")
    if topk is not None and topk > 1:
        notes.append(f"a position is a depth of the tree; the rates hold for topk {topk} only")
    elif topk is None:
        notes.append("the trace doesn't say one topk, so no number of draft tokens is chosen")
    return notes
