"""The aux layers of a converted draft: which ids a release reads right, and in which order."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sglang_eagle3_patch.checkpoint.aux_layers import resolve, stated_ids
from sglang_eagle3_patch.checkpoint.config import ConfigNotUnderstood, is_speculators
from sglang_eagle3_patch.checkpoint.conversion.options import NotConvertible, Options, Target
from sglang_eagle3_patch.checkpoint.producers import UNKNOWN
from sglang_eagle3_patch.checkpoint.spec import DraftSpec
from sglang_eagle3_patch.facts.engine_facts import PLUS_ONE

_NAME_THEM = "name them by their inputs: --aux-layers 2:30:58"
_NAME_TARGET = "name the target: --target FOLDER"
# Their captures go through the layers in order, whatever the order of the ids.
_IN_LAYER_ORDER = re.compile("ModelOpt|SpecForge")


@dataclass(frozen=True)
class AuxIds:
    """What to write: `ids` for `eagle_config` (None: none), and the `order` into which the blocks
    of `fc` must be put (None: they stay)."""

    ids: tuple[int, ...] | None
    order: tuple[int, ...] | None
    notes: tuple[str, ...] = ()


def aux_ids(spec: DraftSpec, options: Options) -> AuxIds:
    """Return the ids by which the release's target class captures what the draft was trained on.

    Raises `NotConvertible` when that isn't known, or no ids do it.
    """
    try:
        stated = stated_ids(spec.config)
        inputs, source, certain = _wanted(spec, options)
    except ConfigNotUnderstood as error:
        raise NotConvertible(str(error), "correct the draft's config.json") from error
    notes = [] if certain else [f"aux layers are not certain: {source}"]
    if inputs is None:
        ids, by = (stated[0] if stated else None), "ids"
    else:
        ids, by = inputs, "inputs"
    if ids is None:
        if spec.num_aux not in (None, 3):
            raise NotConvertible(
                f"fc takes {spec.num_aux} aux hidden states, and the config doesn't say which",
                _NAME_THEM,
            )
        return AuxIds(None, None, tuple(notes))
    if len(set(ids)) != len(ids):
        raise NotConvertible(f"aux layers {list(ids)} are there twice", _NAME_THEM)
    if spec.num_aux is not None and len(ids) != spec.num_aux:
        raise NotConvertible(
            f"fc takes {spec.num_aux} aux hidden states, and {list(ids)} names {len(ids)}",
            _NAME_THEM,
        )
    if inputs is not None and options.target and max(ids) > options.target.num_layers:
        raise NotConvertible(
            f"the target has {options.target.num_layers} layers, and the draft was trained on the "
            f"inputs of {list(ids)}",
            "give the target that it was trained for",
        )
    order = _order(ids, spec, options, notes)
    ids = tuple(sorted(ids))
    if by == "inputs":
        ids_written = _as_the_release_reads(ids, spec, options, notes)
        _warn_of_another_reading(ids_written, ids, options, notes)
    else:
        ids_written = ids
    return AuxIds(ids_written, order, tuple(notes))


def _wanted(spec: DraftSpec, options: Options) -> tuple[tuple[int, ...] | None, str, bool]:
    """Return the inputs (None: SGLang's own rule decides), who says so, and whether surely."""
    producer = spec.producer
    if options.aux_inputs is not None or options.target is not None:
        layers = options.target.num_layers if options.target else 0
        found = resolve(spec.config, layers, options.aux_inputs, producer)
        return found.inputs, found.source, found.certain
    stated = stated_ids(spec.config)
    if stated is None:
        if is_speculators(spec.config) and producer.aux_ids == "outputs":
            raise NotConvertible(
                f"the config names no aux layers, and the {producer.name} captured one layer above "
                "everybody's default",
                _NAME_TARGET,
            )
        return None, "", True
    ids, place = stated
    if producer.aux_ids == "inputs":
        return ids, f"{place}: inputs", True
    if producer.name == "SpecForge":
        return None, f"{place}, by SGLang's own rule", True
    if producer.aux_ids == "outputs":
        return tuple(layer + 1 for layer in ids), f"{place}: outputs", True
    if place == "eagle_config":
        return None, f"{place} says {list(ids)}, taken by SGLang's own rule", False
    raise NotConvertible(
        f"{place} says {list(ids)}, which may be inputs or outputs of layers", _NAME_TARGET
    )


def _order(
    ids: Sequence[int], spec: DraftSpec, options: Options, notes: list[str]
) -> tuple[int, ...] | None:
    """Return which listed state becomes the first, the second, ... in layer order."""
    order = tuple(sorted(range(len(ids)), key=lambda place: ids[place]))
    if order == tuple(range(len(ids))):
        return None
    producer = spec.producer.name
    listed = options.listed_order
    if listed is None:
        listed = _IN_LAYER_ORDER.match(producer) is None
    notes.append(
        f"aux layers {list(ids)} are not ascending: fc is taken to hold its blocks in "
        f"{'that' if listed else 'layer'} order"
        + ("" if options.listed_order is not None else f" (producer: {producer}; see --aux-order)")
    )
    return order if listed else None


def _as_the_release_reads(
    inputs: tuple[int, ...], spec: DraftSpec, options: Options, notes: list[str]
) -> tuple[int, ...] | None:
    """Return the ids by which the target class captures `inputs`; None where its default does."""
    target, release = options.target, options.facts.release
    lower = tuple(layer - 1 for layer in inputs)
    if target is None:
        _refuse_another_rule(spec, options)
        notes.append(
            f"aux ids are written for target classes that add 1, as most do; SGLang {release} has "
            f"other rules for {_not_plus_one(options)}: give --target for those"
        )
        if 0 in inputs:
            raise NotConvertible(f"no id means the input of layer 0 in SGLang {release}", _NAME_IT)
        return lower
    rule = target.rule
    if rule is None:
        raise NotConvertible(
            f"SGLang {release} has no class {target.architecture}, so how it would read aux ids "
            "isn't known",
            "give --sglang-version one that serves this target",
        )
    if not rule.captures:
        if not options.plugin_is_there:
            raise NotConvertible(
                f"{target.architecture} of SGLang {release} can't capture aux hidden states",
                "give a newer --sglang-version, or --needs-plugin",
            )
        notes.append(f"{target.architecture} can't capture by itself: the plugin must be on")
        return lower
    for ids in (lower, inputs):
        if min(ids) >= 0 and rule.captured_layers(ids, target.num_layers) == inputs:
            _note_graphs(ids, target, options, notes)
            return ids
    if rule.captured_layers(None, target.num_layers) == inputs:
        return None
    raise NotConvertible(
        f"no aux ids make {target.architecture} of SGLang {release} capture the inputs of layers "
        f"{list(inputs)}",
        _NAME_IT,
    )


_NAME_IT = "serve the draft with a release whose target class can capture them"


def _refuse_another_rule(spec: DraftSpec, options: Options) -> None:
    """Raise where the config records a target whose class reads ids by another rule."""
    recorded = spec.config.get("speculators_config") or {}
    verifier = recorded.get("verifier")
    names = verifier.get("architectures") if isinstance(verifier, Mapping) else None
    for name in names if isinstance(names, list) else ():
        rule = options.facts.targets.get(name) if isinstance(name, str) else None
        if rule is not None and rule.explicit_ids != PLUS_ONE:
            raise NotConvertible(
                f"the draft's target is a {name}, which reads aux ids by a rule of its own",
                _NAME_TARGET,
            )


def _not_plus_one(options: Options) -> str:
    """Return some target classes of the release that read ids by another rule."""
    names = sorted(
        name
        for name, rule in options.facts.targets.items()
        if rule.explicit_ids not in (None, PLUS_ONE)
    )
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more if names else "none"


def _note_graphs(ids: tuple[int, ...], target: Target, options: Options, notes: list[str]) -> None:
    rule = target.rule
    if (
        rule is not None
        and options.facts.workers.layers_set_before_graphs is False
        and rule.captured_layers(ids, target.num_layers)
        != rule.captured_layers(None, target.num_layers)
    ):
        notes.append(
            f"SGLang {options.facts.release} captures its CUDA graphs with its default layers "
            "whatever the draft says: start it with --disable-cuda-graph, or with the plugin"
        )


def _warn_of_another_reading(
    ids: tuple[int, ...] | None,
    inputs: tuple[int, ...],
    options: Options,
    notes: list[str],
) -> None:
    """The plugin corrects layers where it is certain, and these ids may look like a default."""
    if options.target is None:
        return
    written: dict[str, Any] = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": ids and [*ids]}}
    read = resolve(written, options.target.num_layers, None, UNKNOWN)
    if read.certain and read.inputs not in (None, inputs):
        notes.append(
            f"{list(ids or ())} looks like the default to the plugin: with it, start with "
            f"SGLANG_EAGLE3_PATCH_OPTIONS=aux_layers={':'.join(map(str, inputs))}"
        )
