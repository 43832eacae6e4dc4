"""The layers whose inputs a target model captures: reading them back, and setting them for good.

Target classes keep them in a list beside their layers; mixture-of-experts ones also in a flag on
each layer, which is what their forward goes by and which nothing upstream ever clears.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_FLAG = "_is_layer_to_capture"


def capturing_module(target: Any) -> Any:
    """Return the target's module that lists `layers_to_capture` beside its `layers`, or None."""
    for module in target.modules():
        if getattr(module, "layers_to_capture", None) and hasattr(module, "layers"):
            return module
    return None


def captured_inputs(holder: Any) -> list[int]:
    """Return the layers whose inputs are really captured, in the order of the list."""
    listed = list(holder.layers_to_capture)
    if not any(hasattr(layer, _FLAG) for layer in holder.layers):
        return listed
    flagged = [i for i, layer in enumerate(holder.layers) if getattr(layer, _FLAG, False)]
    # The output of the last layer has no layer to be flagged: forwards look for it in the list.
    flagged += sorted({i for i in listed if i >= len(holder.layers)})
    return listed if sorted(set(listed)) == flagged else flagged


def set_layers(target: Any, layer_ids: Sequence[int] | None) -> None:
    """Have the target's own setter set `layer_ids`, and only those."""
    holder = capturing_module(target)
    for layer in () if holder is None else holder.layers:
        if getattr(layer, _FLAG, False):
            setattr(layer, _FLAG, False)
    target.set_eagle3_layers_to_capture(None if layer_ids is None else list(layer_ids))


def capture_exactly(target: Any, holder: Any, inputs: Sequence[int]) -> bool:
    """Have the target capture exactly `inputs`; returns whether its class can.

    A setter takes outputs (and adds 1) or inputs; which one is seen from what it does.
    """
    if captured_inputs(holder) == list(inputs):
        return True
    for ids in ([layer - 1 for layer in inputs], list(inputs)):
        set_layers(target, ids)
        if captured_inputs(holder) == list(inputs):
            return True
    return False


def remember_layers(target: Any) -> None:
    """Have the target's setter, called without layers, set those it was last called with."""
    setter, last = target.set_eagle3_layers_to_capture, None

    def set_or_repeat(layer_ids: list[int] | None = None) -> None:
        nonlocal last
        last = layer_ids if layer_ids is not None else last
        setter(last)

    target.set_eagle3_layers_to_capture = set_or_repeat
