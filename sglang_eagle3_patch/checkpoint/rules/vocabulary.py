"""Rules about the vocabularies of draft and target, and the map between them."""

from __future__ import annotations

from sglang_eagle3_patch.checkpoint import vocab_map
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

_INTEGERS = ("I64", "I32", "I16", "I8", "U8")
# Floats that hold every token id exactly; SGLang looks ids up in them and rounds nothing.
_EXACT_FLOATS = ("F32", "F64")


@rule("E3-vocab-larger", "error")
def larger(case: Case) -> Answer:
    """The draft knows more tokens than the config says that there are.

    Cause: sizes of two tokenizers, or `vocab_size` and `draft_vocab_size` the wrong way round.
    SGLang builds such a head, and its last rows stand for no token of the target.

    Remedy: write the target's size as `vocab_size`, the number of the head's rows as
    `draft_vocab_size`.
    """
    draft, vocab = case.vocabularies
    if draft is None or vocab is None or draft <= vocab or case.draft_class is None:
        return OK
    return wrong(
        f"draft_vocab_size is {draft}, more than the {vocab} tokens of vocab_size",
        "correct vocab_size and draft_vocab_size in its config.json",
        stock="degraded",
        plugin="refuses" if case.draft.has_d2t else "degraded",
        draft_vocab_size=draft,
        vocab_size=vocab,
    )


@rule("E3-vocab-map-missing", "error")
def map_missing(case: Case) -> Answer:
    """The draft has a reduced vocabulary, and no `d2t` that maps it.

    Cause: ModelOpt's Megatron export never writes it, other exporters lose it. SGLang then takes
    draft ids for target ids.

    Remedy: take `d2t` from the trainer.
    """
    draft, vocab = case.vocabularies
    if not case.draft.tensors or case.draft.has_d2t or draft is None or vocab is None:
        return OK
    if draft >= vocab or case.draft_class is None:
        return OK
    return wrong(
        f"the draft knows {draft} of {vocab} tokens, and no d2t says which",
        "take d2t from the trainer and add it to the checkpoint",
        stock="degraded",
        plugin="refuses",
        draft_vocab_size=draft,
        vocab_size=vocab,
    )


@rule("E3-vocab-map-shape", "error")
def map_shape(case: Case) -> Answer:
    """`d2t` is not one integer for each token of the draft.

    Cause: a map of another draft, or one that was saved as floats. Stock SGLang computes with
    floats as they are, which is right only while they are exact.

    Remedy: take `d2t` from the trainer anew.
    """
    header, (draft, _) = case.draft.tensors.get("d2t"), case.vocabularies
    if header is None or draft is None:
        return OK
    if header.shape == (draft,) and header.dtype in _INTEGERS:
        return OK
    exact = header.shape == (draft,) and header.dtype in _EXACT_FLOATS
    return wrong(
        f"d2t is {header.dtype} {list(header.shape)}, and the draft knows {draft} tokens",
        "take d2t from the trainer anew, as integers",
        stock="serves" if exact else "degraded",
        plugin="refuses",
        dtype=header.dtype,
        shape=list(header.shape),
        draft_vocab_size=draft,
    )


def _checked_map(case: Case) -> vocab_map.VocabMap | None:
    """What the values of `d2t` are, by the plugin's own check; None where they aren't at hand."""
    if case.values is None or case.values.d2t is None:
        return None
    header, (_, vocab) = case.draft.tensors.get("d2t"), case.vocabularies
    if vocab is None or header is None or header.dtype not in _INTEGERS:
        return None
    d2t, marks = case.values.d2t, case.values.t2d
    if marks is not None and (len(marks) != vocab or sum(marks) != len(d2t)):
        marks = None  # the two don't go together: d2t is checked by itself
    return vocab_map.check(d2t, vocab, None, marks)


@rule("E3-vocab-map-absolute", "error")
def map_absolute(case: Case) -> Answer:
    """`d2t` holds target ids where offsets are wanted.

    Cause: every engine adds the draft id to what `d2t` holds. A table of target ids loads as well
    and maps to nonsense.

    Remedy: subtract 0, 1, 2, … from it; the plugin does so while loading.
    """
    found = _checked_map(case)
    if found is None or found.kind != "absolute":
        return OK
    return wrong(
        "d2t holds target ids and not offsets: draft ids are added to them once more",
        mended_by(case, "embed-head", "subtract 0, 1, 2, … from d2t: sglang-eagle3 convert"),
        stock="degraded",
        plugin="serves",
    )


@rule("E3-vocab-map-values", "error")
def map_values(case: Case) -> Answer:
    """`d2t` does not map the draft's tokens to tokens of the target.

    Cause: a table never filled in, one of another vocabulary, or one that `t2d` contradicts.

    Remedy: take `d2t` from the trainer anew, with its `t2d`.
    """
    found = _checked_map(case)
    remedy = "take d2t from the trainer anew, as offsets, with its t2d"
    if found is None:
        return OK
    if found.kind == "broken":
        return wrong(
            f"d2t does not map draft ids to target ids: {found.reason}",
            remedy,
            stock="degraded",
            plugin="refuses",
            first=list(found.values),
        )
    if found.kind == "offset" and found.reason:
        return unknown(f"d2t: {found.reason}", remedy, stock="unknown", plugin="refuses")
    return OK


@rule("E3-vocab-marks", "warning")
def marks(case: Case) -> Answer:
    """`t2d` is for another vocabulary than the config's.

    Cause: no engine reads `t2d`, but its length tells which tokenizer the draft was trained with.

    Remedy: make sure that draft and target share a tokenizer.
    """
    header, vocab = case.draft.tensors.get("t2d"), case.draft.stated_sizes.vocab
    if header is None or vocab is None or header.shape == (vocab,):
        return OK
    return wrong(
        f"t2d marks {list(header.shape)} tokens, and vocab_size is {vocab}",
        "make sure that draft and target share a tokenizer",
        stock="serves",
        plugin="serves",
        t2d=list(header.shape),
        vocab_size=vocab,
    )


@rule("E3-vocab-target", "warning")
def target_vocabulary(case: Case) -> Answer:
    """Draft and target have vocabularies of different sizes.

    Cause: another tokenizer, or one table padded and the other not. Tokens beyond the smaller one
    are out of bounds.

    Remedy: make sure that both share a tokenizer.
    """
    if case.target is None:
        return NO_TARGET
    draft, target = case.draft.stated_sizes.vocab, case.target.vocab_size
    if draft is None or target is None or draft == target:
        return OK
    return unknown(
        f"vocab_size is {draft} in the draft and {target} in the target",
        "make sure that draft and target share a tokenizer",
        draft=draft,
        target=target,
    )
