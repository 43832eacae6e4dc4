"""Makes `EngineFacts` from source: of any folder, or of the SGLang that is installed."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
from pathlib import Path

from packaging.requirements import Requirement

from sglang_eagle3_patch.facts.engine_facts import EngineFacts
from sglang_eagle3_patch.facts.read_drafts import read_drafts
from sglang_eagle3_patch.facts.read_launch import read_launch
from sglang_eagle3_patch.facts.read_targets import read_target, registered
from sglang_eagle3_patch.facts.read_workers import read_workers
from sglang_eagle3_patch.facts.source_tree import SourceTree, text
from sglang_eagle3_patch.facts.store import facts_for


class NoSuchSource(ValueError):
    """A folder that holds no `sglang` package; the text names it and what is missing."""


def read_source(folder: Path) -> EngineFacts:
    """Return the facts of the `sglang` package in `folder`, read from its files (some seconds).

    Nothing is imported. The distribution's metadata are used when they lie beside the folder.
    Raises `NoSuchSource` when the folder has no `srt/models`.
    """
    if not (folder / "srt/models").is_dir():
        raise NoSuchSource(
            f"{folder} is no sglang package: it has no srt/models. Fix: name the folder `sglang` "
            "of a site-packages or of an unpacked wheel."
        )
    tree = SourceTree(folder)
    release = _release(tree)
    python, transformers = _requirements(folder, release)
    entries = registered(tree)
    return EngineFacts(
        release=release,
        requires_python=python,
        transformers=transformers,
        drafts=read_drafts(tree, entries),
        targets={name: read_target(tree, entries[name]) for name in sorted(entries)},
        launch=read_launch(tree),
        workers=read_workers(tree),
    )


def installed() -> EngineFacts | None:
    """Return the facts of the SGLang that `import sglang` would find, without importing it.

    The stored ones for a release that is known: a fork that kept a release's number needs
    `read_source`. None when there is no SGLang.
    """
    folder = installed_folder()
    if folder is None:
        return None
    release = _release(SourceTree(folder))
    stored = facts_for(release) if release else None
    return stored or read_source(folder)


def installed_folder() -> Path | None:
    """Return the package folder that `import sglang` would find, None when there is none."""
    try:
        spec = importlib.util.find_spec("sglang")
    except ValueError:  # a stand-in in sys.modules has no spec
        return None
    for place in spec.submodule_search_locations or () if spec else ():
        if (Path(place) / "srt/models").is_dir():
            return Path(place)
    return None


def _release(tree: SourceTree) -> str | None:
    """Looks at `__version__` in `_version.py`, which every wheel has."""
    for node in tree.nodes("_version.py"):
        if isinstance(node, ast.Assign) and "__version__" in map(ast.unparse, node.targets):
            return text(node.value)
    return None


def _requirements(folder: Path, release: str | None) -> tuple[str | None, str | None]:
    """Return what the distribution beside `folder` demands of Python and of transformers."""
    for distribution in importlib.metadata.distributions(name="sglang", path=[str(folder.parent)]):
        if distribution.version == release:
            wanted = map(Requirement, distribution.requires or ())
            pins = [
                str(need.specifier)
                for need in wanted
                if need.name == "transformers" and need.marker is None
            ]
            python = distribution.metadata.get_all("Requires-Python")
            return python[0] if python else None, pins[0] if len(pins) == 1 else None
    return None, None
