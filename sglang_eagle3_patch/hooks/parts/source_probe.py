"""Reads from its source whether the SGLang in hand does by itself what a hook is for.

Probes look at structure, not at versions: what a method, or a function that it calls by name,
does. A source that can't be read says nothing, and the hook goes in.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import inspect
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Calls are followed this far: a method, what it calls, and what that calls.
_DEPTH = 2


def raises_over(owner: Any, method: str, *words: str) -> bool:
    """Whether `owner.method`, or what it calls by name, can raise in a function over `words`.

    A word is a name, an attribute or a string. True needs one function that holds a `raise` and
    all of the words.
    """
    function = inspect.getattr_static(owner, method, None)
    return any(
        any(isinstance(node, ast.Raise) for node in ast.walk(tree))
        and set(words) <= set(_words(tree))
        for tree in _reached(function, _DEPTH, set())
    )


def method_tree(owner: Any, method: str) -> ast.Module:
    """Return the tree of `owner.method` as it is upstream; an empty one if it can't be read."""
    function = inspect.getattr_static(owner, method, None)
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return _tree(function) or ast.Module([], [])


def source_says(file: str, *words: str) -> bool:
    """Whether one function of `file`, a path below the installed `sglang`, holds all `words`.

    Parts of names and strings count. The file is read, not imported.
    """
    return any(
        all(any(word in found for found in _words(node)) for word in words)
        for node in ast.walk(_file_tree(file))
        if isinstance(node, ast.FunctionDef)
    )


def source_chooses(file: str, value: str) -> bool:
    """Whether `file`, a path below the installed `sglang`, returns or assigns the string."""
    return any(
        isinstance(node, (ast.Return, ast.Assign))
        and isinstance(node.value, ast.Constant)
        and node.value.value == value
        for node in ast.walk(_file_tree(file))
    )


@functools.cache  # several probes look at one file
def _file_tree(file: str) -> ast.AST:
    try:
        spec = importlib.util.find_spec("sglang")
        folder = (spec.submodule_search_locations or [])[0] if spec else ""
        return ast.parse((Path(folder) / file).read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError, IndexError):
        return ast.Module([], [])


def _reached(function: Any, depth: int, seen: set[Any]) -> Iterator[ast.AST]:
    """Yield the tree of `function` and of the functions that it calls."""
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    tree = _tree(function)
    if tree is None or function in seen:
        return
    seen.add(function)
    yield tree
    if depth:
        for called in _called(tree, getattr(function, "__globals__", {})):
            yield from _reached(called, depth - 1, seen)


def _called(tree: ast.AST, known: dict[str, Any]) -> Iterator[Any]:
    """Yield what is called by a global name, or as a method of what a local name was made of."""
    made_of = {
        node.targets[0].id: known.get(node.value.func.id)
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Call)
        and isinstance(node.value.func, ast.Name)
    }
    for node in ast.walk(tree):
        called = node.func if isinstance(node, ast.Call) else None
        if isinstance(called, ast.Name) and inspect.isfunction(known.get(called.id)):
            yield known[called.id]
        elif isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name):
            yield getattr(made_of.get(called.value.id), called.attr, None)


def _tree(function: Any) -> ast.Module | None:
    try:
        return ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, ValueError, SyntaxError):
        return None


def _words(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.FunctionDef):
            yield node.name
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
