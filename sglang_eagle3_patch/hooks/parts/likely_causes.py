"""Why next to nothing of a draft is accepted, as far as the hooks of this process can tell."""

from __future__ import annotations

from collections.abc import Iterable

from sglang_eagle3_patch.engine.patch import PatchReport, Status
from sglang_eagle3_patch.hooks.parts.launch_facts import LaunchFacts

_IN_FORCE = (Status.APPLIED, Status.NOT_NEEDED)
# The patches by which a draft computes what it did in training, given its weights and layers.
_FORWARD = (
    "draft-config",
    "draft-rope",
    "draft-forward",
    "embed-head",
    "draft-positions",
    "cpu-lengths",
)


def likely_causes(
    facts: LaunchFacts, reports: Iterable[PatchReport], *, accepted_before: bool
) -> list[str]:
    """Return the causes that are left, the likeliest first.

    `accepted_before` says that this process has seen drafts accepted: then it was loaded well.
    """
    off = {report.name: report.status.value for report in reports if report.status not in _IN_FORCE}

    def of(*names: str) -> str:
        return ", ".join(f"{name}: {off[name]}" for name in names if name in off)

    causes = []
    if accepted_before:
        causes.append("what is asked of the server has changed, or weights were updated since")
    if facts.draft_weights == "dummy":
        causes.append("the draft's weights are random (--load-format dummy)")
    elif facts.draft_weights is None:
        told = of("draft-weights") or "its class or loader is not known to draft-weights"
        causes.append(f"the draft's weights were not accounted for ({told})")
    if told := of("fc-guard", "eagle3-mode", "kimi-capture", "wrapper-capture"):
        causes.append(f"the draft's fc may be skipped ({told})")
    if facts.captured_layers is None:
        told = of("aux-capture") or "the target keeps them elsewhere"
        causes.append(f"which layers are captured is unknown ({told})")
    else:
        causes.append(
            f"the draft was trained on other layers than {list(facts.captured_layers)}, named by "
            f"{facts.layers_from or 'SGLang alone'}"
        )
    if told := of(*_FORWARD):
        causes.append(f"the draft computes something else than in training ({told})")
    causes.append("the draft was trained for another target, or on other text, than is served")
    return causes
