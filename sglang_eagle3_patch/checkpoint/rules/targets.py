"""Rules about the target's class, and whether it is the one that the draft was trained for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sglang_eagle3_patch.checkpoint.rules.answers import (
    NO_TARGET,
    OK,
    Answer,
    Outcome,
    mended_by,
    rule,
    unknown,
    wrong,
)
from sglang_eagle3_patch.checkpoint.rules.case import Case

_NEWER = "serve it with a release whose target class can"


@rule("E3-target-class", "warning")
def target_class(case: Case) -> Answer:
    """What the target's class can do is not known.

    Cause: the release registers no class under the target's architectures: a model of its own, or
    one that is served by transformers.

    Remedy: start the server: it refuses a target that can't capture.
    """
    if case.target is None:
        return NO_TARGET
    if case.target_class is not None:
        return OK
    return unknown(
        f"{case.release} has no class {list(case.target.architectures)} of its own",
        "start the server: it refuses a target that can't capture",
        architectures=case.target.architectures,
    )


def _lacks(case: Case, what: str, method: str) -> Answer:
    """Answer for a method that the class lacks; a wrapper is lent it by its language model."""
    assert case.target is not None
    name = case.target.architectures[0]
    can = getattr(case.lent_class, _FACT[method])
    remedies: Mapping[bool | None, str] = {
        True: mended_by(case, "wrapper-capture", _NEWER),
        None: "serve it with the plugin: if its language model can, the wrapper is lent the method",
        False: _NEWER,
    }
    outcomes: Mapping[bool | None, Outcome] = {True: "serves", None: "unknown", False: "refuses"}
    return wrong(
        f"{name} of {case.release} has no {method}, without which it can't {what}",
        remedies[can],
        stock="refuses",
        plugin=outcomes[can],
        architecture=name,
    )


_FACT = {
    "set_eagle3_layers_to_capture": "captures",
    "get_embed_and_head": "gives_embed_and_head",
}


@rule("E3-target-capture", "error")
def capture(case: Case) -> Answer:
    """The target's class can't capture aux hidden states.

    Cause: it lacks `set_eagle3_layers_to_capture`, and EAGLE3 ends in an error. Wrappers around a
    language model often forgot it, Kimi-K2.5's at 0.5.9.

    Remedy: serve it with the plugin, which lends a wrapper its language model's methods, or with a
    release whose class can.
    """
    if case.target is None:
        return NO_TARGET
    chosen = case.target_class
    if chosen is None or chosen.captures:
        return OK
    if chosen.captures is None:
        return unknown("whether the target's class can capture is not known", _NEWER)
    return _lacks(case, "capture aux hidden states", "set_eagle3_layers_to_capture")


@rule("E3-target-embedding", "error")
def embedding(case: Case) -> Answer:
    """The target's class can't hand its embedding to the draft.

    Cause: it lacks `get_embed_and_head`, and the start ends in an error; Qwen2-MoE does in every
    release.

    Remedy: serve it with the plugin if it is a wrapper around a language model, or with a release
    whose class can.
    """
    if case.target is None:
        return NO_TARGET
    chosen = case.target_class
    if chosen is None or chosen.gives_embed_and_head is not False:
        return OK
    return _lacks(case, "share its embedding", "get_embed_and_head")


def _verifier(case: Case) -> Mapping[str, Any]:
    recorded = case.draft.config.get("speculators_config")
    verifier = recorded.get("verifier") if isinstance(recorded, Mapping) else None
    return verifier if isinstance(verifier, Mapping) else {}


@rule("E3-target-recorded", "warning")
def recorded(case: Case) -> Answer:
    """The draft records another target's class than is given.

    Cause: a draft of another model whose shapes happen to fit: it loads, and little is accepted.

    Remedy: give the target that the draft was trained for.
    """
    stated = _verifier(case).get("architectures")
    if not isinstance(stated, list) or not stated:
        return OK
    if case.target is None:
        return NO_TARGET
    given = {*case.target.architectures, *case.target.text_architectures}
    if not given or given & set(stated):
        return OK
    return wrong(
        f"it was trained for {stated}, and the target is {sorted(given)}",
        "give the target that it was trained for",
        stock="unknown",
        plugin="unknown",
        recorded=stated,
        given=sorted(given),
    )


@rule("E3-target-name", "info")
def name(case: Case) -> Answer:
    """The draft records another name for its target than is given.

    Cause: a copy under another name, or another finetune of the same model, whose states differ
    from those the draft was trained on.

    Remedy: make sure that it is the same model.
    """
    stated = _verifier(case).get("name_or_path")
    if not isinstance(stated, str) or not stated:
        return OK
    if case.target is None:
        return NO_TARGET
    if _last(stated) == _last(case.target.name):
        return OK
    return unknown(
        f"it was trained for {stated}, and the target is {case.target.name}",
        "make sure that it is the same model",
        stock="serves",
        plugin="serves",
        recorded=stated,
        given=case.target.name,
    )


def _last(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2].lower()
