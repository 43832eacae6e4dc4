"""Rules about rope: as the config states it, as it was trained, as the release reads it."""

from __future__ import annotations

import math
from collections.abc import Mapping

from sglang_eagle3_patch.checkpoint.rope import (
    DEFAULT_THETA,
    RopeUnavailable,
    rope_mappings,
    stated_rope,
)
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
from sglang_eagle3_patch.checkpoint.trained_rope import THETA_OPTION, shown


@rule("E3-rope-newer-schema", "error")
def newer_schema(case: Case) -> Answer:
    """Rope is stated in a form that the release's transformers does not read.

    Cause: transformers 5 writes `rope_parameters`; version 4, up to SGLang 0.5.9, reads
    `rope_theta` and `rope_scaling`, and takes theta 10000 where they are missing.

    Remedy: write both forms; the plugin does so in memory.
    """
    config, trained = case.stock_config, case.draft.trained_rope
    if config is None or not case.reads_old_rope:
        return OK
    kind, lost = trained.rope.kind, []
    if trained.is_stated and trained.conflict is None and _theta_read(case) != trained.theta:
        lost.append(f"theta {shown(trained.theta)}")
    if trained.rope.scaling and not config.get("rope_scaling"):
        lost.append(f"{kind} rope")
    if not lost:
        return OK
    return wrong(
        f"{' and '.join(lost)}: stated in rope_parameters alone, which {case.release} does not "
        "read",
        mended_by(case, "draft-rope", "write rope_theta and rope_scaling into its config.json"),
        stock="degraded",
        plugin="serves",
        theta=trained.theta,
        kind=kind,
    )


def _theta_read(case: Case) -> float:
    """The theta that the release's transformers reads of the draft's config."""
    layer = case.draft.layer_config
    return stated_rope(layer, old=case.reads_old_rope).theta or DEFAULT_THETA


@rule("E3-rope-conflict", "error")
def conflict(case: Case) -> Answer:
    """The config states two values of theta.

    Cause: `rope_theta` is one, and `rope_parameters` or `rope_scaling` has another. transformers 4
    takes the former and 5 the latter, and the file does not tell which its trainer had:
    `transformers_version` is the last saver's. The plugin refuses it.

    Remedy: name the one that was trained with: `SGLANG_EAGLE3_PATCH_OPTIONS=rope_theta=...`, or
    write it in both places.
    """
    thetas = case.draft.trained_rope.conflict
    if thetas is None:
        return OK
    top, nested = map(shown, thetas)
    return wrong(
        f"rope_theta is {top}, and {nested} in rope_parameters or rope_scaling",
        f"name the theta it was trained with: {THETA_OPTION}{top} or {THETA_OPTION}{nested}"
        if case.plugin
        else "write the theta it was trained with in both places of its config.json",
        stock="unknown",
        plugin="refuses",
        rope_theta=thetas[0],
        rope_parameters=thetas[1],
    )


@rule("E3-rope-dynamic", "error")
def dynamic(case: Case) -> Answer:
    """The draft's rope is dynamic.

    Cause: transformers scales such a rope in contexts beyond `max_position_embeddings` alone,
    SGLang in every context: the rotation is another one from the first token on.

    Remedy: leave the scaling out of the config: up to that length it is plain rope.
    """
    if case.draft.rope.kind != "dynamic":
        return OK
    return wrong(
        "its rope is dynamic, which SGLang scales in every context",
        "leave the scaling out of its config.json: up to max_position_embeddings it is plain rope",
        stock="degraded",
        plugin="refuses",
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
            "draft-rope",
            f'write "partial_rotary_factor": {factor} at the top level of its config.json',
        ),
        stock="degraded",
        plugin="serves",
        partial_rotary_factor=factor,
    )


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


@rule("E3-rope-untrained", "warning")
def rope_untrained(case: Case) -> Answer:
    """The draft was trained with another theta than the config states.

    Cause: SafeAILab's and AngelSlim's trainers never pass `rope_theta` on: drafts are trained with
    10000 whatever the config says, and stock SGLang serves them with what it says. TorchSpec's
    doesn't either for linear and dynamic rope. Or the option `rope_theta` names another one.

    Remedy: serve it with the plugin, or convert it; both take the theta it was trained with.
    """
    trained = case.draft.trained_rope
    read = _theta_read(case)
    if trained.is_stated or read == trained.theta:
        return OK
    return wrong(
        f"rope_theta is {shown(read)}, and it was trained with {shown(trained.theta)}: "
        f"{trained.source}",
        mended_by(
            case,
            "draft-rope",
            f"write rope_theta {shown(trained.theta)} wherever its config.json states one",
        ),
        stock="degraded",
        plugin="serves",
        theta=read,
        trained=trained.theta,
    )


@rule("E3-rope-exported", "warning")
def rope_exported(case: Case) -> Answer:
    """The config states a yarn that the draft was not trained with.

    Cause: ModelOpt's export writes a yarn of factor 32 for contexts beyond the trained ones, unless
    told otherwise. It changes the rotation and the amplitude of every position: within the trained
    contexts fewer drafts are accepted.

    Remedy: serve it with the plugin, which takes the plain rope; to have the yarn set
    `SGLANG_EAGLE3_PATCH_OPTIONS=rope_scaling=stated`.
    """
    trained = case.draft.trained_rope
    if trained.perhaps_unscaled:
        return unknown(
            "its config states a yarn of factor 32, as ModelOpt's export writes it over plain rope",
            "compare its accept length with that without rope_scaling in its config.json",
        )
    if not trained.unscaled:
        return OK
    return wrong(
        "it was trained with plain rope, and ModelOpt's export wrote a yarn of factor 32",
        mended_by(case, "draft-rope", "leave rope_scaling out of its config.json"),
        stock="degraded",
        plugin="serves",
    )


@rule("E3-rope-maybe-untrained", "info")
def rope_maybe_untrained(case: Case) -> Answer:
    """An older version of the trainer ignored the theta that the config states.

    Cause: SpecForge before November 2025 trained with theta 10000, and early versions of TorchSpec
    did so with yarn; the file does not tell its date. Or its trainer is one of several whose drafts
    look the same, of which some do so always.

    Remedy: compare the accept length with theta 10000, if the draft may be such a one:
    `SGLANG_EAGLE3_PATCH_OPTIONS=rope_theta=10000`.
    """
    trained = case.draft.trained_rope
    if trained.otherwise is None:
        return OK
    return unknown(
        f"rope_theta is {shown(trained.theta)}; {trained.source}",
        f"compare the accept length with {THETA_OPTION}{shown(trained.otherwise)}"
        if case.plugin
        else f"compare the accept length with rope_theta {shown(trained.otherwise)} in its config "
        "wherever it states one",
        stock="serves",
        plugin="serves",
        theta=trained.theta,
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
    return any("mrope_section" in place for place in rope_mappings(config))
