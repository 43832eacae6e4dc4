"""eagle3-mode: an EAGLE-3 draft started with `--speculative-algorithm EAGLE` runs as EAGLE3.

Why: SGLang takes it, captures no aux hidden states, skips `fc`, puts the target's head over the
draft's own, and the accept length is about 1.
Where: `ServerArgs.resolve_once` where arguments are resolved on demand, else
`ServerArgs.__post_init__`; both run in every route (launcher, `sglang serve`, `sgl.Engine`).
How: before SGLang resolves its arguments the draft's config is read; if it is an EAGLE-3 draft's,
the algorithm becomes EAGLE3, with a warning.
When it can go: when upstream promotes or refuses the combination.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from sglang_eagle3_patch.checkpoint.config import is_eagle3
from sglang_eagle3_patch.engine.patch import Hook, Patch, Risk
from sglang_eagle3_patch.errors import DraftError
from sglang_eagle3_patch.hooks.parts.local_draft import read_config_of
from sglang_eagle3_patch.hooks.parts.source_probe import source_chooses

logger = logging.getLogger(__name__)

NAME = "eagle3-mode"
# NEXTN is SGLang's own alias of EAGLE.
_EAGLE = ("EAGLE", "NEXTN")


def before_resolution(
    wrapped: Callable[..., Any], server_args: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Before `ServerArgs` resolves itself."""
    if getattr(server_args, "_resolution_finished", False):
        return wrapped(*args, **kwargs)
    algorithm = str(getattr(server_args, "speculative_algorithm", None) or "").upper()
    draft = getattr(server_args, "speculative_draft_model_path", None)
    if algorithm in _EAGLE and draft and _is_eagle3_draft(server_args):
        logger.warning(
            "sglang-eagle3-patch: %s: %s is an EAGLE-3 draft; --speculative-algorithm %s is "
            "taken for EAGLE3. Fix: start with --speculative-algorithm EAGLE3.",
            NAME,
            draft,
            algorithm,
        )
        server_args.speculative_algorithm = "EAGLE3"
    return wrapped(*args, **kwargs)


def _is_eagle3_draft(server_args: Any) -> bool:
    try:
        config = read_config_of(server_args, NAME)
    except DraftError:
        return False  # whoever reads it next is refused in the same words
    return config is not None and is_eagle3(config)


def promotes(_server_args_class: Any) -> bool:
    """Whether the resolution of arguments, which moved, makes an algorithm EAGLE3 by itself."""
    resolutions = ("srt/arg_groups/speculative_hook.py", "srt/server_args.py")
    return any(source_chooses(file, "EAGLE3") for file in resolutions)


PATCH = Patch(
    name=NAME,
    title="Run an EAGLE-3 draft as EAGLE3 when EAGLE was asked for",
    hooks=(
        Hook(
            module="sglang.srt.server_args",
            attribute="ServerArgs.resolve_once",
            wrapper=before_resolution,
            fixed_when=promotes,
            optional=True,
            slot="resolution",
        ),
        Hook(
            module="sglang.srt.server_args",
            attribute="ServerArgs.__post_init__",
            wrapper=before_resolution,
            fixed_when=promotes,
            slot="resolution",
        ),
    ),
    processes=("main",),
    applies=">=0.5.9",
    reason="EAGLE with an EAGLE-3 draft skips capture and fc in silence.",
    upstream="https://github.com/sgl-project/sglang/pull/21272",
    remove_when="EAGLE with an EAGLE-3 draft is promoted or refused",
    risk=Risk.NUMERICS,
)
