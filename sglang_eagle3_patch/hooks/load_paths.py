"""load-paths: launch arguments that are meant for the target do not change the draft in silence.

Why: `--quantization` is inherited by the draft, so that one trained in bfloat16 is built with the
target's method; `--json-model-override-args` is written over the draft's config too, which then
describes another model than its tensors are.
Where: `ServerArgs.resolve_once` where arguments are resolved on demand, else
`ServerArgs.__post_init__`; both run in every route (launcher, `sglang serve`, `sgl.Engine`).
`ModelConfig.__init__`, which writes overrides over the config of whichever model it is for.
How: before SGLang resolves its arguments the draft's config and headers are read. A draft that is
not quantised becomes `unquant`, unless its own flag says otherwise. Overrides that change what the
draft is built of are refused, those that change what it computes are kept from it, and told.
When it can go: when upstream keeps the target's arguments from the draft.
"""

from __future__ import annotations

import ast
import inspect
import json
import logging
from collections.abc import Callable, Mapping
from typing import Any

from sglang_eagle3_patch.checkpoint.config import is_eagle3
from sglang_eagle3_patch.checkpoint.config_keys import COMPUTATION, STRUCTURE
from sglang_eagle3_patch.checkpoint.locate import local_folder
from sglang_eagle3_patch.checkpoint.quantisation import (
    FLOATS,
    MAPS,
    QUANTISATION_FILES,
    QUANTISATION_KEYS,
)
from sglang_eagle3_patch.engine.patch import Hook, Patch, Risk
from sglang_eagle3_patch.errors import DraftError
from sglang_eagle3_patch.hooks.parts.local_draft import read_config, read_config_of, read_draft
from sglang_eagle3_patch.hooks.parts.source_probe import method_tree, source_says

logger = logging.getLogger(__name__)

NAME = "load-paths"
# EAGLE and its alias NEXTN may have been meant for an EAGLE-3 draft: eagle3-mode promotes them.
_ALGORITHMS = ("EAGLE3", "EAGLE", "NEXTN")


def before_resolution(
    wrapped: Callable[..., Any], server_args: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Before `ServerArgs` resolves itself."""
    if getattr(server_args, "_resolution_finished", False):
        return wrapped(*args, **kwargs)
    algorithm = str(getattr(server_args, "speculative_algorithm", None) or "").upper()
    if algorithm in _ALGORITHMS and _concerns_the_draft(server_args):
        draft = server_args.speculative_draft_model_path
        config = read_config_of(server_args, NAME)
        if config is not None and is_eagle3(config):
            _keep_unquantised(server_args, draft, config)
            check_overrides(_overrides(server_args), config, draft)
    return wrapped(*args, **kwargs)


def _concerns_the_draft(server_args: Any) -> bool:
    return bool(server_args.speculative_draft_model_path) and bool(
        _inherits(server_args) or _overrides(server_args)
    )


def _inherits(server_args: Any) -> bool:
    own = server_args.speculative_draft_model_quantization
    return own is None and server_args.quantization not in (None, "unquant")


def _overrides(server_args: Any) -> Mapping[str, Any]:
    return _read(server_args.json_model_override_args)


def _read(argument: str | None) -> Mapping[str, Any]:
    try:
        overrides = json.loads(argument or "{}")
    except (TypeError, ValueError):
        return {}  # SGLang reads it next, and its error is the user's
    return overrides if isinstance(overrides, dict) else {}


def _keep_unquantised(server_args: Any, draft: str, config: Mapping[str, Any]) -> None:
    revision = server_args.speculative_draft_model_revision
    if not _inherits(server_args) or is_quantised(draft, revision, config):
        return
    logger.warning(
        "sglang-eagle3-patch: %s: %s is not quantised and would be built with the target's "
        "--quantization %s; it is served as it is. Fix: say so with "
        "--speculative-draft-model-quantization unquant, or name the method to quantise it.",
        NAME,
        draft,
        server_args.quantization,
    )
    server_args.speculative_draft_model_quantization = "unquant"


def is_quantised(draft: str, revision: str | None, config: Mapping[str, Any]) -> bool:
    """Return whether a draft checkpoint is quantised, by its config, the files beside it and the
    dtypes of its tensors; what isn't local says nothing."""
    if any(config.get(key) for key in QUANTISATION_KEYS):
        return True
    folder = local_folder(draft, revision)
    if folder is not None and any((folder / name).is_file() for name in QUANTISATION_FILES):
        return True
    spec = read_draft(draft, revision, NAME)
    tensors = {} if spec is None else spec.tensors
    return any(header.dtype not in FLOATS for name, header in tensors.items() if name not in MAPS)


def check_overrides(overrides: Mapping[str, Any], config: Mapping[str, Any], draft: str) -> None:
    """Refuse overrides of a draft's structure, and tell those that are kept from it.

    Raises `DraftError` naming the keys with both values.
    """
    structure = _changed(overrides, config, STRUCTURE)
    if structure:
        told = ", ".join(
            f"{key} {json.dumps(overrides[key])} over {json.dumps(config.get(key))}"
            for key in structure
        )
        raise DraftError(
            NAME,
            f"--json-model-override-args is written over the config of {draft} too, whose tensors "
            f"are of another structure: {told}",
            "put what is meant for the target into the target's config.json",
        )
    computation = _changed(overrides, config, COMPUTATION)
    if computation:
        logger.warning(
            "sglang-eagle3-patch: %s: --json-model-override-args would be written over the config "
            "of %s too and change what it computes: %s; the draft keeps its own. Fix: put what is "
            "meant for the target into the target's config.json, and what is meant for the draft "
            "into the draft's.",
            NAME,
            draft,
            ", ".join(computation),
        )


def _changed(
    overrides: Mapping[str, Any], config: Mapping[str, Any], keys: frozenset[str]
) -> list[str]:
    return sorted(key for key in overrides.keys() & keys if config.get(key) != overrides[key])


def draft_config_init(
    wrapped: Callable[..., Any], _config: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Around `ModelConfig.__init__(model_path, …, model_override_args="{}", is_draft_model=…)`,
    whose overrides are a JSON object."""
    given = inspect.signature(wrapped).bind(*args, **kwargs).arguments
    overrides = _read(given.get("model_override_args")) if given.get("is_draft_model") else {}
    if not COMPUTATION.isdisjoint(overrides):
        config = read_config(given["model_path"], given.get("revision"), NAME)
        if config is not None and is_eagle3(config):
            kept = {key: value for key, value in overrides.items() if key not in COMPUTATION}
            given["model_override_args"] = json.dumps(kept)
            return wrapped(**given)
    return wrapped(*args, **kwargs)


def keeps_target_arguments_from_draft(_owner: Any) -> bool:
    """Whether the resolution of arguments, which moved, asks what the draft may inherit."""
    resolutions = ("srt/arg_groups/serving_hook.py", "srt/server_args.py")
    return any(
        source_says(file, "speculative_draft_model_quantization", "inherited_quantization")
        for file in resolutions
    )


def keeps_overrides_from_draft(config_class: Any) -> bool:
    """Whether SGLang does, or reads overrides that are the draft's own."""
    own = any(
        isinstance(node, ast.Attribute) and "draft" in node.attr and "override" in node.attr
        for node in ast.walk(method_tree(config_class, "from_server_args"))
    )
    return own or keeps_target_arguments_from_draft(config_class)


PATCH = Patch(
    name=NAME,
    title="Keep the target's quantisation and overrides from the draft",
    hooks=(
        Hook(
            module="sglang.srt.server_args",
            attribute="ServerArgs.resolve_once",
            wrapper=before_resolution,
            fixed_when=keeps_target_arguments_from_draft,
            optional=True,
            slot="resolution",
        ),
        Hook(
            module="sglang.srt.server_args",
            attribute="ServerArgs.__post_init__",
            wrapper=before_resolution,
            fixed_when=keeps_target_arguments_from_draft,
            slot="resolution",
        ),
        Hook(
            module="sglang.srt.configs.model_config",
            attribute="ModelConfig.__init__",
            parameters=("model_path", "revision", "model_override_args", "is_draft_model"),
            wrapper=draft_config_init,
            fixed_when=keeps_overrides_from_draft,
        ),
    ),
    processes=("main", "scheduler"),
    applies=">=0.5.9",
    reason="The draft inherits --quantization and --json-model-override-args from the target.",
    upstream="none: no issue asks for separate overrides",
    remove_when="the draft's quantisation and config are its own",
    risk=Risk.LOAD_TIME,
)
