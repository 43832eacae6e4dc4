"""What tests ask of a touch point: its class, the attribute as it is stored there, who is called.

The hooks are those of `PATCHES`, with everything they declare; only their bodies give way to notes
of having been called, since a body wants a model, a batch or a scheduler.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import sglang_eagle3_patch
from sglang_eagle3_patch import hooks
from sglang_eagle3_patch.engine.patch import Hook, HookReport, Patch, Status

calls: list[str] = []


def touched_modules() -> list[str]:
    """The modules touched, those that this release lacks left out."""
    names = dict.fromkeys(hook.module for patch in hooks.PATCHES for hook in patch.hooks)
    return [name for name in names if name in sys.modules]


def owner_of(hook: Hook) -> Any:
    """The class a hook touches, or None where this release has no such class or module."""
    owner = sys.modules.get(hook.module)
    for part in hook.attribute.split(".")[:-1]:
        owner = getattr(owner, part, None)
    return owner


def name_of(hook: Hook) -> str:
    return hook.attribute.rpartition(".")[2]


def stored(hook: Hook) -> Any:
    """The attribute as it is stored: no binding, and no `classmethod` resolved."""
    return inspect.getattr_static(owner_of(hook), name_of(hook), None)


def declared() -> list[tuple[Patch, Hook]]:
    """Every hook there is."""
    return [(patch, hook) for patch in hooks.PATCHES for hook in patch.hooks]


def hook_reports() -> list[tuple[Patch, Hook, HookReport]]:
    """Every hook with what `status()` says of it while the plugin is active."""
    told = sglang_eagle3_patch.status()
    return [
        (patch, hook, report)
        for patch, of_patch in zip(hooks.PATCHES, told, strict=True)
        for hook, report in zip(patch.hooks, of_patch.hooks, strict=True)
    ]


Live = dict[str, list[str]]


def find_live() -> Live:
    """The paths of the hooks that get in, each with its patches, the outermost first."""
    sglang_eagle3_patch.activate()
    live: Live = {}
    for patch, hook, report in hook_reports():
        if report.status is Status.APPLIED:
            live.setdefault(hook.path, []).insert(0, patch.name)
    sglang_eagle3_patch.deactivate()
    return live


def note_calls(live: Live) -> dict[str, Hook]:
    """From now on a hook of ours notes its patch in `calls` and passes the call on.

    Hooks that are not live are left out, and no probe is asked again: they take a while. Returns a
    hook for each path.
    """
    kept = {}

    def noted(patch: Patch) -> Patch:
        hooks_of_it = [hook for hook in patch.hooks if patch.name in live.get(hook.path, ())]
        kept.update({hook.path: hook for hook in hooks_of_it})
        wrapper = noting(patch.name)
        return replace(
            patch, hooks=tuple(replace(h, wrapper=wrapper, fixed_when=None) for h in hooks_of_it)
        )

    hooks.PATCHES = tuple(noted(patch) for patch in hooks.PATCHES)
    return kept


def noting(name: str) -> Callable[..., Any]:
    """A wrapper, in wrapt's form, that notes `name` and passes the call on."""

    def wrapper(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        calls.append(name)
        return wrapped(*args, **kwargs)

    return wrapper


def called_at(hook: Hook) -> list[str]:
    """Who is called, the outermost first, when the touch point is called.

    The real function ends the call by refusing so many arguments: nothing of it is run. So does
    the stand-in's own wrapper, which lies below ours at one of the touch points, and so does
    SGLang's around the scheduler's batches, which wants a scheduler.
    """
    calls.clear()
    with pytest.raises((TypeError, AttributeError)):
        getattr(owner_of(hook), name_of(hook))(*[object()] * 99)
    return list(calls)


def forget_touched_modules() -> None:
    """Have the touched modules be imported anew, when `import_touched_modules` is called."""
    names = touched_modules()
    _forgotten.extend(names)
    for name in names:
        del sys.modules[name]


_forgotten: list[str] = []


def import_touched_modules() -> None:
    for name in _forgotten:
        importlib.import_module(name)


def wrap_by_wrapt(hook: Hook) -> None:
    """Another's wrapper, put on by wrapt as ours are."""
    import wrapt

    wrapt.wrap_function_wrapper(owner_of(hook), name_of(hook), noting("other"))


def wrap_by_plugin(hook: Hook) -> None:
    """Another's wrapper, put on by SGLang's own framework for plugins: a plain closure."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    def around(original: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append("other")
        return original(*args, **kwargs)

    with contextlib.suppress(KeyError):
        HookRegistry._patched.remove(hook.path)
    HookRegistry.register(hook.path, around, HookType.AROUND)
    HookRegistry.apply_hooks()
