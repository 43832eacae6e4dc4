"""What came of a start, in one block: what of the draft is in place, and by what."""

from __future__ import annotations

from collections.abc import Iterable

from sglang_eagle3_patch.engine.patch import PatchReport, Status
from sglang_eagle3_patch.hooks.parts.launch_facts import LaunchFacts


def ready_report(facts: LaunchFacts, reports: Iterable[PatchReport]) -> str | None:
    """Return the block, or None where no EAGLE-3 draft is served.

    What no hook told of is said to be unknown: a patch that is off knows nothing. Where SGLang does
    a patch's work itself, it is SGLang's word that is taken.
    """
    if facts.algorithm != "EAGLE3":
        return None
    reports = list(reports)
    by_sglang = {r.name for r in reports if r.status is Status.NOT_NEEDED}
    in_force = {r.name for r in reports if r.status is Status.APPLIED} | by_sglang
    whose = "SGLang's own choice" if "embed-head" in by_sglang else "unknown"
    applied = [report.name for report in reports if report.status is Status.APPLIED]
    told = [
        _weights(facts, by_sglang="draft-weights" in by_sglang),
        f"{_layers(facts)} → {_fc(facts, guarded='fc-guard' in in_force)}",
        *([", ".join(facts.draft_flags)] if facts.draft_flags else []),
        f"embedding: {facts.embedding or whose}; head: {facts.head or whose}",
        f"patches applied: {', '.join(applied) or 'none'}",
    ]
    return f"EAGLE-3: {'; '.join(told)}"


def _weights(facts: LaunchFacts, *, by_sglang: bool) -> str:
    if facts.draft_weights is None and by_sglang:
        return "tensors of the draft: accounted for by SGLang"
    if facts.draft_tensors is None:
        return f"tensors of the draft: {facts.draft_weights or 'not accounted for'}"
    loaded = facts.draft_tensors  # less than all of them raises
    return f"{loaded}/{loaded} tensors of the draft loaded"


def _layers(facts: LaunchFacts) -> str:
    if facts.captured_layers is None:
        return "aux layers unknown"
    layers = ", ".join(map(str, facts.captured_layers)) or "none"
    return f"aux layers {layers} (from {facts.layers_from or 'SGLang alone'})"


def _fc(facts: LaunchFacts, *, guarded: bool) -> str:
    held = "applied (a forward that would skip it is refused)" if guarded else "not guarded"
    if facts.fc_width is None:
        return f"fc {held}"
    number = len(facts.captured_layers or ())
    whole = number > 0 and facts.fc_width % number == 0
    width = (
        f"{number}\N{MULTIPLICATION SIGN}{facts.fc_width // number}"
        if whole
        else str(facts.fc_width)
    )
    return f"{width} → fc {held}"
