"""kimi-capture: Kimi-K2.5 can be a target of EAGLE-3 where its class forgot the methods.

Why: at 0.5.9 `KimiK25ForConditionalGeneration` lacks the methods by which aux hidden states are
captured and the embedding is shared; its language model has them. EAGLE3 ends in an
AttributeError, and whoever added only the missing names got one state instead of three.
Where: `__init__` of the class.
How: the language model's methods are lent to the instance.
When it can go: with support for 0.5.9; since 0.5.10 the class has them (the probe notices).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sglang_eagle3_patch.engine.patch import Hook, Patch, Risk
from sglang_eagle3_patch.hooks.parts.language_model import ASKED, lend_methods

NAME = "kimi-capture"


def after_init(
    wrapped: Callable[..., Any], model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """After `KimiK25ForConditionalGeneration.__init__`."""
    result = wrapped(*args, **kwargs)
    lend_methods(model)
    return result


def has_the_methods(model_class: Any) -> bool:
    """Whether the class has every method asked of a target."""
    return all(hasattr(model_class, name) for name in ASKED)


PATCH = Patch(
    name=NAME,
    title="Let Kimi-K2.5 capture aux hidden states where its class can't",
    hooks=(
        Hook(
            module="sglang.srt.models.kimi_k25",
            attribute="KimiK25ForConditionalGeneration.__init__",
            parameters=("config",),
            wrapper=after_init,
            fixed_when=has_the_methods,
        ),
    ),
    processes=("scheduler",),
    applies="==0.5.9",
    reason="KimiK25 lacks the capture and embedding methods that its language model has.",
    upstream="https://github.com/sgl-project/sglang/pull/19689",
    remove_when="0.5.9 is no longer supported",
    risk=Risk.LOAD_TIME,
)
