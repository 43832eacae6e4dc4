"""Workers: how a release runs EAGLE, where it reads layer ids and when it sets them."""

from __future__ import annotations

import ast

from sglang_eagle3_patch.facts.engine_facts import WorkerFacts
from sglang_eagle3_patch.facts.read_targets import SETTER
from sglang_eagle3_patch.facts.source_tree import SourceTree, called_name, calls, method, text

_RUNNER = "srt/model_executor/model_runner.py"
_COMPONENTS = "srt/model_executor/model_runner_components"
_LAYER_IDS = "eagle_aux_hidden_state_layer_ids"
# What sets the draft's ids on the target, in one release or another.
_SETTERS = (SETTER, "init_aux_hidden_state_capture", "configure_aux_hidden_state_capture")


def read_workers(tree: SourceTree) -> WorkerFacts:
    """Return how the release runs EAGLE."""
    return WorkerFacts(
        classes=_classes(tree),
        default=_default(tree),
        capture_ids_from=_capture_ids_from(tree),
        layers_set_before_graphs=_layers_set_before_graphs(tree),
        accepted_lists=_accepted_lists(tree),
        plugins=_plugins(tree),
        cpu_eagle=_cpu_eagle(tree),
    )


def _classes(tree: SourceTree) -> tuple[str, ...]:
    """Looks at the classes of `srt/speculative` that are named as workers."""
    return tuple(
        sorted(
            node.name
            for path in tree.paths("srt/speculative/*.py")
            for node in tree.nodes(path)
            if isinstance(node, ast.ClassDef) and node.name.endswith(("Worker", "WorkerV2"))
        )
    )


def _default(tree: SourceTree) -> str | None:
    """Looks at what `create_worker` returns where `self.is_eagle()` is all that is asked.

    Where that depends on overlap, it is on exactly if the variable SGLANG_ENABLE_SPEC_V2 is, whose
    default environ.py states.
    """
    for node in tree.nodes("srt/speculative/spec_info.py"):
        if isinstance(node, ast.FunctionDef) and node.name == "create_worker":
            for choice in ast.walk(node):
                if isinstance(choice, ast.If) and ast.unparse(choice.test) == "self.is_eagle()":
                    return _default_of(tree, choice)
    return None


def _default_of(tree: SourceTree, choice: ast.If) -> str | None:
    inner = next((node for node in choice.body if isinstance(node, ast.If)), None)
    otherwise = _returned(choice.body)
    if inner is None:
        return otherwise
    overlap = _spec_v2_is_on(tree)
    if overlap is None or ast.unparse(inner.test) != "enable_overlap":
        return None
    return _returned(inner.body) if overlap else otherwise


def _returned(body: list[ast.stmt]) -> str | None:
    for node in body:
        if isinstance(node, ast.Return) and isinstance(node.value, ast.Name):
            return node.value.id
    return None


def _spec_v2_is_on(tree: SourceTree) -> bool | None:
    for node in tree.nodes("srt/environ.py"):
        if (
            isinstance(node, ast.Assign)
            and ast.unparse(node.targets[0]) == "SGLANG_ENABLE_SPEC_V2"
            and isinstance(node.value, ast.Call)
            and isinstance(node.value.args[0], ast.Constant)
        ):
            return bool(node.value.args[0].value)
    return None


def _capture_ids_from(tree: SourceTree) -> tuple[str, ...] | None:
    """Looks at what reads the layer ids out of the draft's config for the target's capture."""
    places: set[str] = set()
    for path in (_RUNNER, f"{_COMPONENTS}/spec_aux_hidden_state.py"):
        for node in tree.nodes(path):
            if isinstance(node, ast.Subscript) and text(node.slice) == _LAYER_IDS:
                nested = ast.unparse(node.value) == "eagle_config"
                places.add("eagle_config" if nested else "top level")
            elif (
                isinstance(node, ast.Call)
                and called_name(node) in ("get", "getattr")
                and any(text(argument) == _LAYER_IDS for argument in node.args)
            ):
                nested = "eagle_config" in ast.unparse(node)
                places.add("eagle_config" if nested else "top level")
    return tuple(sorted(places)) or None


def _layers_set_before_graphs(tree: SourceTree) -> bool | None:
    """Looks at `ModelRunner.initialize`, or at `init_attention_backends`, without which no graphs.

    In the first the order of the calls tells; what the second does comes before the graphs, since
    capturing them needs the backends.
    """
    for node in tree.nodes(_RUNNER):
        if isinstance(node, ast.ClassDef) and node.name == "ModelRunner":
            initialize = method(node, "initialize")
            setters = _lines(initialize, *_SETTERS)
            graphs = _lines(initialize, "init_device_graphs")
            if setters and graphs:
                return min(setters) < min(graphs)
            backends = method(node, "init_attention_backends")
            if _lines(backends, *_SETTERS) and not _lines(backends, "init_device_graphs"):
                return True
    return None


def _lines(function: ast.FunctionDef | None, *names: str) -> list[int]:
    return [call.lineno for call in calls(function, *names)] if function else []


def _accepted_lists(tree: SourceTree) -> dict[str, str]:
    """Looks at the `…_per_req_cpu` fields of the two result classes.

    Of several, the one that goes with a total of its own name is about drafts; the other one, in
    newer releases, is about diffusion models.
    """
    lists = {}
    for path, name in (
        ("srt/managers/utils.py", "GenerationBatchResult"),
        ("srt/speculative/eagle_info.py", "EagleVerifyOutput"),
    ):
        for node in tree.nodes(path):
            if isinstance(node, ast.ClassDef) and node.name == name:
                fields = [
                    ast.unparse(field.target)
                    for field in node.body
                    if isinstance(field, ast.AnnAssign)
                ]
                held = [field for field in fields if field.endswith("_per_req_cpu")]
                paired = [field for field in held if field.removesuffix("_per_req_cpu") in fields]
                chosen = paired if len(held) > 1 else held
                if len(chosen) == 1:
                    lists[name] = chosen[0]
    return lists


def _plugins(tree: SourceTree) -> bool:
    """Looks for `load_plugins` in `srt/plugins`."""
    return any(
        isinstance(node, ast.FunctionDef) and node.name == "load_plugins"
        for node in tree.nodes("srt/plugins/__init__.py")
    )


def _cpu_eagle(tree: SourceTree) -> bool:
    """Looks whether the tree mask of verification has a form for the CPU."""
    return any(
        isinstance(node, ast.IfExp)
        and "is_cpu" in ast.unparse(node.test)
        and "TreeMaskMode" in ast.unparse(node.body)
        for node in tree.nodes("srt/speculative/eagle_utils.py")
    )
