"""The command line: which flags of speculation a release's parser has."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from sglang_eagle3_patch.facts.engine_facts import LaunchFacts
from sglang_eagle3_patch.facts.source_tree import SourceTree, called_name, calls, text

_SERVER_ARGS = "srt/server_args.py"
_CHOICES = "srt/arg_groups/choices.py"
_PREFIX = "--speculative-"


def read_launch(tree: SourceTree) -> LaunchFacts:
    """Return what the parser of the release takes."""
    flags = {*_added_flags(tree), *_annotated_flags(tree)}
    return LaunchFacts(
        speculative_flags=tuple(sorted(flag for flag in flags if flag.startswith(_PREFIX))),
        load_formats=_load_formats(tree),
    )


def _added_flags(tree: SourceTree) -> Iterator[str]:
    """Looks at `parser.add_argument("--flag", …)` in server_args.py."""
    module = tree.module(_SERVER_ARGS)
    for call in calls(module, "add_argument") if module else ():
        yield from (name for name in map(text, call.args) if name)


def _annotated_flags(tree: SourceTree) -> Iterator[str]:
    """Looks at fields `name: A[type, "help"]` or `A[type, Arg(…)]`, from which newer parsers grow.

    They stand in `ServerArgs`, or in the classes of `arg_groups/fields`.
    """
    for path in (_SERVER_ARGS, *tree.paths("srt/arg_groups/fields/*.py")):
        for node in tree.nodes(path):
            if (
                isinstance(node, ast.AnnAssign)
                and isinstance(node.target, ast.Name)
                and isinstance(node.annotation, ast.Subscript)
                and ast.unparse(node.annotation.value) in ("A", "Annotated")
                and isinstance(node.annotation.slice, ast.Tuple)
            ):
                yield from _flags_of_field(node.target.id, node.annotation.slice.elts[1:])


def _flags_of_field(name: str, metadata: list[ast.expr]) -> Iterator[str]:
    own = "--" + name.replace("_", "-")
    for item in metadata:
        if text(item) is not None or isinstance(item, ast.JoinedStr):
            yield own
            return
        if isinstance(item, ast.Call) and called_name(item) == "Arg":
            given = {word.arg: word.value for word in item.keywords}
            hidden = given.get("no_cli")
            if isinstance(hidden, ast.Constant) and hidden.value is True:
                return
            yield text(given.get("cli_name")) or own
            aliases = given.get("aliases")
            if isinstance(aliases, ast.List):
                yield from (alias for alias in map(text, aliases.elts) if alias)
            return


def _load_formats(tree: SourceTree) -> tuple[str, ...] | None:
    """Looks at the list `LOAD_FORMAT_CHOICES`."""
    for path in (_SERVER_ARGS, _CHOICES):
        for node in tree.nodes(path):
            if (
                isinstance(node, ast.Assign)
                and ast.unparse(node.targets[0]) == "LOAD_FORMAT_CHOICES"
                and isinstance(node.value, ast.List)
            ):
                return tuple(choice for choice in map(text, node.value.elts) if choice)
    return None
