"""Hands our variables on to the Ray actors that SGLang runs its schedulers in.

A scheduler that SGLang spawns inherits its variables. A Ray actor is a child of its Ray node
instead, and has what was set where that node was started, maybe before and elsewhere: without
this, the server would be patched and its schedulers would not. Whichever patches are selected,
the actors must know.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import wrapt

from sglang_eagle3_patch.settings import PREFIX, Settings

logger = logging.getLogger(__name__)

MODULE = "sglang.srt.ray.scheduler_actor"

_arranged = False


def hand_variables_on() -> None:
    """Arrange for every actor to be started with those variables of ours that are set by then.

    Idempotent, and never undone: as with children that are spawned, the variables decide.
    """
    global _arranged
    if not _arranged:
        _arranged = True
        wrapt.register_post_import_hook(_wrap_options, MODULE)


def _wrap_options(module: ModuleType) -> None:
    try:
        wrapt.wrap_function_wrapper(module, "SchedulerActor.options", around_options)
    except AttributeError as error:
        text = (
            f"sglang-eagle3-patch: Ray actors don't get our variables: {MODULE}: {error}. "
            f"Fix: set {PREFIX} where each Ray node is started."
        )
        if Settings.from_environment().strict:
            sys.stderr.write(f"{text}\n")
            raise SystemExit(1) from error
        logger.error("%s", text)


def around_options(
    wrapped: Callable[..., Any], _actor: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Around `SchedulerActor.options(runtime_env=…, …)`: what the caller sets himself stays.

    Ray adds these to the variables of the job's own `runtime_env`, whose other fields stand.
    """
    ours = {name: value for name, value in os.environ.items() if name.startswith(PREFIX)}
    if not ours:
        return wrapped(*args, **kwargs)
    asked = kwargs.get("runtime_env") or {}
    runtime_env = {**asked, "env_vars": {**ours, **asked.get("env_vars", {})}}
    return wrapped(*args, **{**kwargs, "runtime_env": runtime_env})
