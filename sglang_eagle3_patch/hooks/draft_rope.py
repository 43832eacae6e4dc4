"""draft-rope: a draft rotates as it was trained to, whatever its config makes SGLang read.

Why: some trainers save a `rope_theta` that they ignored, and ModelOpt's export writes a yarn that
nothing was trained with: each loads, and fewer drafts are accepted. transformers 4 (SGLang 0.5.9)
does not read what version 5 writes, and SGLang finds `partial_rotary_factor` at the top alone.
Where: `PretrainedConfig.get_config_dict`, through which transformers and SGLang read every
`config.json`.
How: of an EAGLE-3 draft's config the rope becomes the one that it was trained with, as its producer
tells, in the form of both versions of transformers; everything else passes untouched. What isn't
certain stays as stated, with a warning; two values of theta are refused, and dynamic rope, which
SGLang and transformers compute differently.
When it can go: never by SGLang's doing; when no such draft is served any more.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from sglang_eagle3_patch.checkpoint.config import is_eagle3, is_speculators
from sglang_eagle3_patch.checkpoint.rope import DEFAULT_THETA, is_by_layer, stated_rope
from sglang_eagle3_patch.checkpoint.spec import DraftSpec
from sglang_eagle3_patch.checkpoint.trained_rope import (
    THETA_OPTION,
    ToldRope,
    TrainedRope,
    in_both_schemas,
    shown,
)
from sglang_eagle3_patch.engine.patch import Hook, Patch, Risk
from sglang_eagle3_patch.errors import DraftError
from sglang_eagle3_patch.hooks.parts.local_draft import read_draft, with_hub_headers
from sglang_eagle3_patch.settings import PREFIX, Settings

logger = logging.getLogger(__name__)

NAME = "draft-rope"


def get_config_dict(
    wrapped: Callable[..., Any], _class: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Around `get_config_dict(path, …) -> (config, unused keyword arguments)`."""
    result = wrapped(*args, **kwargs)
    config = result[0]
    if not (isinstance(config, dict) and is_eagle3(config)):
        return result
    path = str(args[0] if args else kwargs["pretrained_model_name_or_path"])
    trained = trained_rope(config, path, kwargs.get("revision"))
    if not is_speculators(config):
        return (with_trained_rope(config, trained), *result[1:])
    layer = config["transformer_layer_config"]
    if not isinstance(layer, Mapping):
        return result  # draft-config reads it next, and says so
    layer = with_trained_rope(layer, trained)
    return ({**config, "transformer_layer_config": layer}, *result[1:])


def trained_rope(written: Mapping[str, Any], draft: str, revision: str | None) -> TrainedRope:
    """Return the rope that the draft with this config, as `written`, was trained with.

    What isn't certain is told once a process, and so is what the config states otherwise.
    Raises `DraftError` for a config that states two thetas, and for dynamic rope.
    """
    told = ToldRope.of(Settings.from_environment())
    spec = DraftSpec(Path(draft), written, {}, told_rope=told)
    if spec.trained_rope.trainer_matters:
        # Who its trainer is, its tensors' names tell.
        found = read_draft(draft, revision, NAME)
        if found is not None:
            found = with_hub_headers(found, draft, revision)
            spec = replace(found, config=written, told_rope=told)
    trained = spec.trained_rope
    _refuse(trained, draft)
    _tell(trained, draft)
    return trained


def _refuse(trained: TrainedRope, draft: str) -> None:
    if trained.conflict is not None:
        top, nested = map(shown, trained.conflict)
        raise DraftError(
            NAME,
            f"the config of the draft {draft} states two values of theta, {top} as rope_theta and "
            f"{nested} in rope_parameters or rope_scaling, and which of them was trained with "
            "depends on the trainer's transformers",
            f"name the one it was trained with: {THETA_OPTION}{top} or {THETA_OPTION}{nested}",
        )
    if trained.rope.kind == "dynamic":
        raise DraftError(
            NAME,
            f"the rope of the draft {draft} is dynamic: SGLang scales it in every context, and "
            "trainers in those beyond max_position_embeddings alone",
            "leave the scaling out of its config.json: up to that length it is plain rope",
        )


def _tell(trained: TrainedRope, draft: str) -> None:
    if trained.otherwise is not None:
        _warn_once(
            f"rope_theta of {draft} is {shown(trained.theta)}, which it is served with; "
            f"{trained.source}. Fix: if this one was, set {THETA_OPTION}{shown(trained.otherwise)}",
        )
    elif not trained.is_stated:
        stated = DEFAULT_THETA if trained.stated is None else trained.stated
        _warn_once(
            f"rope_theta of {draft} is {shown(stated)}, and it is served with "
            f"{shown(trained.theta)}: {trained.source}. Fix: if it was trained with another, name "
            f"that: {THETA_OPTION}{shown(stated)}",
        )
    if trained.perhaps_unscaled:
        _warn_once(
            f"{draft} is served with the yarn of factor 32 that its config states; ModelOpt's "
            "export writes such a one over the plain rope that it trained with. Fix: if this one "
            "was trained with plain rope, leave the yarn out of its config.json"
        )
    if trained.unscaled:
        _warn_once(
            f"{draft} was trained with plain rope, and ModelOpt's export wrote a yarn of factor 32 "
            "into its config, for contexts beyond the trained ones: it is served with plain rope. "
            f"Fix: to have the yarn, set {PREFIX}_OPTIONS=rope_scaling=stated",
        )


def with_trained_rope(config: Mapping[str, Any], trained: TrainedRope) -> dict[str, Any]:
    """Return a draft's config whose rope is the trained one to either version of transformers.

    Version 4 reads `rope_theta` and `rope_scaling`, and files that 5 wrote have neither.
    """
    if is_by_layer(config) or _is_read_as(config, trained):
        return dict(config)
    rope = in_both_schemas(config, trained)
    if config.get("rope_scaling") and "rope_scaling" not in rope:
        rope["rope_scaling"] = None
    return {**config, **rope}


def _is_read_as(config: Mapping[str, Any], trained: TrainedRope) -> bool:
    """Whether the config, which lacks the form of transformers 5, is read as trained by both."""
    if config.get("rope_parameters") or trained.unscaled:
        return False
    thetas = {stated_rope(config, old=old).theta or DEFAULT_THETA for old in (False, True)}
    partial = trained.rope.partial
    return thetas == {trained.theta} and partial in (None, config.get("partial_rotary_factor"))


@cache
def _warn_once(text: str) -> None:
    """Warn of a draft whose config is read several times."""
    logger.warning("sglang-eagle3-patch: %s: %s.", NAME, text)


PATCH = Patch(
    name=NAME,
    title="Rotate a draft as it was trained to",
    hooks=(
        Hook(
            module="transformers.configuration_utils",
            attribute="PretrainedConfig.get_config_dict",
            parameters=("pretrained_model_name_or_path",),
            wrapper=get_config_dict,
        ),
    ),
    processes=("main", "scheduler"),
    applies=">=0.5.9",
    reason="Configs state another rope than the draft was trained with, or in an unread form.",
    upstream="none: the config's word is all that SGLang has",
    remove_when="no draft is served whose trainer wrote another rope than it trained with",
    risk=Risk.NUMERICS,
)
