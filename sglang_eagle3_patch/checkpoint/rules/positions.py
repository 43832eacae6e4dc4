"""Rules about sliding windows and the longest context."""

from __future__ import annotations

from sglang_eagle3_patch.checkpoint.launch import LONGER_CONTEXT
from sglang_eagle3_patch.checkpoint.rules.answers import NO_TARGET, OK, Answer, rule, unknown, wrong
from sglang_eagle3_patch.checkpoint.rules.case import Case

_WINDOW_FLAG = "--speculative-draft-window-size"


def _served_window(case: Case) -> int | None:
    chosen = case.draft_class
    return case.launch.draft_window if chosen and chosen.draft_window else None


@rule("E3-window-unserved", "error")
def window(case: Case) -> Answer:
    """The draft was trained with a sliding window that it is not served with.

    Cause: `sliding_window` with `layer_types`, speculators' default since 0.7. SGLang ignores both
    and windows drafts only by a launch argument, since 0.5.12, counted without the token itself,
    and all layers of a draft alike. Served, the window goes along with each draft step, on every
    engine, where trainers leave it in place: step k sees k keys fewer of the oldest.

    Remedy: give `--speculative-draft-window-size`, one less than the config says; where
    `layer_types` are mixed, train all layers with one window or none.
    """
    config, chosen = case.plugin_config or {}, case.draft_class
    if chosen is None or not case.is_llama_config:
        return OK
    types = config.get("layer_types")
    count = config.get("num_hidden_layers")
    kinds = types[:count] if isinstance(types, list) else []
    size = config.get("sliding_window")
    if "sliding_attention" not in kinds or type(size) is not int:
        return OK
    if any(kind != "sliding_attention" for kind in kinds):
        return wrong(
            f"its layer_types are {kinds}, and SGLang gives all layers of a draft one window or "
            "none",
            "train all of its layers with one window, or none",
            stock="degraded",
            plugin="refuses",
            layer_types=kinds,
            sliding_window=size,
        )
    if _served_window(case) == size - 1:
        return OK
    argument = (_WINDOW_FLAG, str(size - 1))
    return wrong(
        f"it attends to a sliding window of {size} tokens, and is served with "
        + (f"{case.launch.draft_window} and itself" if _served_window(case) else "all of them"),
        "start with " + " ".join(argument)
        if chosen.draft_window
        else "serve it with 0.5.12 or newer",
        stock="degraded",
        plugin="refuses",
        arguments=argument if chosen.draft_window else (),
        sliding_window=size,
        served=_served_window(case),
    )


@rule("E3-window-layer-types", "error")
def layer_types(case: Case) -> Answer:
    """`layer_types` is not one word for each decoder layer.

    Cause: a list copied from the target. transformers of newer releases raises over it.

    Remedy: give as many as the draft has layers.
    """
    layer = case.draft.layer_config
    types, count = layer.get("layer_types"), layer.get("num_hidden_layers")
    if not isinstance(types, list) or type(count) is not int or len(types) == count:
        return OK
    message = f"layer_types has {len(types)} entries for {count} layers"
    remedy = f"keep the first {count} of them in its config.json"
    # transformers 4 does not look, and 5.6, which 0.5.11 asks for, does. 0.5.10 asks for 5.3,
    # which does not, and runs with newer ones.
    if case.before("0.5.10"):
        return OK
    if case.before("0.5.11") is not False:
        return unknown(message, remedy, types=len(types), layers=count)
    return wrong(message, remedy, stock="refuses", plugin="refuses", types=len(types), layers=count)


@rule("E3-window-untrained", "warning")
def window_untrained(case: Case) -> Answer:
    """The launch windows a draft that was trained without a window.

    Cause: `--speculative-draft-window-size` for a draft whose config states no window: beyond it
    the draft sees less than it was trained to see.

    Remedy: leave the argument out, unless speed on long texts is worth it.
    """
    if _served_window(case) is None or case.draft.flags.window is not None:
        return OK
    return wrong(
        f"{_WINDOW_FLAG} is {case.launch.draft_window}, and the draft was trained without a window",
        f"leave {_WINDOW_FLAG} out",
        stock="degraded",
        plugin="degraded",
        served=case.launch.draft_window,
    )


def _contexts(case: Case) -> tuple[int, int] | None:
    """The longest context that the draft allows and the one that is served, if that is longer."""
    allowed, served = case.draft.max_positions, case.launch.context_length
    if served is None and case.target is not None:
        served = case.target.max_positions
    return (allowed, served) if allowed and served and allowed < served else None


@rule("E3-context-short", "error")
def context(case: Case) -> Answer:
    """The draft's config allows a shorter context than is served.

    Cause: `max_position_embeddings` of the draft below the target's context: SGLang refuses to
    start, unless SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN is set.

    Remedy: give a `--context-length` that the draft allows.
    """
    if case.target is None and case.launch.context_length is None:
        return NO_TARGET
    lengths = _contexts(case)
    if lengths is None or case.launch.longer_context_allowed:
        return OK
    allowed, served = lengths
    return wrong(
        f"max_position_embeddings is {allowed}, and a context of {served} is served",
        f"start with --context-length {allowed}",
        stock="refuses",
        plugin="refuses",
        arguments=("--context-length", str(allowed)),
        allowed=allowed,
        served=served,
    )


@rule("E3-context-untrained", "warning")
def context_untrained(case: Case) -> Answer:
    """A longer context is served than the draft's config allows.

    Cause: SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN is set, which lets the draft run on positions
    that it was not trained on: fewer drafts are accepted there.

    Remedy: give a `--context-length` that the draft allows, if texts are long.
    """
    lengths = _contexts(case)
    if lengths is None or not case.launch.longer_context_allowed:
        return OK
    allowed, served = lengths
    return wrong(
        f"{LONGER_CONTEXT} is set: beyond {allowed} of {served} positions the draft is untrained",
        f"start with --context-length {allowed} if texts are long",
        stock="degraded",
        plugin="degraded",
        allowed=allowed,
        served=served,
    )
