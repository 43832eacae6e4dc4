"""Both sides on the same random inputs, and where they first differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sglang_eagle3_patch.checkpoint.header import CheckpointUnreadable
from sglang_eagle3_patch.checkpoint.spec import DraftSpec
from sglang_eagle3_patch.checkpoint.trained_rope import ToldRope
from sglang_eagle3_patch.parity.checkpoints import draft_tensors, random_target, target_tensors
from sglang_eagle3_patch.parity.sglang_draft import SglangDraft
from sglang_eagle3_patch.settings import Settings

# Of the largest reference value. Measured agreement of float32 on a CPU is below 2e-6; the
# smallest error of a misread draft (a norm left out at constant weights) is above 1e-2.
TOLERANCE = 1e-4
ROWS = 24


@dataclass(frozen=True)
class StepDifference:
    """One draft step: `delta` is max |SGLang - reference| in units of the logit scale.

    `scale` is max |reference|, `top1` the part of rows in which both name the same token.
    """

    step: int
    delta: float
    scale: float
    top1: float

    @property
    def agrees(self) -> bool:
        """Whether the step is at parity; not a number is not."""
        return self.delta <= TOLERANCE and self.top1 == 1.0


@dataclass(frozen=True)
class Parity:
    """What became of one draft: its steps, and where the two sides first part.

    `first_difference` is a name of the reference's (`step0.layers.0.hidden_norm`), None at parity.
    """

    draft_class: str
    steps: list[StepDifference]
    first_difference: str | None

    @property
    def agrees(self) -> bool:
        """Whether every step is at parity."""
        return all(step.agrees for step in self.steps)


def compare_draft(
    folder: Path,
    target: Path | None = None,
    *,
    steps: int = 3,
    seed: int = 0,
    stated: Mapping[str, Any] | None = None,
) -> Parity:
    """Run the draft of `folder` on both sides, on seeded random inputs.

    Embedding and head that the draft lacks are those of the folder `target`, random ones without.
    `stated` are flags of the reference (`DraftFlags`) that replace what the checkpoint tells.

    Raises `CheckpointUnreadable`, `ReferenceUnavailable`, `DraftClassMissing`, `DraftError` where
    a hook refuses the draft, and what SGLang raises by itself.
    """
    from sglang_eagle3_patch.reference import ReferenceDraft

    spec, tensors = DraftSpec.read(folder), draft_tensors(folder)
    spec = replace(spec, told_rope=ToldRope.of(Settings.from_environment()))
    fc, vocab = spec.tensors.get("fc.weight"), spec.sizes.vocab
    if fc is None or vocab is None:
        raise CheckpointUnreadable(
            f"{folder} has no {'vocab_size' if fc else 'fc.weight'}. Fix: give an EAGLE-3 draft."
        )
    shared = target_tensors(target) if target else random_target(spec, seed)
    flags = replace(spec.flags, **(stated or {}))
    reference = ReferenceDraft.from_spec(spec, tensors, *shared, flags=flags)
    draft = SglangDraft(folder).load(tensors, *shared)
    aux, token_ids = random_inputs(fc.shape[1], vocab, steps, seed)
    theirs: dict[str, Any] = {}
    mine: dict[str, Any] = {}
    wanted = reference.forward(aux, token_ids, steps, theirs)
    differences = compare_steps(draft.forward(aux, token_ids, steps, mine), wanted)
    parity = Parity(type(draft.model).__name__, differences, None)
    return parity if parity.agrees else replace(parity, first_difference=first_apart(mine, theirs))


def random_inputs(aux_width: int, vocab: int, steps: int, seed: int) -> tuple[Any, Any]:
    """Return seeded aux hidden states `[T, aux_width]` float32 and token ids `[T + steps]`."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    aux = torch.randn(ROWS, aux_width, generator=generator)
    return aux, torch.randint(0, vocab, (ROWS + steps,), generator=generator)


def compare_steps(ours: Sequence[Any], reference: Sequence[Any]) -> list[StepDifference]:
    """Compare logits step by step; both are lists of `[T, Vd]`."""
    return [
        StepDifference(
            step=step,
            delta=relative_difference(mine, theirs),
            scale=float(theirs.abs().max()),
            top1=float((mine.argmax(-1) == theirs.argmax(-1)).float().mean()),
        )
        for step, (mine, theirs) in enumerate(zip(ours, reference, strict=True))
    ]


def relative_difference(mine: Any, theirs: Any) -> float:
    """Return max |mine - theirs| in units of max |theirs|, nan when either holds one."""
    scale = float(theirs.abs().max())
    return float((mine.float() - theirs).abs().max()) / (scale or 1.0)


def first_apart(ours: Mapping[str, Any], reference: Mapping[str, Any]) -> str | None:
    """Return the first value, in the reference's order, that both have and that differs."""
    for name, theirs in reference.items():
        mine = ours.get(name)
        if mine is None or mine.shape != theirs.shape:
            continue
        if not relative_difference(mine, theirs) <= TOLERANCE:
            return name
    return None
