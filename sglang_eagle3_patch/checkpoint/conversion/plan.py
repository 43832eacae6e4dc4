"""What becomes of each tensor and of the config, decided before a byte is written."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sglang_eagle3_patch.checkpoint.conversion.aux_order import AuxIds, aux_ids
from sglang_eagle3_patch.checkpoint.conversion.checks import Problem, d2t_kind, problems
from sglang_eagle3_patch.checkpoint.conversion.config import ARCHITECTURES, converted_config
from sglang_eagle3_patch.checkpoint.conversion.options import NotConvertible, Options
from sglang_eagle3_patch.checkpoint.conversion.source import (
    AbsoluteToOffset,
    BlockOrder,
    Stored,
    Transform,
)
from sglang_eagle3_patch.checkpoint.flags import DraftFlags, norm_output_alone
from sglang_eagle3_patch.checkpoint.header import DTYPE_BITS
from sglang_eagle3_patch.checkpoint.layouts import NOT_WEIGHTS
from sglang_eagle3_patch.checkpoint.spec import DraftSpec
from sglang_eagle3_patch.checkpoint.trained_rope import shown


@dataclass(frozen=True)
class Move:
    """One tensor: where it comes from, what it is called then, what is done to its bytes."""

    source: Stored
    name: str
    transform: Transform | None = None


@dataclass(frozen=True)
class Plan:
    """A whole conversion. `changes` tell what is done to the numbers and the config, `notes` what
    the user has to know of it, `dropped` are names as written."""

    moves: tuple[Move, ...]
    config: Mapping[str, Any]
    dropped: tuple[str, ...]
    changes: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def renamed(self) -> int:
        """How many tensors get another name."""
        return sum(move.name != move.source.name for move in self.moves)


def make_plan(spec: DraftSpec, tensors: Mapping[str, Stored], options: Options) -> Plan:
    """Return what to do with a draft whose `tensors` are under the names as written.

    Raises `NotConvertible` with all the reasons and the first one's remedy, or
    `CheckpointUnreadable` for values that can't be read.
    """
    flags = _flags(spec, options.flags)
    stored = {spec.names[name]: tensor for name, tensor in tensors.items()}
    found = [*problems(spec, flags, stored, options)]
    notes = _refuse_or_note(found, options)
    aux = aux_ids(spec, options)
    config = converted_config(spec, flags, aux.ids)
    moves, dropped = [], []
    for canonical, tensor in stored.items():
        if NOT_WEIGHTS.search(canonical) and canonical != "t2d":
            dropped.append(tensor.name)
        else:
            name = _name(canonical, spec, aux, options, plugin=bool(notes))
            moves.append(Move(tensor, name, _transform(canonical, spec, stored, aux)))
    changes = [f"{m.name}: {m.transform.says}" for m in moves if m.transform]
    return Plan(
        tuple(moves),
        config,
        tuple(dropped),
        (*changes, *_config_changes(spec, config)),
        (*notes, *aux.notes, *_meaning_notes(spec, options), *_launch_notes(spec, flags)),
    )


def _meaning_notes(spec: DraftSpec, options: Options) -> Iterator[str]:
    doubtful = spec.producer.norm_output == "unknown" and norm_output_alone(spec.config)
    if doubtful and "norm_output" not in options.flags:
        yield (
            "norm_output is true and nothing tells who wrote it: taken for what recurs; of "
            "SpecForge before September 2026 it is not: then give --flag norm_output=false"
        )
    rope = spec.trained_rope
    if rope.otherwise is not None:
        yield f"rope_theta {shown(rope.theta)} is taken from its config; {rope.source}"
    if rope.perhaps_unscaled:
        yield "the yarn of factor 32 is taken from its config; ModelOpt writes it over plain rope"


def _flags(spec: DraftSpec, said: Mapping[str, bool]) -> DraftFlags:
    """Return the draft's flags, with those that the user states; TypeError for a name of none."""
    own: dict[str, Any] = dict(said)
    return dataclasses.replace(spec.flags, **own)


def _refuse_or_note(found: list[Problem], options: Options) -> list[str]:
    if not found:
        return []
    hopeless = [problem for problem in found if not problem.plugin]
    if hopeless or not options.plugin_is_there:
        fix = hopeless[0].fix if hopeless else ""
        raise NotConvertible(
            "; ".join(problem.reason for problem in hopeless or found),
            fix or "serve the draft with the plugin; to convert it for that, give --needs-plugin",
        )
    return [f"needs the plugin: {problem.reason}" for problem in found]


def _name(canonical: str, spec: DraftSpec, aux: AuxIds, options: Options, *, plugin: bool) -> str:
    """Return the name to write.

    Where the plugin has to be there anyway, names are canonical: it renames, and they can't be
    taken for another producer's.
    """
    name = re.sub(r"^(layers\.[1-9]\d*)\.input_layernorm\.", r"\1.hidden_norm.", canonical)
    if aux.order and (norm := re.match(r"fc_norm\.(\d+)\.", name)):
        name = f"fc_norm.{aux.order.index(int(norm[1]))}.weight"
    draft_class = options.facts.drafts.get(ARCHITECTURES[spec.attention or "mha"])
    if plugin or options.to == "canonical" or draft_class is None:
        return name
    takes_layers = draft_class.decoder == "layers" or any(
        rename.old == "layers.0." for rename in draft_class.renames
    )
    return name if takes_layers else re.sub(r"^layers\.0\.", "midlayer.", name)


def _transform(
    canonical: str, spec: DraftSpec, stored: Mapping[str, Stored], aux: AuxIds
) -> Transform | None:
    header = stored[canonical].header
    if canonical == "d2t" and d2t_kind(spec, stored).kind == "absolute":
        return AbsoluteToOffset(header.dtype)
    if aux.order and canonical in ("fc.weight", "input_norm.weight"):
        bits = header.shape[-1] // len(aux.order) * DTYPE_BITS[header.dtype]
        if bits % 8:
            raise NotConvertible(
                f"{canonical} is {header.dtype}, whose blocks can't be reordered",
                "convert the draft before it is quantised",
            )
        return BlockOrder(aux.order, bits // 8)
    return None


def _config_changes(spec: DraftSpec, config: Mapping[str, Any]) -> list[str]:
    old = spec.config
    changes = [
        f"config.json: {key}: {_short(old.get(key, 'absent'))} -> {_short(config[key])}"
        for key in sorted(config)
        if key in old and old[key] != config[key]
    ]
    added, gone = sorted(config.keys() - old.keys()), sorted(old.keys() - config.keys())
    changes += [f"config.json: added {', '.join(added)}"] if added else []
    changes += [f"config.json: dropped {', '.join(gone)}"] if gone else []
    return changes


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _launch_notes(spec: DraftSpec, flags: DraftFlags) -> list[str]:
    notes = []
    if flags.window is not None:
        notes.append(
            f"it attends to {flags.window} tokens: start SGLang with "
            f"--speculative-draft-window-size {flags.window - 1}"
        )
    if spec.has_embedding and spec.config.get("embed_requires_grad") is None:
        notes.append(
            "it has an embedding of its own, which stock SGLang overwrites with the target's"
        )
    producer = spec.producer
    rope = [quirk for quirk in producer.quirks if re.search("rope|yarn", quirk)]
    notes += [f"written by {producer.name}: {quirk}" for quirk in rope]
    if spec.unknown_keys:
        notes.append(f"config keys that nobody knows are kept: {', '.join(spec.unknown_keys)}")
    return notes
