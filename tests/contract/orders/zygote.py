"""Children of one warm process: each has SGLang's real modules, none has anybody's hooks.

Importing SGLang takes ten seconds, forking a process that has done so a few hundredths. The
fork server of the standard library is that process; what a child does to a class dies with it.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from sglang_eagle3_patch.hooks import PATCHES
from sglang_eagle3_patch.settings import PREFIX

_SECONDS = 120  # the first child waits for SGLang to be imported


@dataclass(frozen=True)
class Outcome:
    """What became of a child: `result` is what the function returned, None where it did not."""

    exit_status: int | None
    result: Any
    stderr: str


def in_child(function: Callable[..., Any], *args: Any, **variables: str) -> Outcome:
    """Run `function(*args)` in a fresh child, with just these variables of ours set there.

    The function, its arguments and its result must be picklable.
    """
    receiver, sender = _context().Pipe(duplex=False)
    with tempfile.NamedTemporaryFile() as stderr:
        arguments = (sender, stderr.name, variables, function, args)
        child = _context().Process(target=_run, args=arguments, daemon=True)
        child.start()
        sender.close()
        try:
            result = receiver.recv() if receiver.poll(_SECONDS) else None
        except EOFError:
            result = None
        child.join(_SECONDS)
        if child.is_alive():
            child.kill()
            child.join()
        return Outcome(child.exitcode, result, Path(stderr.name).read_text(errors="replace"))


def result_of(function: Callable[..., Any], *args: Any, **variables: str) -> Any:
    """The same for a function that must succeed: return its result."""
    outcome = in_child(function, *args, **variables)
    assert outcome.exit_status == 0, outcome.stderr[-3000:]
    return outcome.result


@functools.cache
def _context() -> Any:
    context = multiprocessing.get_context("forkserver")
    # pytest may be the main module, which each child imports too. A module that this release
    # lacks is passed over.
    touched = dict.fromkeys(hook.module for patch in PATCHES for hook in patch.hooks)
    context.set_forkserver_preload(["pytest", *touched])
    return context


def _run(
    sender: Connection,
    stderr: str,
    variables: dict[str, str],
    function: Callable[..., Any],
    args: tuple[Any, ...],
) -> None:
    os.dup2(os.open(stderr, os.O_WRONLY | os.O_APPEND), 2)
    for name in [name for name in os.environ if name.startswith(PREFIX)]:
        del os.environ[name]
    os.environ.update(variables)
    sender.send(function(*args))
