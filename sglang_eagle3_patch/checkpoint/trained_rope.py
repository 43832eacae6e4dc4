"""Which rope a draft was trained with: not always the one that its config states.

Some trainers read `rope_theta` into the config that they save and never pass it on, so that their
drafts are trained with 10000. ModelOpt's export writes a yarn over the plain rope it trained with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sglang_eagle3_patch.checkpoint.producers import Producer
from sglang_eagle3_patch.checkpoint.rope import (
    DEFAULT_THETA,
    Rope,
    rope_mappings,
    stated_in_both_schemas,
    stated_rope,
)
from sglang_eagle3_patch.settings import PREFIX, Settings

# By which the user names the theta that a draft was trained with.
THETA_OPTION = f"{PREFIX}_OPTIONS=rope_theta="
# Where a trainer ignores theta for scaled rope: of which drafts of each kind.
_SCALED = {"linear": "all", "dynamic": "all", "yarn": "first"}
_MAYBE = {
    "early": "{} before November 2025 trained with 10000, and AngelSlim's, renamed, look the same",
    "first": "{} at first trained yarn with 10000",
    "some": "SafeAILab and AngelSlim train with 10000, and their drafts look like this one",
}


# What ModelOpt writes since 0.44 for contexts beyond the trained ones, unless it is told otherwise
# (`eagle_export_rope_scaling`); recipes have another length. A trained yarn brings its theta along.
EXPORTED_YARN = {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 2048}


@dataclass(frozen=True)
class ToldRope:
    """The user's own word on the rope of a draft.

    `theta`: what it was trained with, None is no word. `scaling_as_stated`: that it is served with
    the scaling of its config, even where its trainer is known not to have had it.
    """

    theta: float | None = None
    scaling_as_stated: bool = False

    @classmethod
    def of(cls, settings: Settings) -> ToldRope:
        """Return what the options of the environment say."""
        return cls(settings.rope_theta, settings.rope_scaling == "stated")


NOTHING_TOLD = ToldRope()


@dataclass(frozen=True)
class TrainedRope:
    """The rope that a draft was trained with, and who says so.

    `stated`: theta by the config, None when it states none. `otherwise`: the theta that it may as
    well have been trained with, by the trainers that `source` names; None when it is certain.
    `conflict`: the config states two thetas, `rope_theta` and another one in a mapping, and nobody
    says which counts. `unscaled`: the config states a scaling, and it was trained with none;
    `perhaps_unscaled`: it may have been.
    """

    rope: Rope
    stated: float | None
    source: str = "the config"
    otherwise: float | None = None
    conflict: tuple[float, float] | None = None
    unscaled: bool = False
    perhaps_unscaled: bool = False

    @property
    def theta(self) -> float:
        """The theta in effect: every trainer takes 10000 where the config states none."""
        return DEFAULT_THETA if self.rope.theta is None else self.rope.theta

    @property
    def trainer_matters(self) -> bool:
        """Whether another trainer's habit would make another rope of what the config states."""
        return (
            self.conflict is not None
            or self.theta != DEFAULT_THETA
            or self.unscaled
            or self.rope.scaling.get("factor") == EXPORTED_YARN["factor"]
        )

    @property
    def is_stated(self) -> bool:
        """Whether the config states the theta that it was trained with."""
        return self.theta == (DEFAULT_THETA if self.stated is None else self.stated)


def resolve(
    layer: Mapping[str, Any], producer: Producer, told: ToldRope = NOTHING_TOLD
) -> TrainedRope:
    """Return the rope that a draft was trained with, by the part of its config about the layer.

    Its theta by, in this order: the user's own word (`told`); a trainer that took 10000 in every
    version; the config, unless it states two thetas: `transformers_version` is the last saver's and
    tells nothing of the trainer's. Of a trainer that took 10000 at first, or one of several that
    look the same, the config's word stays, and isn't certain.
    """
    trained = _with_theta(layer, producer, told.theta)
    scaling = trained.rope.scaling
    like_exported = trained.rope.kind == "yarn" and scaling.get("factor") == EXPORTED_YARN["factor"]
    if not (producer.exports_yarn and like_exported) or told.scaling_as_stated:
        return trained
    written = layer.get("rope_scaling")
    if isinstance(written, Mapping) and written.keys() <= {"type", *EXPORTED_YARN}:
        return replace(trained, rope=replace(trained.rope, scaling={}), unscaled=True)
    # Written anew by another tool, which may have added theta and defaults.
    return replace(trained, perhaps_unscaled=True)


def in_both_schemas(layer: Mapping[str, Any], trained: TrainedRope) -> dict[str, Any]:
    """Return the keys that state the trained rope of `layer` to either version of transformers."""
    if trained.unscaled:
        layer = {**layer, "rope_scaling": None, "rope_parameters": None}
    return stated_in_both_schemas(layer, trained.theta)


def _with_theta(layer: Mapping[str, Any], producer: Producer, option: float | None) -> TrainedRope:
    rope, top = stated_rope(layer), stated_rope(layer, old=True).theta
    if option is not None:
        return TrainedRope(replace(rope, theta=option), rope.theta, "the rope_theta option")
    ignored: str = producer.ignored_theta
    if ignored == "scaled":
        ignored = _SCALED.get(rope.kind, "none")
    if _is_interleaved(layer):
        ignored = "none"  # AngelSlim's class for it reads the config
    other = {rope.theta, top} - {None, DEFAULT_THETA}
    if ignored == "all" and other:
        source = f"{producer.name} trains with 10000 whatever the config says"
        return TrainedRope(replace(rope, theta=DEFAULT_THETA), rope.theta, source)
    nested = rope.theta
    # ModelOpt's exporter takes the one at the top from the target where the draft has none.
    own = producer.exports_yarn and isinstance(layer.get("rope_scaling"), Mapping)
    if top is not None and nested is not None and nested != top and not own:
        return TrainedRope(rope, nested, conflict=(top, nested))
    if ignored in _MAYBE and other:
        source = _MAYBE[ignored].format(producer.name)
        return TrainedRope(rope, rope.theta, source, DEFAULT_THETA)
    return TrainedRope(rope, rope.theta)


def _is_interleaved(layer: Mapping[str, Any]) -> bool:
    return any(place.get("mrope_interleaved") for place in rope_mappings(layer))


def shown(theta: float) -> str:
    """Return a theta in digits, as one would write it into a config."""
    return f"{theta:.15g}"
