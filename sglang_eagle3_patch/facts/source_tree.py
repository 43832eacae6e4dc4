"""Python files of an `sglang` package, parsed and never imported: classes, their bases, imports."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath


@dataclass(frozen=True)
class FoundClass:
    """A class statement and the file it stands in, a path below the package."""

    path: str
    node: ast.ClassDef


@dataclass(frozen=True)
class _Import:
    path: str
    name: str


class Foreign:
    """Stands for what comes from outside the package."""


FOREIGN = Foreign()
_Binding = ast.ClassDef | _Import | Foreign | str


class SourceTree:
    """The package in `folder`; every file is parsed once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.module = cache(self._parse)
        self._bindings = cache(self._bind)

    def paths(self, pattern: str) -> list[str]:
        """Return the files that match a glob, as sorted paths below the package."""
        return sorted(
            file.relative_to(self.folder).as_posix() for file in self.folder.glob(pattern)
        )

    def nodes(self, path: str) -> Iterator[ast.AST]:
        """Yield every node of a file, none when it isn't there."""
        module = self.module(path)
        return ast.walk(module) if module else iter(())

    def find_class(self, path: str, name: str) -> FoundClass | Foreign | None:
        """Return the class that `name` means at the end of a file, through imports and aliases.

        FOREIGN when it comes from outside the package; None when that can't be told.
        """
        return self._find(path, name, None, 0)

    def bases(self, found: FoundClass) -> list[FoundClass | Foreign | None]:
        """Return what the bases of a class are, in their order, each as `find_class` does."""
        return [self._base(found, base) for base in found.node.bases]

    def lineage(self, found: FoundClass) -> Iterator[FoundClass | None]:
        """Yield a class and its ancestors in the package, depth first; None for an unknown base.

        Python's own order differs only where two branches meet again above a class that
        overrides a method, which no model class does for the methods asked for here.
        """
        yield found
        for base in self.bases(found):
            if isinstance(base, FoundClass):
                yield from self.lineage(base)
            elif base is None:
                yield None

    def resolve_in(
        self, found: FoundClass, function: ast.AST, name: str
    ) -> FoundClass | Foreign | None:
        """Like `find_class`, for a name inside a function that may import it itself."""
        for node in ast.walk(function):
            if isinstance(node, ast.ImportFrom):
                bound = dict(self._imported(found.path, node)).get(name)
                if bound is not None:
                    return self._follow(found.path, bound, None, 0)
        return self.find_class(found.path, name)

    def _base(self, found: FoundClass, base: ast.expr) -> FoundClass | Foreign | None:
        if isinstance(base, ast.Subscript):
            base = base.value
        if isinstance(base, ast.Name):
            # A class may be named as the imported one that it extends.
            return self._find(found.path, base.id, found.node.lineno, 0)
        root = base
        while isinstance(root, ast.Attribute):
            root = root.value
        if isinstance(root, ast.Name):
            return self._find(found.path, root.id, found.node.lineno, 0)
        return None

    def _find(
        self, path: str, name: str, before: int | None, depth: int
    ) -> FoundClass | Foreign | None:
        bound = [
            (line, value)
            for line, value in self._bindings(path).get(name, [])
            if before is None or line < before
        ]
        if not bound or depth > 10:
            return None
        line, value = bound[-1]
        return self._follow(path, value, line, depth)

    def _follow(
        self, path: str, value: _Binding, line: int | None, depth: int
    ) -> FoundClass | Foreign | None:
        if isinstance(value, ast.ClassDef):
            return FoundClass(path, value)
        if isinstance(value, _Import):
            return self._find(value.path, value.name, None, depth + 1)
        if isinstance(value, str):
            return self._find(path, value, line, depth + 1)
        return FOREIGN

    def _bind(self, path: str) -> dict[str, list[tuple[int, _Binding]]]:
        bindings: dict[str, list[tuple[int, _Binding]]] = {}
        module = self.module(path)
        for statement in _top_level(module.body if module else []):
            for name, value in self._bound_by(path, statement):
                bindings.setdefault(name, []).append((statement.lineno, value))
        return bindings

    def _bound_by(self, path: str, statement: ast.stmt) -> Iterator[tuple[str, _Binding]]:
        if isinstance(statement, ast.ClassDef):
            yield statement.name, statement
        elif isinstance(statement, ast.ImportFrom):
            yield from self._imported(path, statement)
        elif isinstance(statement, ast.Import):
            for alias in statement.names:
                if not alias.name.startswith("sglang"):
                    yield (alias.asname or alias.name).partition(".")[0], FOREIGN
        elif isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Name):
            for target in statement.targets:
                if isinstance(target, ast.Name):
                    yield target.id, statement.value.id

    def _imported(self, path: str, statement: ast.ImportFrom) -> Iterator[tuple[str, _Binding]]:
        name = statement.module or ""
        if statement.level:
            parent = PurePosixPath(path).parents[statement.level - 1]
            base = parent.joinpath(*name.split(".")) if name else parent
        elif name == "sglang" or name.startswith("sglang."):
            base = PurePosixPath(*name.split(".")[1:])
        else:
            for alias in statement.names:
                yield alias.asname or alias.name, FOREIGN
            return
        package = base / "__init__.py"
        file = package if (self.folder / package).is_file() else base.with_suffix(".py")
        for alias in statement.names:
            yield alias.asname or alias.name, _Import(file.as_posix(), alias.name)

    def _parse(self, path: str) -> ast.Module | None:
        try:
            # One of the model files begins with a byte order mark.
            return ast.parse((self.folder / path).read_text(encoding="utf-8-sig"))
        except (OSError, SyntaxError, ValueError, RecursionError):
            return None


def _top_level(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements that run when a module is imported, those in `if` and `try` too."""
    for statement in body:
        yield statement
        if isinstance(statement, ast.If | ast.Try):
            for field in ("body", "handlers", "orelse", "finalbody"):
                for inner in getattr(statement, field, []):
                    if isinstance(inner, ast.ExceptHandler):
                        yield from _top_level(inner.body)
                    else:
                        yield from _top_level([inner])


def method(node: ast.ClassDef, name: str) -> ast.FunctionDef | None:
    """Return the method `name` that a class statement itself defines."""
    for statement in node.body:
        if isinstance(statement, ast.FunctionDef) and statement.name == name:
            return statement
    return None


def calls(node: ast.AST, *names: str) -> list[ast.Call]:
    """Return the calls below `node` of functions or methods with these names."""
    return [
        call for call in ast.walk(node) if isinstance(call, ast.Call) and called_name(call) in names
    ]


def called_name(call: ast.Call) -> str | None:
    """Return the last part of what is called: `c` for `a.b.c(...)`."""
    function = call.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else None


def text(node: ast.AST | None) -> str | None:
    """Return the string that a node is, None when it isn't one."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return None
