"""Which target layers a draft's aux hidden states come from.

Two meanings are about: the input of layer b, and the output of layer p = b - 1. Here a layer is
always named by its input; the default of every trainer is [2, N // 2, N - 3] for N layers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sglang_eagle3_patch.checkpoint.config import is_speculators, stated_layer_ids


@dataclass(frozen=True)
class AuxLayers:
    """The wanted layers and who says so; `inputs` is None when nobody but SGLang's rule does."""

    inputs: tuple[int, ...] | None
    source: str
    certain: bool = True


def default_inputs(num_layers: int) -> tuple[int, ...]:
    """Return the default layers (named by their inputs) of a target with `num_layers` layers."""
    return (2, num_layers // 2, num_layers - 3)


def resolve(
    config: Mapping[str, Any], num_layers: int, option: Sequence[int] | None = None
) -> AuxLayers:
    """Return the layers that the draft with this raw config was trained on.

    `option` is the user's own word and beats everything. Only what speculators writes is
    resolved here: its trainer means inputs, its converter copies whatever the user typed. For
    SGLang's own form (`eagle_config`) SGLang's rule for the target in hand is left to decide.
    """
    if option is not None:
        return AuxLayers(tuple(option), "the aux_layers option")
    if not is_speculators(config):
        return AuxLayers(None, "eagle_config, by SGLang's own rule")
    stated = stated_layer_ids(config)
    default = default_inputs(num_layers)
    if stated is None:
        return AuxLayers(default, "the default, since the config states none", certain=False)
    ids = tuple(stated)
    if "Eagle3DraftModel" in (config.get("architectures") or []) or ids == default:
        return AuxLayers(ids, "eagle_aux_hidden_state_layer_ids (inputs)")
    outputs = tuple(layer + 1 for layer in ids)
    if outputs == default:
        return AuxLayers(outputs, "eagle_aux_hidden_state_layer_ids (outputs)")
    return AuxLayers(
        ids, "eagle_aux_hidden_state_layer_ids, of a converter that keeps either form", False
    )
