"""wrapper-capture: any wrapper around a capable language model can be a target of EAGLE-3.

Why: some multimodal classes lack the methods by which aux hidden states are captured and the
embedding is shared, though their language model has them; start-up ends in an AttributeError.
Where: `ModelRunner.load_model`, for a target of EAGLE-3.
How: the language model's methods are lent to the loaded model. A model that has them is not
touched.
When it can go: when upstream asks the language model by itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from sglang_eagle3_patch.engine.patch import Hook, Patch, Risk
from sglang_eagle3_patch.hooks.parts.language_model import lend_methods

logger = logging.getLogger(__name__)

NAME = "wrapper-capture"


def after_load(
    wrapped: Callable[..., Any], runner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """After `ModelRunner.load_model`."""
    result = wrapped(*args, **kwargs)
    if not runner.is_draft_worker and runner.spec_algorithm.is_eagle3():
        lent = lend_methods(runner.model)
        if lent:
            logger.info(
                "sglang-eagle3-patch: %s: %s takes %s from its language model",
                NAME,
                type(runner.model).__name__,
                ", ".join(lent),
            )
    return result


PATCH = Patch(
    name=NAME,
    title="Let wrappers around a capable language model capture aux hidden states",
    hooks=(
        Hook(
            module="sglang.srt.model_executor.model_runner",
            attribute="ModelRunner.load_model",
            wrapper=after_load,
        ),
    ),
    processes=("scheduler",),
    applies=">=0.5.9",
    reason="Multimodal classes forget methods that their language model has.",
    upstream="none: a class at a time upstream",
    remove_when="upstream asks a wrapper's language model by itself",
    risk=Risk.LOAD_TIME,
)
