"""Which target layers a draft's aux hidden states come from.

Two meanings are about: the input of layer b, and the output of layer p = b - 1. Here a layer is
always named by its input; the default of every trainer is [2, N // 2, N - 3] for N layers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sglang_eagle3_patch.checkpoint.config import (
    ConfigNotUnderstood,
    is_layer_list,
    is_speculators,
    stated_layer_ids,
)
from sglang_eagle3_patch.checkpoint.producers import UNKNOWN, Producer

KEY = "eagle_aux_hidden_state_layer_ids"


@dataclass(frozen=True)
class AuxLayers:
    """The wanted layers and who says so; `inputs` is None when SGLang's own rule decides.

    `certain` is False when the layers follow from no rule of a known producer: then `source`
    names the readings there are.
    """

    inputs: tuple[int, ...] | None
    source: str
    certain: bool = True


def default_inputs(num_layers: int) -> tuple[int, ...]:
    """Return the default layers (named by their inputs) of a target with `num_layers` layers."""
    return (2, num_layers // 2, num_layers - 3)


def stated_ids(config: Mapping[str, Any]) -> tuple[tuple[int, ...], str] | None:
    """Return the ids that a raw config states and where; SGLang's place, `eagle_config`, first.

    Raises `ConfigNotUnderstood` when they are anything but a list of layer numbers.
    """
    eagle_config = config.get("eagle_config")
    nested = eagle_config.get(KEY) if isinstance(eagle_config, Mapping) else None
    if nested is not None and nested != []:  # an empty list is ModelOpt's way to state none
        if not is_layer_list(nested):
            raise ConfigNotUnderstood(f"eagle_config.{KEY} is {nested!r}, no list of layer numbers")
        return tuple(nested), "eagle_config"
    top = stated_layer_ids(config)
    return None if top is None else (tuple(top), "the config's top level")


def resolve(
    config: Mapping[str, Any],
    num_layers: int,
    option: Sequence[int] | None = None,
    producer: Producer = UNKNOWN,
) -> AuxLayers:
    """Return the layers that the draft with this raw config was trained on.

    In this order: the user's own word (`option`); ids that only one reading allows, since the
    input of layer N exists and its output does not; the producer's convention; the ids of the
    default, which differ between the conventions. What is left keeps the meaning of stock SGLang,
    and isn't certain. SpecForge captures through SGLang's own setter, so there SGLang's rule is
    the trainer's.
    Raises `ConfigNotUnderstood` when the ids are no list of layer numbers.
    """
    if option is not None:
        return AuxLayers(tuple(option), "the aux_layers option")
    stated = stated_ids(config)
    if stated is None:
        return _unstated(config, num_layers, producer)
    ids, place = stated
    if producer.ids_in_layer_order:
        ids = tuple(sorted(ids))
    outputs = tuple(layer + 1 for layer in ids)
    default = default_inputs(num_layers)
    if num_layers in ids:
        return AuxLayers(ids, f"{place}: {num_layers} can only name an input")
    if producer.aux_ids == "inputs":
        return AuxLayers(ids, f"{place}: inputs, as the {producer.name} writes them")
    if producer.name == "SpecForge":
        return AuxLayers(None, f"{place}, by SGLang's own rule, which SpecForge trains with")
    if producer.aux_ids == "outputs":
        return AuxLayers(outputs, f"{place}: outputs, as the {producer.name} writes them")
    if ids == default:
        return AuxLayers(ids, f"{place}: the default, by inputs")
    if outputs == default:
        return AuxLayers(outputs, f"{place}: the default, by outputs")
    readings = f"inputs {list(ids)} or outputs, which are inputs {list(outputs)}"
    if place == "eagle_config":
        return AuxLayers(None, f"{place}, by SGLang's own rule; they may mean {readings}", False)
    return AuxLayers(ids, f"{place}; they may mean {readings}", False)


def _unstated(config: Mapping[str, Any], num_layers: int, producer: Producer) -> AuxLayers:
    default = default_inputs(num_layers)
    if is_speculators(config) and producer.aux_ids == "outputs":
        later = tuple(layer + 1 for layer in default)
        source = f"the config states none: outputs of {list(default)}, as the {producer.name} took"
        return AuxLayers(later, source, certain=False)
    if is_speculators(config):
        return AuxLayers(default, "the default, since the config states none", certain=False)
    return AuxLayers(None, "SGLang's default, since the config states none")
