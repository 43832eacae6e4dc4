"""Draft classes: what SGLang's EAGLE-3 draft classes build, rename and read."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from sglang_eagle3_patch.facts.engine_facts import DraftClass, Rename
from sglang_eagle3_patch.facts.source_tree import FoundClass, SourceTree, calls, method, text

ARCHITECTURES = ("LlamaForCausalLMEagle3", "Eagle3DeepseekV2ForCausalLM")
_NORM_FLAGS = ("fc_norm", "norm_before_fc", "norm_before_residual", "norm_output", "use_aux_norm")
_LAYER_IDS = "eagle_aux_hidden_state_layer_ids"


def read_drafts(tree: SourceTree, entries: Mapping[str, FoundClass]) -> dict[str, DraftClass]:
    """Return the EAGLE-3 draft classes among the registered `entries`."""
    return {name: _read_draft(tree, entries[name]) for name in ARCHITECTURES if name in entries}


def _read_draft(tree: SourceTree, found: FoundClass) -> DraftClass:
    model = _model_class(tree, found)
    loader = method(found.node, "load_weights")
    num_aux_from, num_aux_default = _num_aux(tree, model) if model else (None, None)
    return DraftClass(
        decoder=_decoder(model) if model else None,
        several_layers=_several_layers(found, model),
        renames=tuple(_renames(loader)) if loader else (),
        takes_model_prefix=_takes_model_prefix(loader) if loader else None,
        norm_flags=tuple(sorted(set(_NORM_FLAGS) & set(_config_reads(tree, found.path)))),
        draft_window=_draft_window(tree, found.path),
        num_aux_from=num_aux_from,
        num_aux_default=num_aux_default,
        draft_vocab_size_optional=_draft_vocab_size_optional(found),
    )


def _model_class(tree: SourceTree, found: FoundClass) -> FoundClass | None:
    """Looks at `self.model = X(...)` in the draft's `__init__`."""
    init = method(found.node, "__init__")
    for node in ast.walk(init) if init else ():
        if (
            isinstance(node, ast.Assign)
            and ast.unparse(node.targets[0]) == "self.model"
            and isinstance(node.value, ast.Call)
            and isinstance(node.value.func, ast.Name)
        ):
            model = tree.find_class(found.path, node.value.func.id)
            return model if isinstance(model, FoundClass) else None
    return None


def _decoder(model: FoundClass) -> str | None:
    """Looks at which of the two attributes the inner model's `__init__` sets."""
    init = method(model.node, "__init__")
    names = {
        ast.unparse(target)
        for node in (ast.walk(init) if init else ())
        if isinstance(node, ast.Assign)
        for target in node.targets
    }
    held = [name for name in ("midlayer", "layers") if f"self.{name}" in names]
    return held[0] if len(held) == 1 else None


def _several_layers(found: FoundClass, model: FoundClass | None) -> bool | None:
    """Looks for a refusal of `num_hidden_layers != 1`, else for a `range` over it."""
    inits = [method(part.node, "__init__") for part in (found, model) if part]
    nodes = [node for init in inits if init for node in ast.walk(init)]
    for node in nodes:
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("num_hidden_layers != 1"):
            return False if isinstance(node.body[0], ast.Raise) else None
    spanned = any(ast.unparse(node) == "range(config.num_hidden_layers)" for node in nodes)
    return True if spanned else None


def _renames(loader: ast.FunctionDef) -> Iterator[Rename]:
    """Looks at a dict of names gone through with `.items()`, and at `re.sub("^old", "new", …)`."""
    looped = {ast.unparse(loop.iter) for loop in ast.walk(loader) if isinstance(loop, ast.For)}
    for node in ast.walk(loader):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
            if f"{ast.unparse(node.targets[0])}.items()" in looped:
                for key, value in zip(node.value.keys, node.value.values, strict=True):
                    old, new = text(key), text(value)
                    if old is not None and new is not None:
                        yield Rename(old, new, anywhere=True)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "re.sub":
            old, new = text(node.args[0]), text(node.args[1])
            if old is not None and new is not None and old.startswith("^"):
                yield Rename(old[1:].replace("\\.", "."), new, anywhere=False)


def _takes_model_prefix(loader: ast.FunctionDef) -> bool | None:
    """Looks whether `model.` is put before a name only when the name itself isn't known."""
    prefixing = [
        node
        for node in ast.walk(loader)
        if isinstance(node, ast.JoinedStr) and text(node.values[0]) == "model."
    ]
    if not prefixing:
        return None
    chosen = [node for node in ast.walk(loader) if isinstance(node, ast.IfExp)]
    return all(any(prefix in ast.walk(choice) for choice in chosen) for prefix in prefixing)


def _config_reads(tree: SourceTree, path: str) -> Iterator[str]:
    """Looks at `getattr(x, "name")`, `x.get("name")` and `config.name` in the draft's file."""
    for node in tree.nodes(path):
        if isinstance(node, ast.Call):
            yield from (name for _, name in _reads(node))
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value).endswith("config"):
            yield node.attr


def _reads(call: ast.Call) -> Iterator[tuple[str, str]]:
    if ast.unparse(call.func) == "getattr" and len(call.args) > 1:
        owner, name = call.args[0], text(call.args[1])
    elif isinstance(call.func, ast.Attribute) and call.func.attr == "get" and call.args:
        owner, name = call.func.value, text(call.args[0])
    else:
        return
    if name is not None:
        yield ast.unparse(owner), name


def _draft_window(tree: SourceTree, path: str) -> bool:
    """Looks whether the draft's file reads the window's setting."""
    return any(
        isinstance(node, ast.Attribute) and node.attr == "speculative_draft_window_size"
        for node in tree.nodes(path)
    )


def _num_aux(tree: SourceTree, model: FoundClass) -> tuple[tuple[str, ...] | None, int | None]:
    """Looks at the factor in the width of `fc`: a number, or what computes it and reads what.

    The order of reading is the order in the source; the default is the one number given there.
    """
    init = method(model.node, "__init__")
    factor = _fc_factor(init) if init else None
    if init is None or factor is None:
        return None, None
    if isinstance(factor, ast.Constant):
        return (), factor.value if isinstance(factor.value, int) else None
    name = ast.unparse(factor)
    values = [factor, *_values_of(init, name)]
    helpers = {
        call.func.id
        for value in values
        for call in ast.walk(value)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name)
    }
    computing = [
        node
        for node in tree.nodes(model.path)
        if isinstance(node, ast.FunctionDef) and node.name in helpers
    ] or [init]
    places: list[str] = []
    for owner, field in _reads_in_order(computing[0]):
        if field in ("num_aux_hidden_states", _LAYER_IDS):
            place = f"eagle_config.{field}" if owner == "eagle_config" else field
            if place not in places:
                places.append(place)
    returned = [
        node.value for node in ast.walk(computing[0]) if isinstance(node, ast.Return) and node.value
    ]
    otherwise = [value.orelse for value in values if isinstance(value, ast.IfExp)]
    numbers = {
        node.value
        for node in (*returned, *otherwise)
        if isinstance(node, ast.Constant) and isinstance(node.value, int)
    }
    return tuple(places), numbers.pop() if len(numbers) == 1 else None


def _fc_factor(init: ast.FunctionDef) -> ast.expr | None:
    for value in _values_of(init, "self.fc"):
        if isinstance(value, ast.Call) and value.args and isinstance(value.args[0], ast.BinOp):
            return value.args[0].right
    return None


def _values_of(function: ast.FunctionDef, name: str) -> list[ast.expr]:
    return [
        node.value
        for node in ast.walk(function)
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name
    ]


def _reads_in_order(function: ast.FunctionDef) -> Iterator[tuple[str, str]]:
    found = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
    for call in sorted(found, key=lambda node: (node.lineno, node.col_offset)):
        yield from _reads(call)


def _draft_vocab_size_optional(found: FoundClass) -> bool | None:
    """Looks whether the draft's `__init__` reads it with `getattr` or as an attribute alone."""
    init = method(found.node, "__init__")
    if init is None:
        return None
    if any(
        name == "draft_vocab_size" for call in calls(init, "getattr") for _, name in _reads(call)
    ):
        return True
    read = any(
        isinstance(node, ast.Attribute) and ast.unparse(node) == "config.draft_vocab_size"
        for node in ast.walk(init)
    )
    return False if read else None
