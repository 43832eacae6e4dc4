"""self-report: each process of a server tells which patches are in it, and why the others aren't.

Why: children are spawned, so a patch can be in the main process and missing in a scheduler, and
SGLang itself never tells.
Where: `__init__` of the class that each kind of process builds (scheduler, detokenizer, tokenizer
manager, its worker, data-parallel controller; a Ray actor builds a scheduler), and
`Scheduler.get_internal_state`, whose answer is part of `GET /server_info`.
How: by then logging exists. One INFO line after the start, WARNING only for trouble; a JSON file
in the status folder before and after, so that a process that dies in between has told too.
When it can go: never; without it nobody knows whether the others work.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from sglang_eagle3_patch import __version__
from sglang_eagle3_patch.engine import selfreport
from sglang_eagle3_patch.engine.patch import Hook, Patch, Risk
from sglang_eagle3_patch.hooks.parts.launch_facts import facts, when_changed
from sglang_eagle3_patch.hooks.parts.own_trouble import safely
from sglang_eagle3_patch.hooks.parts.this_process import ranks, sglang_version
from sglang_eagle3_patch.settings import Settings

logger = logging.getLogger(__name__)

NAME = "self-report"
ANSWER_KEY = "eagle3_patch"
_safely = partial(safely, f"sglang-eagle3-patch: {NAME}: not reported")


def reporting(role: str) -> Callable[..., Any]:
    """Return the wrapper of an `__init__(server_args, …)` by which a process becomes `role`."""

    def around_init(
        wrapped: Callable[..., Any], _instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        # A subclass of a hooked class is hooked twice: the outer, most derived one tells.
        if _process.get("starting"):
            return wrapped(*args, **kwargs)
        _process.update(role=role, starting=True)
        try:
            _safely(_begin, args, kwargs)
            result = wrapped(*args, **kwargs)
            _safely(_tell)
        finally:
            _process["starting"] = False
        return result

    return around_init


_process: dict[str, Any] = {}


def report(state: str = "ready") -> selfreport.ProcessReport:
    """Return what this process has to tell now."""
    from sglang_eagle3_patch.hooks import PATCHES, registry

    return selfreport.ProcessReport(
        role=_process.get("role") or "process",
        state=state,
        port=_process.get("port"),
        patches=tuple(registry.report(PATCHES)),
        versions={"sglang": sglang_version(), "sglang_eagle3_patch": __version__},
        ranks=ranks(),
        facts=facts.as_data(),
    )


def _begin(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    server_args = kwargs["server_args"] if "server_args" in kwargs else args[0]
    _process["port"] = getattr(server_args, "port", None)
    _write("starting")


def _write(state: str) -> None:
    folder = Settings.from_environment().status_dir
    if folder:
        selfreport.write(Path(folder), report(state))


def _tell() -> None:
    told = report()
    trouble = any(patch.status in selfreport.TROUBLE for patch in told.patches)
    logger.log(
        logging.WARNING if trouble else logging.INFO,
        "sglang-eagle3-patch: %s: %s",
        told.name,
        selfreport.summary(told.patches),
    )
    _write("ready")
    when_changed(lambda: _safely(_write, "ready"))


def after_internal_state(
    wrapped: Callable[..., Any], _scheduler: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Around `Scheduler.get_internal_state(recv_req)`: the answer gets every report there is."""
    result = wrapped(*args, **kwargs)
    _safely(_add_reports, result)
    return result


def _add_reports(result: Any) -> None:
    own = report().as_data()
    folder = Settings.from_environment().status_dir
    others = selfreport.of_one_server(
        selfreport.read_all(Path(folder)) if folder else [], own["port"]
    )
    same = [r for r in others if (r["host"], r["pid"]) != (own["host"], own["pid"])]
    result.internal_state[ANSWER_KEY] = [own, *same]


_ROLES = (
    ("sglang.srt.managers.scheduler", "Scheduler", "scheduler"),
    ("sglang.srt.managers.detokenizer_manager", "DetokenizerManager", "detokenizer"),
    ("sglang.srt.managers.tokenizer_manager", "TokenizerManager", "main"),
    ("sglang.srt.managers.multi_tokenizer_mixin", "TokenizerWorker", "tokenizer worker"),
    ("sglang.srt.managers.multi_tokenizer_mixin", "MultiTokenizerRouter", "main"),
    (
        "sglang.srt.managers.data_parallel_controller",
        "DataParallelController",
        "data-parallel controller",
    ),
)

PATCH = Patch(
    name=NAME,
    title="Tell in each process which patches are in it",
    hooks=(
        *(
            Hook(
                module=module,
                attribute=f"{owner}.__init__",
                parameters=("server_args",),
                wrapper=reporting(role),
            )
            for module, owner, role in _ROLES
        ),
        Hook(
            module="sglang.srt.managers.scheduler",
            attribute="Scheduler.get_internal_state",
            wrapper=after_internal_state,
        ),
    ),
    processes=("main", "scheduler", "detokenizer", "tokenizer worker", "data-parallel controller"),
    applies=">=0.5.9",
    reason="A patch that is missing in one process of many goes unnoticed.",
    upstream="none: it tells of this package",
    remove_when="this package goes",
    risk=Risk.OBSERVABILITY,
    # What it reports of a scheduler that is ready has the block of its start in it.
    after=("startup-watch",),
)
