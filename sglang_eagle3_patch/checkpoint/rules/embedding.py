"""Rules about head and embedding: whose they are, and whether they fit."""

from __future__ import annotations

from sglang_eagle3_patch.checkpoint.rules.answers import OK, Answer, mended_by, rule, wrong
from sglang_eagle3_patch.checkpoint.rules.case import Case
from sglang_eagle3_patch.checkpoint.rules.loading import plugin_load, stock_effect_of_shapes


def _head_rows(case: Case) -> int | None:
    head = case.draft.tensors.get("lm_head.weight")
    return head.shape[0] if head and head.shape else None


@rule("E3-vocab-size-unstated", "error")
def size_unstated(case: Case) -> Answer:
    """The config has no `draft_vocab_size`.

    Cause: SGLang's llama draft class reads the key without asking whether it is there.

    Remedy: write the number of the head's rows; the plugin does so in memory.
    """
    chosen, config = case.draft_class, case.stock_config
    if chosen is None or config is None or "draft_vocab_size" in config:
        return OK
    if chosen.draft_vocab_size_optional or config.get("tie_word_embeddings"):
        return OK
    rows = _head_rows(case)
    return wrong(
        "the config lacks draft_vocab_size, which SGLang asks for",
        mended_by(
            case,
            "embed-head",
            f'write "draft_vocab_size": {rows or "null"} into its config.json',
        ),
        stock="refuses",
        plugin="serves" if case.draft.tensors else "unknown",
        rows=rows,
    )


@rule("E3-vocab-head-overwritten", "error")
def head_overwritten(case: Case) -> Answer:
    """The draft brings a head, and the config says that the target's is taken.

    Cause: a null `draft_vocab_size` means the target's head to SGLang, which puts it over the
    draft's own. That is harmless only if the draft's is a copy.

    Remedy: write the number of the head's rows; the plugin keeps a head that differs.
    """
    chosen, config = case.draft_class, case.stock_config
    rows = _head_rows(case)
    if chosen is None or config is None or rows is None or config.get("tie_word_embeddings"):
        return OK
    means_targets = "draft_vocab_size" in config or chosen.draft_vocab_size_optional
    if not means_targets or config.get("draft_vocab_size") is not None:
        return OK
    return wrong(
        f"draft_vocab_size is null, so that the target's head goes over the draft's own of {rows} "
        "rows",
        mended_by(case, "embed-head", f'write "draft_vocab_size": {rows} into its config.json'),
        stock="degraded" if rows == config.get("vocab_size") else "refuses",
        plugin="serves",
        rows=rows,
    )


@rule("E3-vocab-head-missing", "error")
def head_missing(case: Case) -> Answer:
    """The config states a draft vocabulary, and the file has no head.

    Cause: SGLang borrows the target's head only where `draft_vocab_size` is null; else it serves
    a random one. A reduced vocabulary can't borrow at all.

    Remedy: export the draft with its head; write null if it is the target's.
    """
    config, tensors = case.stock_config or case.plugin_config, case.draft.tensors
    if config is None or not tensors or case.draft.has_head or case.draft_class is None:
        return OK
    stated, vocab = config.get("draft_vocab_size"), config.get("vocab_size")
    if stated is None or config.get("tie_word_embeddings"):
        return OK
    whole = stated == vocab
    return wrong(
        f"draft_vocab_size is {stated}, and the file has no lm_head: a random head is served",
        mended_by(case, "embed-head", 'write "draft_vocab_size": null into its config.json')
        if whole
        else "export the draft with its lm_head",
        stock="degraded",
        plugin="serves" if whole else "refuses",
        draft_vocab_size=stated,
    )


@rule("E3-vocab-head-rows", "error")
def head_rows(case: Case) -> Answer:
    """The head has another number of rows than the config states.

    Cause: a `draft_vocab_size` of another draft.

    Remedy: write the number of the head's rows.
    """
    load = plugin_load(case)
    shapes = load.misshapen.get("lm_head.weight") if load else None
    if shapes is None:
        return OK
    has, want = shapes
    if len(has) != 2 or has[1:] != want[1:]:
        remedy = "correct hidden_size in its config.json, or export its lm_head anew"
    else:
        remedy = f'write "draft_vocab_size": {has[0]} into its config.json'
    return wrong(
        f"lm_head is {list(has)}, by the config {list(want)}",
        remedy,
        stock=stock_effect_of_shapes(case, ["lm_head.weight"]),
        plugin="refuses",
        head=list(has),
        wanted=list(want),
    )


@rule("E3-vocab-tied", "error")
def tied(case: Case) -> Answer:
    """The config ties the head to the embedding, and the draft has a head of its own.

    Cause: `tie_word_embeddings`, copied from the target. SGLang drops the head and takes the first
    rows of the target's embedding in its place.

    Remedy: write false; the plugin does so in memory where the file has a head, and refuses a
    reduced vocabulary without one.
    """
    config = case.stock_config or {}
    if not config.get("tie_word_embeddings"):
        return OK
    if not case.draft.has_head:
        draft, vocab = case.vocabularies
        if not case.draft.tensors or draft is None or vocab is None or draft >= vocab:
            return OK
        return wrong(
            f"the head is tied to an embedding of {vocab} rows, for a draft vocabulary of {draft}",
            "restore its lm_head from the trainer",
            stock="degraded",
            plugin="refuses",
        )
    return wrong(
        "tie_word_embeddings is true, so that the draft's own lm_head is dropped",
        mended_by(case, "embed-head", 'write "tie_word_embeddings": false into its config.json'),
        stock="degraded",
        plugin="serves",
    )


@rule("E3-vocab-embedding-rows", "error")
def embedding_rows(case: Case) -> Answer:
    """The embedding has another shape than the config states.

    Cause: a `vocab_size` of another tokenizer, or an embedding of the target's width.

    Remedy: write the embedding's number of rows.
    """
    load = plugin_load(case)
    shapes = load.misshapen.get("embed_tokens.weight") if load else None
    if shapes is None:
        return OK
    has, want = shapes
    if len(has) != 2 or has[1:] != want[1:]:
        remedy = "export the draft without its embedding, or with one of its own width"
    else:
        remedy = f'write "vocab_size": {has[0]} into its config.json'
    return wrong(
        f"embed_tokens is {list(has)}, by the config {list(want)}",
        remedy,
        stock=stock_effect_of_shapes(case, ["embed_tokens.weight"]),
        plugin="refuses",
        embedding=list(has),
        wanted=list(want),
    )


@rule("E3-vocab-embedding-missing", "error")
def embedding_missing(case: Case) -> Answer:
    """The draft is not as wide as the target, and brings no embedding.

    Cause: the target's embedding is shared only where both are of one width; else it stays
    uninitialised.

    Remedy: export the draft with its embedding.
    """
    sizes = case.draft.sizes
    if not case.draft.tensors or case.draft.has_embedding or case.draft_class is None:
        return OK
    if sizes.hidden is None or sizes.hidden == case.draft.target_hidden_size:
        return OK
    return wrong(
        f"the draft is {sizes.hidden} wide, its target {case.draft.target_hidden_size}, and the "
        "file has no embed_tokens",
        "export the draft with its embed_tokens",
        stock="degraded",
        plugin="refuses",
        hidden=sizes.hidden,
        target_hidden=case.draft.target_hidden_size,
    )


@rule("E3-vocab-embedding-overwritten", "error")
def embedding_overwritten(case: Case) -> Answer:
    """The draft's own, trained embedding is overwritten with the target's.

    Cause: SGLang shares the target's embedding wherever the widths agree. A draft that was trained
    with one of its own (`embed_requires_grad`) then sees other vectors.

    Remedy: serve it with the plugin, which keeps an embedding that differs.
    """
    sizes, config = case.draft.sizes, case.draft.config
    if not case.draft.has_embedding or sizes.hidden != case.draft.target_hidden_size:
        return OK
    differs = case.values.embedding_differs if case.values else None
    if not (config.get("embed_requires_grad") or differs):
        return OK
    why = "differs from the target's" if differs else "was trained (embed_requires_grad)"
    return wrong(
        f"the draft's embedding {why} and is overwritten with the target's",
        mended_by(case, "embed-head", "serve it with the plugin"),
        stock="degraded",
        plugin="serves",
        embed_requires_grad=config.get("embed_requires_grad"),
    )
