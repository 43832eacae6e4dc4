"""Who wrote a draft, told by its config and by the names in its files.

The same names and the same keys mean different things from different trainers: which layers the
aux ids name, what `norm_output` norms, whether the rope of the config is the trained one.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from sglang_eagle3_patch.checkpoint.layouts import without_prefix


@dataclass(frozen=True)
class Signs:
    """What tells a producer; all that is given must hold.

    `architectures`: the config names one of them. `keys`: it has one of them, dotted if nested.
    `versions`: its `speculators_version` is among them. `names`: of each pattern, some tensor's
    name begins with it, after the prefix of a trainer's dump. `not_named`: no name does.
    `prefixed`: as `names`, of the names as written. `not_null`: the config holds null for
    none of these. `model_type`: the config's is this.
    """

    architectures: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    versions: str = ""
    names: tuple[str, ...] = ()
    not_named: str = ""
    prefixed: tuple[str, ...] = ()
    not_null: tuple[str, ...] = ()
    model_type: str = ""

    def hold(
        self, config: Mapping[str, Any], names: Collection[str], bare: Collection[str]
    ) -> bool:
        """Whether the config and the names, as written and `bare` of prefixes, show these signs."""
        return (
            self.may_hold(config)
            and all(_named(bare, pattern) for pattern in self.names)
            and all(_named(names, pattern) for pattern in self.prefixed)
            and not (self.not_named and _named(bare, self.not_named))
        )

    def may_hold(self, config: Mapping[str, Any]) -> bool:
        """Whether the config shows these signs, and names could."""
        stated = config.get("architectures") or []
        return (
            (not self.architectures or any(name in self.architectures for name in stated))
            and self.model_type in ("", config.get("model_type"))
            and all(config.get(key, "") is not None for key in self.not_null)
            and (not self.keys or any(_has_key(config, key) for key in self.keys))
            and (not self.versions or _is_version(config, self.versions))
        )


@dataclass(frozen=True)
class Producer:
    """One way in which drafts get written, recognised by any of its `signs`.

    `aux_ids`: an id names the `inputs` of its layer, or its `outputs` (the input of id + 1).
    `norm_output`: what the config's key of that name switches: what recurs to the next step
    (`recurrence`), or until September 2026 the norm before the head (`head`); `unknown` is taken
    for what recurs, as SGLang does, and told.
    `norm_before_residual`: what the trainer does when the config doesn't say; None if either.
    `ids_in_layer_order`: its trainer captures in the order of the layers, as SGLang does, however
    the ids are listed.
    `double_input_norm`: layer 0 norms the hidden state twice, whatever the config says.
    `ignored_theta`: of which drafts its trainer ignored `rope_theta`, and took 10000: of `all`, of
    `early` ones, of those with `scaled` rope (linear and dynamic; yarn in early ones), of `none`;
    `some` where trainers that do and trainers that don't look the same.
    `exports_yarn`: its export may state a yarn that the draft wasn't trained with, and at the top
    the target's theta beside the draft's own in `rope_scaling`.
    """

    name: str
    signs: tuple[Signs, ...]
    aux_ids: Literal["inputs", "outputs", "unknown"]
    norm_output: Literal["recurrence", "head", "unknown"] = "recurrence"
    norm_before_residual: bool | None = False
    ids_in_layer_order: bool = False
    double_input_norm: bool = False
    ignored_theta: Literal["none", "all", "early", "scaled", "some"] = "none"
    exports_yarn: bool = False
    quirks: tuple[str, ...] = ()


def _has_key(config: Mapping[str, Any], dotted: str) -> bool:
    *outer, key = dotted.split(".")
    place: Any = config
    for name in outer:
        place = place.get(name) if isinstance(place, Mapping) else None
    return isinstance(place, Mapping) and key in place


def _is_version(config: Mapping[str, Any], versions: str) -> bool:
    try:
        version = Version(str(config.get("speculators_version")))
    except InvalidVersion:
        return False
    return SpecifierSet(versions).contains(version, prereleases=True)


def _named(names: Collection[str], pattern: str) -> bool:
    return any(re.match(pattern, name) for name in names)


# TorchSpec writes ModelOpt's other keys of `eagle_config`, but none of these.
_MODELOPT_KEYS = ("eagle_config.next_layer_regular", "eagle_config.parallel_draft_step")
_MIDLAYER = r"midlayer\."
_TRAINER = ("Eagle3DraftModel",)
_CONVERTER = ("Eagle3Speculator",)
_SPECULATORS = ("speculators_model_type",)
_HEAD_NORM = "norm_output switched the norm before the head until September 2026, what recurs since"
_NORMED_TWICE = "its trainer norms the hidden state twice: input_layernorm, then hidden_norm"
_ROPE_IGNORED = "its trainer ignored rope_theta: trained with 10000, but for interleaved mrope"
_SCALED_ROPE_IGNORED = (
    "its trainer ignored rope_theta for linear and dynamic rope, and for yarn at first: trained "
    "with 10000"
)

# The first row that shows its signs is the producer.
PRODUCERS = (
    Producer(
        "speculators trainer before 0.5",
        (Signs(_TRAINER, _SPECULATORS, versions="<0.5"),),
        "outputs",
        norm_before_residual=None,
        quirks=(
            "null ids mean outputs of [2, N // 2, N - 3], one layer above everybody's default",
            "rope is not copied from the target: trained and saved with 10000 unless given",
        ),
    ),
    Producer(
        "speculators trainer",
        (Signs(_TRAINER, _SPECULATORS),),
        "inputs",
        norm_before_residual=None,
    ),
    Producer(
        "speculators converter 0.2 to 0.4",
        (Signs(_CONVERTER, _SPECULATORS, versions=">=0.2,<0.5"),),
        "unknown",
        norm_before_residual=None,
        quirks=("a midlayer.* source was saved with random decoder weights: check the values",),
    ),
    Producer(
        "speculators converter",
        (Signs(_CONVERTER, _SPECULATORS),),
        "unknown",
        norm_before_residual=None,
        quirks=(
            "ids are copied as the user typed them, or lost",
            "a source with rope_parameters alone comes out with rope_theta 10000",
        ),
    ),
    Producer(
        "NeMo Automodel",
        (
            Signs(("LlamaEagle3DraftModel",)),
            Signs(prefixed=(r"model\.fc\.", r"model\.layers\.0\.", r"lm_head\.")),
        ),
        "outputs",
        quirks=("the config is the target's, with overrides: num_hidden_layers may be too",),
    ),
    Producer(
        "ModelOpt Megatron, several layers",
        (Signs(("LlamaForCausalLMEagle3Deep",)),),
        "outputs",
        ids_in_layer_order=True,
        quirks=("d2t is never exported", "ids may be unsorted; layers are captured in order"),
    ),
    Producer(
        "ModelOpt",
        (Signs(keys=_MODELOPT_KEYS, not_named=_MIDLAYER),),
        "outputs",
        ids_in_layer_order=True,
        double_input_norm=True,
        exports_yarn=True,
        quirks=(_NORMED_TWICE, "since 0.44 a yarn is written for a draft trained with plain rope"),
    ),
    Producer(
        "ModelOpt 0.41 or 0.42",
        (
            Signs(keys=_MODELOPT_KEYS, names=(_MIDLAYER, "d2t$")),
            # The Megatron export writes null.
            Signs(keys=_MODELOPT_KEYS, names=(_MIDLAYER,), not_null=("bos_token_id",)),
        ),
        "outputs",
        ids_in_layer_order=True,
        double_input_norm=True,
        quirks=(_NORMED_TWICE,),
    ),
    Producer(
        "ModelOpt Megatron",
        (Signs(keys=_MODELOPT_KEYS),),
        "outputs",
        ids_in_layer_order=True,
        quirks=("d2t is never exported", "ids may be unsorted; layers are captured in order"),
    ),
    Producer(
        "TorchSpec, exported for vLLM",
        (
            # Of other drafts the exporter renames the layer and leaves the ids as trained.
            Signs(model_type="kimi_k2", keys=("_torchspec_version",), names=(r"layers\.0\.",)),
            Signs(("Eagle3DeepseekV2ForCausalLM",), model_type="kimi_k2", names=(r"layers\.0\.",)),
        ),
        "inputs",
        ignored_theta="scaled",
        quirks=(_SCALED_ROPE_IGNORED,),
    ),
    Producer(
        "TorchSpec",
        (Signs(keys=("_torchspec_version",)), Signs(("Eagle3DeepseekV2ForCausalLM",))),
        "outputs",
        ignored_theta="scaled",
        quirks=(_SCALED_ROPE_IGNORED,),
    ),
    Producer(
        "AngelSlim",
        (
            Signs(("Eagle3LlamaForCausalLM", "CosyVoice3Eagle3LlamaForCausalLM")),
            # `target_model_type` is in its configs too, and in SpecForge's.
            Signs(keys=("modal_type",)),
        ),
        "outputs",
        ignored_theta="all",
        quirks=(_ROPE_IGNORED,),
    ),
    Producer(
        "SafeAILab",
        (Signs(("LlamaForCausalLM",), names=(_MIDLAYER,)),),
        "inputs",
        ignored_theta="all",
        quirks=(_ROPE_IGNORED,),
    ),
    Producer(
        "SpecForge",
        (
            Signs(names=(r"aux_norm_(low|mid|high)\.",)),
            Signs(("LlamaForCausalLMEagle3",), names=(_MIDLAYER, "d2t$", "t2d$")),
        ),
        "outputs",
        ids_in_layer_order=True,
        norm_output="head",
        ignored_theta="early",
        quirks=(_HEAD_NORM, "before November 2025 the trainer ignored rope_theta"),
    ),
    Producer(
        "SafeAILab, SpecForge, AngelSlim or TorchSpec",
        (Signs(names=(_MIDLAYER,)),),
        "unknown",
        # SpecForge's key: what TorchSpec exports tells its version.
        norm_output="head",
        ignored_theta="some",
    ),
    Producer(
        "a trainer's own dump",
        (Signs(prefixed=(r"(draft_model|eagle_module|module)\.",)),),
        "unknown",
        norm_output="unknown",
        norm_before_residual=None,
    ),
)

UNKNOWN = Producer("unknown", (), "unknown", norm_output="unknown", norm_before_residual=None)


def recognise(config: Mapping[str, Any], names: Collection[str]) -> Producer:
    """Return the producer of a draft from its config and its tensors' names as written.

    Where no names are known they could still make it an earlier row's: if that one means other
    layers by its ids, what they mean is unknown.
    """
    bare = {without_prefix(name) for name in names}
    for number, producer in enumerate(PRODUCERS):
        if any(signs.hold(config, names, bare) for signs in producer.signs):
            return producer if names else _unnamed(producer, config, PRODUCERS[:number])
    return UNKNOWN


def _unnamed(
    producer: Producer, config: Mapping[str, Any], earlier: Iterable[Producer]
) -> Producer:
    possible = (row for row in earlier if any(signs.may_hold(config) for signs in row.signs))
    if all(row.aux_ids == producer.aux_ids for row in possible):
        return producer
    return replace(producer, aux_ids="unknown")
