"""embed-head: embedding, head and vocabulary of a draft are those its checkpoint says.

Why: SGLang overwrites a trained embedding with the target's, and a full head when the config
states no draft vocabulary; with `tie_word_embeddings` it drops the head; without a head of the
target's size it serves a random one; `d2t` is taken as offsets whatever it holds.
Where: `PretrainedConfig.get_config_dict`, for what must be known before the model is built;
`load_weights` of both draft classes, for what came; their `set_embed` and `set_embed_and_head`,
by which a worker hands the target's tensors over.
How: config keys are set by the tensors in the draft's files, where they are local. Of what the
draft brought, what differs in value from the target's is kept. `d2t` is checked before the class
takes it.
When it can go: when upstream decides by the checkpoint and checks `d2t`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from typing import Any

from sglang_eagle3_patch.checkpoint import vocab_map
from sglang_eagle3_patch.checkpoint.config import is_eagle3, is_speculators
from sglang_eagle3_patch.checkpoint.corrected_config import corrected_config
from sglang_eagle3_patch.checkpoint.layouts import canonical_name
from sglang_eagle3_patch.engine.patch import Hook, Patch, Risk
from sglang_eagle3_patch.errors import DraftError
from sglang_eagle3_patch.hooks.parts.expected_tensors import inner_model
from sglang_eagle3_patch.hooks.parts.launch_facts import facts
from sglang_eagle3_patch.hooks.parts.local_draft import read_draft
from sglang_eagle3_patch.hooks.parts.source_probe import raises_over, source_says

logger = logging.getLogger(__name__)

NAME = "embed-head"
_EMBED, _HEAD = "embed_tokens.weight", "lm_head.weight"
# Below the first, two tables differ by the rounding of their dtypes; rows whose mean cosine is
# below the second have nothing to do with one another.
_ROUNDING, _UNRELATED = 0.005, 0.1
# Set on a draft at its first load: which of the two its checkpoint had.
_BROUGHT = "_eagle3_patch_brought"


def get_config_dict(
    wrapped: Callable[..., Any], _class: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Around `get_config_dict(path, …) -> (config, unused keyword arguments)`."""
    result = wrapped(*args, **kwargs)
    config = result[0]
    if not isinstance(config, dict) or is_speculators(config) or not is_eagle3(config):
        return result
    path = str(args[0] if args else kwargs["pretrained_model_name_or_path"])
    spec = read_draft(path, kwargs.get("revision"), NAME)
    corrected = corrected_config(config, spec)
    changed = {
        key: corrected.get(key, "dropped")
        for key in config.keys() | corrected.keys()
        if key not in corrected or key not in config or config[key] != corrected[key]
    }
    if changed:
        logger.info("sglang-eagle3-patch: %s: %s is read with %s", NAME, path, changed)
    return (corrected, *result[1:])


def load_weights(
    wrapped: Callable[..., Any], draft: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Around a draft class's first `load_weights(weights)`; later ones are weight updates."""
    if hasattr(draft, _BROUGHT):
        return wrapped(*args, **kwargs)
    weights, rest = (args[0], args[1:]) if args else (kwargs.pop("weights"), ())
    brought: set[str] = set()

    def with_checked_map() -> Iterator[tuple[str, Any]]:
        maps: dict[str, tuple[str, Any]] = {}
        for name, tensor in weights:
            canonical = canonical_name(name)
            if canonical in ("d2t", "t2d"):
                maps[canonical] = (name, tensor)
                continue
            brought.update({canonical} & {_EMBED, _HEAD})
            yield name, tensor
        if "d2t" in maps:
            name, d2t = maps["d2t"]
            yield name, offsets(draft.config, d2t, maps.get("t2d", ("", None))[1])
        if "t2d" in maps:
            yield maps["t2d"]

    result = wrapped(with_checked_map(), *rest, **kwargs)
    _refuse_tied_to_more(draft.config, brought)
    setattr(draft, _BROUGHT, frozenset(brought))
    return result


def _refuse_tied_to_more(config: Any, brought: Collection[str]) -> None:
    """Refuse logits that would be those of the embedding's first rows, whatever these are of."""
    rows, vocab = getattr(config, "draft_vocab_size", None), config.vocab_size
    if config.tie_word_embeddings and _HEAD not in brought and rows is not None and rows < vocab:
        raise DraftError(
            NAME,
            f"tie_word_embeddings is true and the checkpoint has no {_HEAD}: its {rows} logits "
            f"would be those of the first {rows} of the embedding's {vocab} rows",
            f"restore {_HEAD} from the trainer",
        )


def offsets(config: Any, d2t: Any, t2d: Any) -> Any:
    """Return `d2t` `[draft vocabulary]` as offsets from draft ids to target ids, integers.

    Raises `DraftError` when it maps to no target ids, or when offsets and target ids would both
    do and no `t2d` `[vocabulary]` tells. Target ids are made offsets, with a warning.
    """
    import torch

    vocab, size = config.vocab_size, d2t.shape[0]
    marks = None if t2d is None else t2d.bool().flatten().tolist()
    if marks is not None and (len(marks) != vocab or sum(marks) != size):
        logger.warning(
            "sglang-eagle3-patch: %s: t2d marks %d of %d tokens, but the draft knows %d of %d; d2t "
            "is checked without it",
            NAME,
            sum(marks),
            len(marks),
            size,
            vocab,
        )
        marks = None
    found = vocab_map.check(d2t.tolist(), vocab, None, marks)
    if found.kind == "broken" or (found.kind == "offset" and found.reason):
        shown = f" (the first: {list(found.values)})" if found.values else ""
        raise DraftError(
            NAME,
            f"d2t does not map {size} draft ids to {vocab} target ids: {found.reason}{shown}",
            "take d2t from the trainer anew, as offsets, with its t2d",
        )
    if found.kind == "absolute":
        logger.warning(
            "sglang-eagle3-patch: %s: d2t holds target ids where SGLang wants offsets; they are "
            "made offsets. Fix: subtract 0, 1, 2, … from d2t in the checkpoint.",
            NAME,
        )
        return d2t - torch.arange(size, dtype=d2t.dtype, device=d2t.device)
    return d2t


def set_embed(
    wrapped: Callable[..., Any], draft: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Around `set_embed(embed)`, by which the target's embedding is handed over."""
    embed, *_ = args or kwargs.values()
    kept, whose = choose(draft, _EMBED, inner_model(draft).embed_tokens, embed)
    result = wrapped(kept)
    _tell(draft, whose, "the draft's own")
    return result


def set_embed_and_head(
    wrapped: Callable[..., Any], draft: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Around `set_embed_and_head(embed, head)`, for a draft that states no vocabulary."""
    embed, head = (*args, *kwargs.values())
    kept_embed, whose_embed = choose(draft, _EMBED, inner_model(draft).embed_tokens, embed)
    kept_head, whose_head = choose(draft, _HEAD, draft.lm_head, head)
    result = wrapped(kept_embed, kept_head)
    _tell(draft, whose_embed, whose_head)
    return result


def choose(draft: Any, name: str, module: Any, targets: Any) -> tuple[Any, str]:
    """Return the draft's own weight if its checkpoint had one that is its own, else the target's.

    Both are this rank's part of the tensor. An embedding that has nothing to do with the target's
    was never trained: exporters write tables as they were initialised. The comparison of values
    waits for the device, as loading does.
    """
    own = module.weight
    if name not in getattr(draft, _BROUGHT, ()):
        return targets, "the target's"
    if targets is not None and targets.data_ptr() == own.data_ptr():
        logger.warning(
            "sglang-eagle3-patch: %s: with pipeline parallelism SGLang has loaded the target's %s "
            "over the draft's own. Fix: serve a draft with an embedding of its own without it.",
            NAME,
            name,
        )
        return targets, "the target's"
    if targets is None or own.shape != targets.shape:
        return own, "the draft's own"
    deviation, likeness = compared(own, targets)
    if deviation < _ROUNDING:
        return targets, "the target's, equal to the draft's own"
    trained = getattr(draft.config, "embed_requires_grad", False)
    if name == _EMBED and likeness < _UNRELATED and not trained:
        logger.warning(
            "sglang-eagle3-patch: %s: %s of the draft's checkpoint has nothing to do with the "
            "target's (cosine %.3f), as an untrained one; the target's is used. Fix: if it was "
            "trained, write embed_requires_grad: true into the draft's config.json.",
            NAME,
            name,
            likeness,
        )
        return targets, "the target's, instead of an untrained one"
    return own, "the draft's own"


def compared(own: Any, targets: Any) -> tuple[float, float]:
    """Return how far `own` is from `targets`, relative to its size, and the mean cosine of their
    rows, of a thousand rows of each rank's part of two `[rows, width]` tables.

    Both are of the whole table, or ranks could keep parts of two tables that are close.
    """
    import torch

    step = max(1, own.shape[0] // 1000)
    ours, theirs = own[::step].double(), targets[::step].to(own.device).double()
    cosines = torch.nn.functional.cosine_similarity(ours, theirs, dim=-1)
    sums = [(ours - theirs).square().sum(), theirs.square().sum(), cosines.sum()]
    rows = torch.full_like(sums[0], len(ours))
    distance, size, likeness, rows = _over_ranks(torch.stack([*sums, rows])).tolist()
    return (distance / max(size, 1e-24)) ** 0.5, likeness / rows


def _over_ranks(sums: Any) -> Any:
    """Return the sums over the ranks that hold the table's other parts, or the same one."""
    import torch
    from sglang.srt.distributed import get_tp_group

    group = get_tp_group()
    if group.world_size > 1:
        torch.distributed.all_reduce(sums, group=group.device_group)
    return sums


def _tell(draft: Any, embed: str, head: str) -> None:
    mapped = getattr(draft, "hot_token_id", None)
    facts.embedding, facts.head = embed, head
    logger.info(
        "sglang-eagle3-patch: %s: embedding: %s; head: %s; draft vocabulary: %s of %d tokens",
        NAME,
        embed,
        head,
        draft.config.vocab_size if mapped is None else len(mapped),
        draft.config.vocab_size,
    )


def decides_by_tensors(_config_class: Any) -> bool:
    """Whether SGLang's own reader of configs, which moved, looks at a draft's tensors."""
    readers = ("srt/utils/hf_transformers/config.py", "srt/utils/hf_transformers_utils.py")
    return any(source_says(file, "draft_vocab", "from_checkpoint") for file in readers)


def checks_map(draft_class: Any) -> bool:
    """Whether the class's `load_weights` raises over its `d2t`."""
    return raises_over(draft_class, "load_weights", "d2t", "vocab_size")


def keeps_own(draft_class: Any) -> bool:
    """Whether the class's `set_embed` chooses between what it is handed and what it has."""
    return source_says(
        f"srt/models/{draft_class.__module__.rpartition('.')[2]}.py", "set_embed", "choose"
    )


def _hooks(module: str, draft_class: str) -> tuple[Hook, ...]:
    touched = (
        ("load_weights", ("weights",), load_weights, checks_map),
        ("set_embed", ("embed",), set_embed, keeps_own),
        ("set_embed_and_head", ("embed", "head"), set_embed_and_head, keeps_own),
    )
    return tuple(
        Hook(
            module=module,
            attribute=f"{draft_class}.{method}",
            # The MLA class came with 0.5.12.
            absent_module_ok=module.endswith("kimi_k25_eagle3"),
            parameters=parameters,
            wrapper=wrapper,
            fixed_when=fixed_when,
        )
        for method, parameters, wrapper, fixed_when in touched
    )


PATCH = Patch(
    name=NAME,
    title="Keep a draft's own embedding and head; check its vocabulary map",
    hooks=(
        Hook(
            module="transformers.configuration_utils",
            attribute="PretrainedConfig.get_config_dict",
            parameters=("pretrained_model_name_or_path",),
            wrapper=get_config_dict,
            fixed_when=decides_by_tensors,
        ),
        *_hooks("sglang.srt.models.llama_eagle3", "LlamaForCausalLMEagle3"),
        *_hooks("sglang.srt.models.kimi_k25_eagle3", "Eagle3DeepseekV2ForCausalLM"),
    ),
    processes=("main", "scheduler"),
    applies=">=0.5.9",
    reason="The target's embedding and head overwrite a draft's own; d2t is never checked.",
    upstream="https://github.com/sgl-project/sglang/issues/27908",
    remove_when="upstream keeps what the checkpoint has and checks d2t",
    risk=Risk.NUMERICS,
    # Configs come translated; a changed d2t still goes through the accounting.
    after=("draft-config", "draft-weights"),
)
