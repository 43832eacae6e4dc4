"""Target classes: what every registered model class can do for an EAGLE-3 draft."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from sglang_eagle3_patch.facts import engine_facts as rules
from sglang_eagle3_patch.facts.engine_facts import TargetClass
from sglang_eagle3_patch.facts.source_tree import FoundClass, SourceTree, calls, method

SETTER = "set_eagle3_layers_to_capture"
_LANGUAGE_MODEL = "language_model"


def registered(tree: SourceTree) -> dict[str, FoundClass]:
    """Return the registered classes by architecture.

    Looks at `EntryClass` in the files right below `srt/models`, as SGLang's registry does.
    """
    entries: dict[str, FoundClass] = {}
    for path in tree.paths("srt/models/*.py"):
        for name in _entry_names(tree.module(path)):
            found = tree.find_class(path, name)
            if isinstance(found, FoundClass):
                entries[found.node.name] = found
    return entries


def read_target(tree: SourceTree, found: FoundClass) -> TargetClass:
    """Return what one registered class can do."""
    captures = has(tree, found, SETTER)
    explicit, default, inner = _capture_rules(tree, found) if captures else (None, None, None)
    language_model = _built_as(tree, found, _LANGUAGE_MODEL)
    return TargetClass(
        captures=captures,
        gives_embed_and_head=has(tree, found, "get_embed_and_head"),
        takes_embed_and_head=has(tree, found, "set_embed_and_head"),
        explicit_ids=explicit,
        default_ids=default,
        delegates_to=inner,
        holds_language_model=_holds(tree, found, _LANGUAGE_MODEL),
        language_model=language_model.node.name if language_model else None,
    )


def has(tree: SourceTree, found: FoundClass, name: str) -> bool | None:
    """Whether a class or an ancestor in the package binds `name` in its body.

    Ancestors from outside the package are passed over: these names are SGLang's own. None when
    nothing in sight has it, but an ancestor couldn't be found or has a `__getattr__`.
    """
    unknown = False
    for ancestor in tree.lineage(found):
        names = set(_bound_in(ancestor.node)) if ancestor else set()
        if name in names:
            return True
        unknown = unknown or ancestor is None or "__getattr__" in names
    return None if unknown else False


def _holds(tree: SourceTree, found: FoundClass, attribute: str) -> bool | None:
    """Whether a class or an ancestor in the package assigns `self.X`, or binds X in its body."""
    for ancestor in tree.lineage(found):
        if ancestor and any(
            isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and ast.unparse(node) == f"self.{attribute}"
            for node in ast.walk(ancestor.node)
        ):
            return True
    return has(tree, found, attribute)


def _entry_names(module: ast.Module | None) -> Iterator[str]:
    for statement in module.body if module else []:
        if isinstance(statement, ast.Assign) and any(
            isinstance(target, ast.Name) and target.id == "EntryClass"
            for target in statement.targets
        ):
            value = statement.value
            elements = value.elts if isinstance(value, ast.List) else [value]
            yield from (element.id for element in elements if isinstance(element, ast.Name))


def _bound_in(node: ast.ClassDef) -> Iterator[str]:
    for statement in node.body:
        if isinstance(statement, ast.FunctionDef):
            yield statement.name
        elif isinstance(statement, ast.Assign):
            yield from (name.id for name in statement.targets if isinstance(name, ast.Name))


def _capture_rules(
    tree: SourceTree, found: FoundClass
) -> tuple[str | None, str | None, str | None]:
    """Return the rules for explicit and for default ids, and the class that is handed on to."""
    for ancestor in tree.lineage(found):
        setter = method(ancestor.node, SETTER) if ancestor else None
        if setter is None:
            continue
        attribute = _handed_on_to(setter)
        if attribute is None:
            return _explicit_rule(setter), _default_rule(setter), None
        inner = _built_as(tree, found, attribute)
        if inner is None:
            return None, None, None
        explicit, default, _ = _capture_rules(tree, inner)
        return explicit, default, inner.node.name
    return None, None, None


def _handed_on_to(setter: ast.FunctionDef) -> str | None:
    """Looks for `self.X.set_eagle3_layers_to_capture(layer_ids)`, the ids as they came."""
    ids = setter.args.args[1].arg
    for call in calls(setter, SETTER):
        owner = call.func.value if isinstance(call.func, ast.Attribute) else None
        argument = call.args[0] if call.args else None
        if (
            isinstance(owner, ast.Attribute)
            and isinstance(argument, ast.Name)
            and argument.id == ids
            and not _assigned(setter, ids)
        ):
            return owner.attr
    return None


def _built_as(tree: SourceTree, found: FoundClass, attribute: str) -> FoundClass | None:
    """Looks for `self.X = SomeClass(...)` in `__init__`; None unless it is one known class."""
    for ancestor in tree.lineage(found):
        init = method(ancestor.node, "__init__") if ancestor else None
        if ancestor is None or init is None:
            continue
        built = [value for value in _assigned(init, attribute) if isinstance(value, ast.Call)]
        if len(built) == 1 and isinstance(built[0].func, ast.Name):
            inner = tree.resolve_in(ancestor, init, built[0].func.id)
            return inner if isinstance(inner, FoundClass) else None
        if built:
            return None
    return None


def _explicit_rule(setter: ast.FunctionDef) -> str | None:
    """Looks at `[val + 1 for val in layer_ids]`, `list(layer_ids)`, and the `if` between them."""
    ids = setter.args.args[1].arg
    shifted = any(_is_shifted(node, ids) for node in ast.walk(setter))
    kept = [node for node in ast.walk(setter) if ast.unparse(node) == f"list({ids})"]
    if shifted and not kept:
        return rules.PLUS_ONE
    for choice in ast.walk(setter):
        if not isinstance(choice, ast.If):
            continue
        test, first = ast.unparse(choice.test), choice.body[0]
        if test == f"{ids} and {ids}[0] == 1" and _is_shifted_within(first, ids):
            return rules.PLUS_ONE_IF_FIRST_IS_1
        if test == f"{ids} and max({ids}) == num_layers" and kept[0] in ast.walk(first):
            return rules.AS_IS_IF_MAX_IS_NUM_LAYERS
    return None


def _default_rule(setter: ast.FunctionDef) -> str | None:
    """Looks for `[2, N // 2, N - 3]`; one later where it becomes `layer_ids`, which is shifted."""
    ids = setter.args.args[1].arg
    usual = [node for node in ast.walk(setter) if _is_usual(node)]
    if not usual:
        return None
    becomes_ids = [value for value in _assigned(setter, ids) if value in usual]
    if not becomes_ids:
        return rules.USUAL_DEFAULT
    return rules.ONE_LATER_DEFAULT if _explicit_rule(setter) == rules.PLUS_ONE else None


def _is_usual(node: ast.AST) -> bool:
    if not isinstance(node, ast.List) or len(node.elts) != 3:
        return False
    first, half, last = map(ast.unparse, node.elts)
    layers = half.removesuffix(" // 2")
    return (first, half, last) == ("2", f"{layers} // 2", f"{layers} - 3")


def _is_shifted(node: ast.AST, ids: str) -> bool:
    if not isinstance(node, ast.ListComp) or len(node.generators) != 1:
        return False
    loop = node.generators[0]
    shifted = f"{ast.unparse(loop.target)} + 1"
    return ast.unparse(loop.iter) == ids and ast.unparse(node.elt) == shifted and not loop.ifs


def _is_shifted_within(node: ast.AST, ids: str) -> bool:
    return any(_is_shifted(inner, ids) for inner in ast.walk(node))


def _assigned(function: ast.AST, name: str) -> list[ast.expr]:
    """Return what is assigned to a variable, or an attribute of self, of this name."""
    return [
        node.value
        for node in ast.walk(function)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if (isinstance(target, ast.Name) and target.id == name)
        or (isinstance(target, ast.Attribute) and ast.unparse(target) == f"self.{name}")
    ]
