"""Trees of SGLang as the patch files see them: `sglang` below `python`, pristine and patched."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Sequence
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

from sglang_eagle3_patch.commands.patches_series import touched_paths
from tests.cpu_sglang.environments import Environment

REPOSITORY = Path(__file__).parents[2]
# Where SGLang keeps tests that need no server.
OWN_TESTS = "test/registered/unit/"


def _load_refresh() -> ModuleType:
    loader = SourceFileLoader("patches_refresh", str(REPOSITORY / "patches/refresh"))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


# Twins whose file does a part of what they do, so that they go in on a patched tree too: that of
# `acceptance` brings the line of the log, not the trace, the metrics and the alarm.
PARTLY = frozenset({"acceptance"})

# The script that writes the patch files; what it knows of them is not told twice.
refresh = _load_refresh()


def twins_beside(release: str) -> dict[str, str]:
    """Return what each runtime twin of the release's files reports on a tree that has them all."""
    twins = (refresh.read_patch_file(file).runtime_patch for file in refresh.series(release))
    return {name: "applied" if name in PARTLY else "not-needed" for name in twins}


def pristine_package(environment: Environment) -> Path:
    """Return the folder of the `sglang` that `environment` imports."""
    if environment.overlays:
        return environment.overlays[0] / "sglang"
    (package,) = environment.python.parents[1].glob("lib/python*/site-packages/sglang")
    return package


def touched_files_only(release: str, site_packages: Path, folder: Path) -> Path:
    """Return a git repository below `folder` of just those pristine files that patches touch, and
    of the one that tells the release; `site_packages` holds the release's `sglang`."""
    tree = folder / "tree"
    touched = {path for file in refresh.series(release) for path in touched_paths(file)}
    for path in {*filter(is_code, touched), "python/sglang/_version.py"}:
        source = site_packages / path.removeprefix("python/")
        if source.exists():
            (tree / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, tree / path)
    git(tree, "init", "-q", "--template=")
    git(tree, "add", "-A", "--force")
    git(tree, "commit", "-q", "-m", "pristine")
    return tree


def with_what_it_needs(file: Path) -> list[Path]:
    """Return those files of its series that a patch file names, in their order, and the file."""
    needed = refresh.read_patch_file(file).depends
    return [*(other for other in sorted(file.parent.iterdir()) if other.name[:4] in needed), file]


def own_tests(files: Sequence[Path]) -> int:
    """Return how many tests these patch files add."""
    texts = (file.read_text(encoding="utf-8") for file in files)
    return sum(len(re.findall(r"^\+    def test_", text, re.MULTILINE)) for text in texts)


def is_code(path: str) -> bool:
    """Whether a path of a patch lies in the package; tests are no part of a wheel."""
    return path.startswith("python/sglang/")


def patched(environment: Environment, folder: Path, files: Sequence[Path]) -> Environment:
    """Return `environment` with its release, patched by `files` and built below `folder`, first."""
    python = folder / "python"
    shutil.copytree(
        pristine_package(environment),
        python / "sglang",
        copy_function=_link_or_copy,
        ignore=shutil.ignore_patterns(".git"),
    )
    # Patched files are written anew, so that the linked original stays as it is.
    git(folder, "init", "-q", "--template=")
    git(folder, "apply", *map(str, files))
    return dataclasses.replace(environment, overlays=(python, *environment.overlays))


_building = threading.Lock()


def patched_once(environment: Environment, folder: Path) -> Environment:
    """As `patched` by the whole series, but built below `folder` only when it isn't there yet;
    threads may share it."""
    whole = folder / environment.release.version
    with _building:
        if not whole.exists():
            return patched(environment, whole, refresh.series(environment.release.version))
    return dataclasses.replace(environment, overlays=(whole / "python", *environment.overlays))


def git(tree: Path, *arguments: str) -> str:
    """Run git in `tree`, untouched by the caller's own settings, and return what it says."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith("GIT_")}
    done = subprocess.run(
        ["git", "-c", "user.name=Tester", "-c", "user.email=tester@example.org", *arguments],
        cwd=tree,
        env={**kept, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"git {' '.join(arguments)}: {done.stderr}"
    return done.stdout


def _link_or_copy(source: str, target: str) -> None:
    with contextlib.suppress(OSError):
        os.link(source, target)
        return
    shutil.copy2(source, target)
