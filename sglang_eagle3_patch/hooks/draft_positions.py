"""draft-positions: a draft step stands at its own position, not one ahead.

Why: up to 0.5.11 the workers add 1 to the positions before each draft forward, the first included,
which continues at the position after the last one of the draft's prefill already. Every drafted
token is so rotated one further than in training; lossless, but fewer drafts are accepted.
Where: `draft_forward` of both workers.
How: the positions are taken one back before the steps begin. In a captured graph that is one more
kernel on the graph's own buffer, which is filled anew before each replay.
When it can go: with support for 0.5.11; since 0.5.12 the addition comes after (the probe notices).
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from sglang_eagle3_patch.engine.patch import Hook, Patch, Risk
from sglang_eagle3_patch.hooks.parts.source_probe import method_tree

NAME = "draft-positions"


def draft_forward(
    wrapped: Callable[..., Any], worker: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Around `draft_forward(forward_batch)`."""
    if worker.speculative_algorithm.is_eagle3():
        batch = kwargs["forward_batch"] if "forward_batch" in kwargs else args[0]
        batch.positions.sub_(1)
    return wrapped(*args, **kwargs)


def advances_after_the_forward(worker_class: Any) -> bool:
    """Whether `draft_forward` does not add to the positions before it runs the draft."""
    calls = [
        (node.lineno, node.func.attr, ast.unparse(node.func.value))
        for node in ast.walk(method_tree(worker_class, "draft_forward"))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    ]
    added = [line for line, name, on in calls if name == "add_" and on.endswith("positions")]
    run = [line for line, name, on in calls if name == "forward" and "runner" in on]
    return not added or not run or min(added) > min(run)


PATCH = Patch(
    name=NAME,
    title="Draft at the positions that follow the prefix",
    hooks=tuple(
        Hook(
            module=f"sglang.srt.speculative.{module}",
            attribute=f"{worker}.draft_forward",
            parameters=("forward_batch",),
            wrapper=draft_forward,
            absent_module_ok=absent_module_ok,
            fixed_when=advances_after_the_forward,
        )
        for module, worker, absent_module_ok in (
            ("eagle_worker", "EAGLEWorker", True),
            ("eagle_worker_v2", "EagleDraftWorker", False),
        )
    ),
    processes=("scheduler",),
    applies=">=0.5.9,<0.5.12",
    reason="Draft steps are rotated by one position too many.",
    upstream="none: upstream mended it at 0.5.12",
    remove_when="0.5.11 is no longer supported",
    risk=Risk.NUMERICS,
)
