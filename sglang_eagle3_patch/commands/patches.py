"""`sglang-eagle3 patches`: lists the runtime patches, and puts their series on a source tree.

The series do to SGLang's source what the runtime patches do to a running SGLang. An installed
package is never touched without `--site-packages`.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sglang_eagle3_patch.commands.patches_series import Series
from sglang_eagle3_patch.commands.patches_tree import CannotPatch, Tree, series_of

_ACTIONS = {
    "apply": "put the series for its release on a source tree of SGLang",
    "check": "say whether the series applies to a source tree, or is applied; changes nothing",
    "revert": "take an applied series off a source tree",
}


def add_parser(commands: Any) -> None:
    """Add the command to the subparsers of `sglang-eagle3`."""
    parser = commands.add_parser(
        "patches", help="list the runtime patches, or put them on a source tree of SGLang"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=lambda arguments: list_patches(as_json=arguments.json))
    actions = parser.add_subparsers(metavar="{apply,check,revert}")
    for name, help_text in _ACTIONS.items():
        action = actions.add_parser(name, help=help_text)
        action.add_argument("tree", type=Path, metavar="TREE", help="a checkout of SGLang")
        action.add_argument(
            "--site-packages",
            action="store_true",
            help="TREE is an installed package: the folder that holds `sglang`",
        )
        action.add_argument("--release", metavar="V", help="the release that TREE is, or forks")
        action.set_defaults(run=run, action=name)


def run(arguments: argparse.Namespace) -> int:
    """Apply, check or revert: 0 when done (or applicable), 1 when not, 2 for another tree."""
    try:
        tree = Tree.at(arguments.tree)
        if tree.installed and not arguments.site_packages and arguments.action != "check":
            raise CannotPatch(
                f"{tree.package} is an installed package. Fix: name a checkout, or say that this "
                "one is meant: --site-packages"
            )
        series = series_of(tree, arguments.release)
    except (CannotPatch, OSError) as problem:
        return _failed(arguments.action, problem, 2)
    try:
        print(_do(arguments.action, tree, series))
    except (CannotPatch, OSError) as problem:
        return _failed(arguments.action, problem, 1)
    return 0


def _do(action: str, tree: Tree, series: Series) -> str:
    """Return what was done. Raises `CannotPatch` or OSError when it can't be."""
    name = f"the series for SGLang {', '.join(series.releases)} ({len(series.files)} files)"
    problem = tree.would(reverse=False, series=series)
    applied = bool(problem) and not tree.would(reverse=True, series=series)
    if action == "revert" and applied:
        tree.change(reverse=True, series=series)
        return f"took {name} off {tree.root}"
    if action == "revert":
        raise CannotPatch(f"{name} is not applied to {tree.root}, or what it changed was changed")
    if action == "check" and applied:
        return f"{name} is applied to {tree.root}"
    if applied:
        raise CannotPatch(f"{name} is applied to {tree.root} already")
    if tree.is_dirty():
        raise CannotPatch(f"{tree.root} has uncommitted changes. Fix: commit or stash them")
    if problem:
        raise CannotPatch(
            f"{name} does not apply to {tree.root}, nothing of it is changed:\n{problem}\n"
            f"Fix: {_remedy(tree, series)}"
        )
    if action == "check":
        return f"{name} applies to {tree.root}"
    tree.change(reverse=False, series=series)
    told = f"--site-packages {tree.root}" if tree.installed else tree.root
    return f"put {name} on {tree.root}; back: sglang-eagle3 patches revert {told}"


def _remedy(tree: Tree, series: Series) -> str:
    if tree.installed:
        return "install this release of SGLang anew"
    return f"on a fork, merge it: git am --keep-non-patch --3way {series.folder}/*.patch"


def _failed(action: str, problem: Exception, status: int) -> int:
    print(f"sglang-eagle3 patches {action}: {problem}", file=sys.stderr)
    return status


def list_patches(*, as_json: bool) -> int:
    """Print every runtime patch: its name, what it does, why, and when it can go."""
    from sglang_eagle3_patch.hooks import PATCHES

    if as_json:
        json.dump([_as_data(patch) for patch in PATCHES], sys.stdout, indent=1)
        print()
        return 0
    for patch in PATCHES:
        print(f"{patch.name}: {patch.title}")
        print(f"    why: {patch.reason}")
        print(f"    goes when: {patch.remove_when}")
        for hook in patch.hooks:
            print(f"    touches: {hook.path}")
    return 0


def _as_data(patch: Any) -> dict[str, Any]:
    data = {name: value for name, value in asdict(patch).items() if name != "hooks"}
    return {**data, "touches": [hook.path for hook in patch.hooks]}
