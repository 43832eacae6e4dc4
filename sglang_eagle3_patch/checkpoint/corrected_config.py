"""The keys of a draft's config that its tensors decide."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sglang_eagle3_patch.checkpoint.spec import DraftSpec


def corrected_config(config: Mapping[str, Any], spec: DraftSpec | None) -> dict[str, Any]:
    """Return a draft's config in SGLang's form with the keys that its tensors decide.

    Without headers (a hub draft not downloaded yet, pickled weights) nothing is decided but that
    a null `target_hidden_size` says nothing.
    """
    corrected = dict(config)
    if corrected.get("target_hidden_size", "") is None:
        del corrected["target_hidden_size"]
    if spec is None or not spec.tensors:
        return corrected
    head, vocab = spec.tensors.get("lm_head.weight"), config.get("vocab_size")
    stated = config.get("draft_vocab_size")
    if head is not None:
        if config.get("tie_word_embeddings"):
            corrected["tie_word_embeddings"] = False
        if stated is None and head.shape:
            corrected["draft_vocab_size"] = head.shape[0]
    elif stated is None and spec.has_d2t:
        # A map without its head: draft-weights tells that the head is missing.
        corrected["draft_vocab_size"] = spec.tensors["d2t"].shape[0]
    elif stated in (None, vocab) and not config.get("tie_word_embeddings"):
        corrected["draft_vocab_size"] = None  # in SGLang's words: the target's head
    return corrected
