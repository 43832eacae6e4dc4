"""Rules about the release itself."""

from __future__ import annotations

from sglang_eagle3_patch.checkpoint.rules.answers import OK, Answer, mended_by, rule, unknown, wrong
from sglang_eagle3_patch.checkpoint.rules.case import Case
from sglang_eagle3_patch.facts.store import known_releases


@rule("E3-launch-backend", "info")
def backend(case: Case) -> Answer:
    """Draft and target have different kinds of attention, and one backend.

    Cause: a draft with plain attention on a target with latent attention may not run on the
    target's attention backend.

    Remedy: if the start ends there, name a backend for the draft.
    """
    if case.target is None or case.draft.attention != "mha":
        return OK
    if not case.target.has_latent_attention or case.launch.draft_attention_backend:
        return OK
    if case.engine.launch.draft_attention_backend is None:
        return OK
    return unknown(
        "the draft has plain attention and the target latent: one backend may not do for both",
        "if the start ends there, give --speculative-draft-attention-backend",
        stock="serves",
        plugin="serves",
    )


@rule("E3-engine-positions", "warning")
def positions(case: Case) -> Answer:
    """The release drafts one position ahead.

    Cause: up to 0.5.11 the workers advance the positions before the first draft forward, so that
    every draft token is rotated one further than in training. Fewer drafts are accepted.

    Remedy: serve it with the plugin, or with 0.5.12 or newer.
    """
    if not case.before("0.5.12"):
        return OK
    return wrong(
        f"{case.release} drafts one position ahead: fewer drafts are accepted",
        mended_by(case, "draft-positions", "serve it with 0.5.12 or newer"),
        stock="degraded",
        plugin="serves",
    )


@rule("E3-engine-release", "info")
def release(case: Case) -> Answer:
    """What is known of the release was read from its source, not tried.

    Cause: a release, or a fork, that this plugin has no stored facts of.

    Remedy: look what `sglang-eagle3 status` says of the patches there.
    """
    if case.engine.release in known_releases():
        return OK
    return unknown(
        f"{case.release} is not among the releases that were tried",
        "look what sglang-eagle3 status says of the patches there",
        stock="serves",
        plugin="serves",
    )
