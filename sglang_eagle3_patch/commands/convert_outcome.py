"""What SGLang does with a converted draft: the doctor's judgement of it, before it is written."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

from sglang_eagle3_patch.checkpoint.conversion.convert import Conversion
from sglang_eagle3_patch.checkpoint.conversion.options import NotConvertible
from sglang_eagle3_patch.checkpoint.conversion.plan import Move
from sglang_eagle3_patch.checkpoint.conversion.verify import shards_of
from sglang_eagle3_patch.checkpoint.conversion.write import carried_files
from sglang_eagle3_patch.checkpoint.header import files_with, weight_files
from sglang_eagle3_patch.checkpoint.launch import LaunchArguments
from sglang_eagle3_patch.checkpoint.layouts import canonical_name
from sglang_eagle3_patch.checkpoint.rules import Case, Finding, Judgement
from sglang_eagle3_patch.checkpoint.rules.small_values import (
    SmallValues,
    embedding_differs,
    small_values,
)
from sglang_eagle3_patch.checkpoint.spec import DraftSpec
from sglang_eagle3_patch.checkpoint.target import TargetSpec
from sglang_eagle3_patch.commands.doctor import judged
from sglang_eagle3_patch.commands.doctor_output import outcome_line

_EMBEDDING = "embed_tokens.weight"
_EAGLE3 = ("--speculative-algorithm", "EAGLE3")


@dataclass(frozen=True)
class Served:
    """What comes of a converted draft on one side, started with EAGLE3 and `arguments` besides."""

    judgement: Judgement
    arguments: tuple[str, ...]

    @property
    def line(self) -> str:
        """The outcome, with what has to be given at the start, and why."""
        judgement = self.judgement
        who = "with the plugin" if judgement.side == "plugin" else f"stock {judgement.release}"
        given = f", started with {' '.join(self.arguments)}" if self.arguments else ""
        return outcome_line(f"{who}{given}", judgement.asked)


def served(conversion: Conversion, target: Path | None) -> tuple[Served, Served]:
    """Return what stock SGLang, and SGLang with the plugin, do with what is going to be written.

    `target` is the target's folder. Raises `CannotJudge` for a config that no rule expects,
    `CheckpointUnreadable` or OSError for a target or values that can't be read.
    """
    case = _case(conversion, target)
    return (
        _served("stock", replace(case, plugin=False), conversion),
        _served("plugin", case, conversion),
    )


def _served(side: Literal["stock", "plugin"], case: Case, conversion: Conversion) -> Served:
    told = judged(case)
    arguments = _mending(told.told, side)
    if arguments:
        told = judged(replace(case, launch=_launch(conversion, arguments)))
    return Served(told, arguments)


def refuse_an_error(found: Served) -> None:
    """Raise `NotConvertible` where the verdict is an error: what was asked for would not be had."""
    judgement = found.judgement
    if judgement.verdict != "error":
        return
    why = f"it would not be served as trained: {found.line}"
    if judgement.side == "stock" and not _errors(judgement, "plugin"):
        raise NotConvertible(why, "give another --sglang-version, or --needs-plugin")
    raise NotConvertible(why, _errors(judgement, judgement.side)[0].remedy)


def _errors(judgement: Judgement, side: str) -> list[Finding]:
    return [finding for finding in judgement.told if finding.mark(side) == "error"]


def _case(conversion: Conversion, target: Path | None) -> Case:
    plan = conversion.plan
    written = DraftSpec.of(
        plan.config, {move.name: move.source.header for move in plan.moves}, conversion.source
    )
    carried = [file.name for file in carried_files(conversion.source)]
    return Case(
        written,
        TargetSpec.read(target) if target else None,
        conversion.options.facts,
        _launch(conversion, ()),
        values=_values(conversion, target),
        files=("config.json", *shards_of(plan), *carried),
    )


def _launch(conversion: Conversion, arguments: tuple[str, ...]) -> LaunchArguments:
    flags = conversion.options.facts.launch.speculative_flags
    return LaunchArguments.parse((*_EAGLE3, *arguments), flags, os.environ)


def _mending(findings: Iterable[Finding], side: str) -> tuple[str, ...]:
    """Return the launch arguments that mend what is not served as trained."""
    wanted = [f.arguments for f in findings if f.arguments and f.effects[side] != "serves"]
    return tuple(part for arguments in wanted for part in arguments)


def _values(conversion: Conversion, target: Path | None) -> SmallValues:
    """Return the small values as they will be written."""
    moves = conversion.plan.moves
    found = small_values(
        (move.name, move.source.header, partial(_written_bytes, move)) for move in moves
    )
    if target is None or all(canonical_name(move.name) != _EMBEDDING for move in moves):
        return found
    differs = embedding_differs(weight_files(conversion.source), files_with(target, _EMBEDDING))
    return replace(found, embedding_differs=differs)


def _written_bytes(move: Move) -> bytes:
    return b"".join(move.source.pieces(move.transform))
