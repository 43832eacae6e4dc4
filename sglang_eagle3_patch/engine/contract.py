"""Checks a touch point before it is touched: does it exist, and has it the parameters relied on."""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import Any

from sglang_eagle3_patch.engine.patch import Hook


class TouchPointMissing(AttributeError):
    """The attribute a hook wants to wrap is not there."""


def find_owner(module: ModuleType, hook: Hook) -> tuple[Any, str]:
    """Return the object that holds the hook's attribute, and the attribute's name.

    Raises `TouchPointMissing` naming the first part of the path that is not there.
    """
    owner: Any = module
    *parents, name = hook.attribute.split(".")
    for parent in parents:
        if not hasattr(owner, parent):
            raise TouchPointMissing(f"{hook.module} has no {parent}")
        owner = getattr(owner, parent)
    if not hasattr(owner, name):
        raise TouchPointMissing(f"{hook.module} has no {hook.attribute}")
    return owner, name


def signature_difference(function: Any, hook: Hook) -> str:
    """Return what of the hook's parameters the function lacks, or "" when nothing is lacking."""
    if not hook.parameters:
        return ""
    try:
        found = list(inspect.signature(function).parameters)
    except (TypeError, ValueError) as error:
        return f"{hook.path} has no readable signature ({error})"
    lacking = [name for name in hook.parameters if name not in found]
    if not lacking:
        return ""
    return f"{hook.path} takes ({', '.join(found)}), relied on: {', '.join(lacking)}"
