"""What a conversion is asked for, and how it says no."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from sglang_eagle3_patch.checkpoint.config_file import read_config
from sglang_eagle3_patch.checkpoint.trained_rope import NOTHING_TOLD, ToldRope
from sglang_eagle3_patch.facts.engine_facts import EngineFacts, TargetClass

_TEXT = ("text_config", "language_config", "llm_config", "thinker_config")


class NotConvertible(ValueError):
    """A draft that can't be written in the form asked for; the text says why and what to do."""

    def __init__(self, problem: str, fix: str) -> None:
        super().__init__(f"{problem.rstrip('.')}. Fix: {fix.rstrip('.')}")


@dataclass(frozen=True)
class Target:
    """The target as its config tells: its class, its N layers, the width of a hidden state.

    `rule` is what is known of the class in the release; None: nothing.
    """

    architecture: str
    num_layers: int
    hidden: int
    rule: TargetClass | None


@dataclass(frozen=True)
class Options:
    """What is wanted.

    to: names as the release's own class takes them, or `layers.N.*` whatever it takes.
    facts: the SGLang release that is to load the draft.
    target: the target, where it was named.
    aux_inputs: the user's own word on the captured layers, named by their inputs.
    listed_order: whether `fc` takes the aux states in the order in which the ids are listed; else
        in the order of layers. None: as its producer trains.
    flags: the user's own word on the draft's flags, by their names in `DraftFlags`.
    told_rope: the user's own word on the rope that the draft was trained with.
    needs_plugin: whether what only the plugin computes may be written.
    tool_version: of this package, for the provenance.
    """

    facts: EngineFacts
    to: Literal["sglang", "canonical"] = "sglang"
    target: Target | None = None
    aux_inputs: tuple[int, ...] | None = None
    listed_order: bool | None = None
    flags: Mapping[str, bool] = field(default_factory=dict)
    told_rope: ToldRope = NOTHING_TOLD
    needs_plugin: bool = False
    tool_version: str = ""

    @property
    def plugin_is_there(self) -> bool:
        """Whether the plugin may be relied on; names that the class lacks need it anyway."""
        return self.needs_plugin or self.to == "canonical"


def read_target(folder: Path, facts: EngineFacts) -> Target:
    """Return the target whose `config.json` is in `folder`.

    Raises `CheckpointUnreadable` when it can't be read, `NotConvertible` when it doesn't say what
    is needed.
    """
    config = read_config(folder / "config.json")
    text: Mapping[str, Any] = config
    while nested := next((text[key] for key in _TEXT if isinstance(text.get(key), Mapping)), None):
        text = nested
    architecture = next(iter(config.get("architectures") or ()), None)
    layers, hidden = text.get("num_hidden_layers"), text.get("hidden_size")
    if architecture is None or type(layers) is not int or type(hidden) is not int:
        raise NotConvertible(
            f"{folder}/config.json lacks architectures, num_hidden_layers or hidden_size",
            "give --target the folder of the target's own config",
        )
    return Target(architecture, layers, hidden, facts.targets.get(architecture))
