"""Rules about rope: as the config states it, as it was trained, as the release reads it."""

from __future__ import annotations

import math
from collections.abc import Mapping

from sglang_eagle3_patch.checkpoint.rope import DEFAULT_THETA, RopeUnavailable
from sglang_eagle3_patch.checkpoint.rules.answers import (
    NO_TARGET,
    OK,
    Answer,
    mended_by,
    rule,
    unknown,
    wrong,
)
from sglang_eagle3_patch.checkpoint.rules.case import Case

_AS_TRAINED = "compare the accept length with rope_theta 10000 in its config.json"
# Where a trainer ignores theta for scaled rope: of which drafts of each kind.
_SCALED = {"linear": "all", "dynamic": "all", "yarn": "early"}


@rule("E3-rope-newer-schema", "error")
def newer_schema(case: Case) -> Answer:
    """Rope is stated in a form that the release's transformers does not read.

    Cause: transformers 5 writes `rope_parameters`; version 4, up to SGLang 0.5.9, reads
    `rope_theta` and `rope_scaling`, and takes theta 10000 where they are missing.

    Remedy: write both forms; the plugin does so in memory.
    """
    config = case.stock_config or {}
    rope = case.draft.rope
    if not isinstance(config.get("rope_parameters"), Mapping) or not case.reads_old_rope:
        return OK
    lost = rope.theta not in (None, DEFAULT_THETA) and config.get("rope_theta") is None
    if not lost and not (rope.scaling and not config.get("rope_scaling")):
        return OK
    return wrong(
        f"rope (theta {rope.theta:g}, {rope.kind}) is stated in rope_parameters alone, which "
        f"{case.release} does not read"
        if rope.theta is not None
        else f"{rope.kind} rope is stated in rope_parameters alone",
        mended_by(case, "draft-config", "write rope_theta and rope_scaling into its config.json"),
        stock="degraded",
        plugin="serves" if "rope_theta" in config["rope_parameters"] else "degraded",
        theta=rope.theta,
        kind=rope.kind,
    )


@rule("E3-rope-conflict", "warning")
def conflict(case: Case) -> Answer:
    """The config states two values of theta.

    Cause: `rope_theta` and `rope_parameters` differ. Which one counts depends on the version of
    transformers.

    Remedy: write the one that was trained with in both places.
    """
    layer = case.draft.layer_config
    parameters, theta = layer.get("rope_parameters"), layer.get("rope_theta")
    nested = parameters.get("rope_theta") if isinstance(parameters, Mapping) else None
    if None in (nested, theta) or nested == theta:
        return OK
    return unknown(
        f"rope_theta is {theta}, and {nested} in rope_parameters",
        "write the theta it was trained with in both places of its config.json",
        rope_theta=theta,
        rope_parameters=nested,
    )


@rule("E3-rope-partial", "error")
def partial(case: Case) -> Answer:
    """Heads are rotated in part, by a key that SGLang does not look at.

    Cause: `partial_rotary_factor` inside `rope_parameters`; SGLang reads the top level.

    Remedy: write it at the config's top level too; the plugin does so in memory.
    """
    layer, factor = case.draft.layer_config, case.draft.rope.partial
    if factor in (None, 1.0) or layer.get("partial_rotary_factor") == factor:
        return OK
    return wrong(
        f"partial_rotary_factor is {factor} inside rope_parameters, where SGLang does not look",
        mended_by(
            case,
            "draft-config",
            f'write "partial_rotary_factor": {factor} at the top level of its config.json',
        ),
        stock="degraded",
        plugin="serves" if _hoisted(case) else "degraded",
        partial_rotary_factor=factor,
    )


def _hoisted(case: Case) -> bool:
    """Whether the plugin moves it: it looks at what states a theta too."""
    parameters = case.draft.layer_config.get("rope_parameters")
    return isinstance(parameters, Mapping) and "rope_theta" in parameters


@rule("E3-rope-amplitude", "error")
def amplitude(case: Case) -> Answer:
    """yarn's amplitude is another one than the release computes.

    Cause: up to 0.5.15 SGLang ignores `mscale` and `mscale_all_dim`, and `attention_factor` in
    every release.

    Remedy: serve it with the plugin, which sets it.
    """
    rope = case.draft.rope
    if not case.is_llama_config or rope.kind != "yarn" or "attn_factor" in rope.scaling:
        return OK
    try:
        trained = rope.amplitude(mla=False)
    except RopeUnavailable:
        return OK
    ignored = {"attention_factor": None}
    if case.before("0.5.16"):
        ignored |= {"mscale": None, "mscale_all_dim": None}
    heeded = type(rope)(rope.theta, {**rope.scaling, **ignored}, rope.partial)
    computed = heeded.amplitude(mla=False)
    if math.isclose(trained, computed, rel_tol=1e-6):
        return OK
    return wrong(
        f"yarn's amplitude is {trained:.4g} by the config, and {case.release} takes {computed:.4g}",
        mended_by(case, "draft-forward", "serve it with the plugin"),
        stock="degraded",
        plugin="serves",
        trained=trained,
        computed=computed,
    )


def _ignored_theta(case: Case) -> str:
    """Of which drafts the trainer ignored the theta that this one states; `none` of these."""
    rope, ignored = case.draft.rope, case.draft.producer.ignored_theta
    if rope.theta in (None, DEFAULT_THETA):
        return "none"
    return _SCALED.get(rope.kind, "none") if ignored == "scaled" else ignored


@rule("E3-rope-untrained", "warning")
def rope_untrained(case: Case) -> Answer:
    """The trainer ignored the theta that the config states.

    Cause: SafeAILab's and AngelSlim's trainers never pass `rope_theta` on: drafts are trained with
    10000 whatever the config says, and served with what it says. TorchSpec's doesn't either for
    linear and dynamic rope.

    Remedy: compare the accept length with theta 10000.
    """
    if _ignored_theta(case) != "all":
        return OK
    return wrong(
        f"rope_theta is {case.draft.rope.theta:g}, and {case.draft.producer.name} trains with "
        "10000",
        _AS_TRAINED,
        stock="degraded",
        plugin="degraded",
        theta=case.draft.rope.theta,
    )


@rule("E3-rope-maybe-untrained", "info")
def rope_maybe_untrained(case: Case) -> Answer:
    """An older version of the trainer ignored the theta that the config states.

    Cause: SpecForge before November 2025 trained with theta 10000, and early versions of TorchSpec
    did so with yarn. The file does not tell its date.

    Remedy: compare the accept length with theta 10000, if the draft is that old.
    """
    rope, trainer = case.draft.rope, case.draft.producer.name
    if _ignored_theta(case) != "early":
        return OK
    when = "at first" if case.draft.producer.ignored_theta == "scaled" else "before November 2025"
    return unknown(
        f"rope_theta is {rope.theta:g}; {trainer} {when} trained with 10000",
        _AS_TRAINED,
        stock="serves",
        plugin="serves",
        theta=rope.theta,
    )


@rule("E3-rope-mrope", "warning")
def mrope(case: Case) -> Answer:
    """The draft has positions of three kinds, and the target plain ones.

    Cause: `mrope_section` of a draft for a vision model, served with a text model. The three
    positions are the same then, which is plain rope; but the draft was trained for another target.

    Remedy: give the target that the draft was trained for.
    """
    if "mrope_section" not in case.draft.rope.scaling and not _has_mrope(case.draft.layer_config):
        return OK
    if case.target is None:
        return NO_TARGET
    if _has_mrope(case.target.text):
        return OK
    return unknown(
        f"the draft has an mrope_section, and {case.target.name} has none",
        "give the target that it was trained for",
        stock="serves",
        plugin="serves",
    )


def _has_mrope(config: Mapping[str, object]) -> bool:
    places = (config.get("rope_parameters"), config.get("rope_scaling"))
    return any(isinstance(place, Mapping) and "mrope_section" in place for place in places)
