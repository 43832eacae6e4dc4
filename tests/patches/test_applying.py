"""The series on pristine releases: on, off, and as their runtime twins see them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.cpu_sglang import environments
from tests.cpu_sglang.environments import Environment
from tests.cpu_sglang.server import VARIABLE, process_variables
from tests.patches.trees import git, is_code, patched, refresh, touched_files_only, touched_paths

RELEASES = refresh.releases()


@pytest.fixture(scope="module", params=RELEASES)
def environment(request: pytest.FixtureRequest) -> Environment:
    return environments.ensure(request.param)


@pytest.fixture
def files(environment: Environment) -> list[Path]:
    paths: list[Path] = refresh.series(environment.release.version)
    return paths


@pytest.fixture
def tree(environment: Environment, tmp_path: Path) -> Path:
    return touched_files_only(environment, tmp_path)


def test_git_am_takes_the_series(tree: Path, files: list[Path]) -> None:
    git(tree, "am", "--keep-non-patch", *map(str, files))
    subjects = git(tree, "log", "--reverse", "--format=%s").splitlines()[1:]
    assert subjects == [refresh.read_patch_file(file).subject for file in files]
    messages = git(tree, "log", "--format=%B")
    assert "Runtime-Patch" not in messages
    assert "Upstream-Status" not in messages
    assert git(tree, "status", "--porcelain") == ""


def test_files_written_from_that_branch_are_the_same(tree: Path, files: list[Path]) -> None:
    git(tree, "am", "--keep-non-patch", *map(str, files))
    known = {file.subject: file.runtime_patch for file in map(refresh.read_patch_file, files)}
    written = dict(refresh.formatted(tree, known))
    assert written == {file.name: file.read_text(encoding="utf-8") for file in files}


def test_git_apply_takes_it_and_takes_it_back(tree: Path, files: list[Path]) -> None:
    for file in files:
        git(tree, "apply", "--check", str(file))
        git(tree, "apply", str(file))
    assert git(tree, "status", "--porcelain") != ""
    git(tree, "apply", "-R", *map(str, reversed(files)))
    assert git(tree, "status", "--porcelain") == ""


def test_every_patched_file_compiles(tree: Path, files: list[Path]) -> None:
    git(tree, "apply", *map(str, files))
    for path in {path for file in files for path in touched_paths(file)}:
        compile((tree / path).read_text(encoding="utf-8"), path, "exec")


def test_after_each_file_the_tree_compiles(tree: Path, files: list[Path]) -> None:
    for file in files:
        git(tree, "apply", str(file))
        for path in touched_paths(file):
            compile((tree / path).read_text(encoding="utf-8"), path, "exec")


def test_the_installed_package_can_be_patched(
    tree: Path, files: list[Path], tmp_path: Path
) -> None:
    # As the README says: in site-packages, which lacks `python/` and the tests.
    site_packages = tree / "python"
    (tree / ".git").rename(tmp_path / "elsewhere")
    git(site_packages, "apply", "-p2", "--include=sglang/*", *map(str, files))
    assert not (site_packages / "registered").exists()
    new = [path for file in files for path in touched_paths(file) if is_code(path)]
    assert all((tree / path).exists() for path in new)


# Imports every module that a hook touches, as far as the release has it, and says what became of
# the hooks. The start line of the installed package puts them in.
_STATUS = """
import importlib, json
import sglang
import sglang_eagle3_patch
from sglang_eagle3_patch.hooks import PATCHES
for name in sorted({hook.module for patch in PATCHES for hook in patch.hooks}):
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as missing:
        if not name.startswith(missing.name):
            raise
found = {
    patch.name: [patch.status, patch.detail, {hook.path: hook.status for hook in patch.hooks}]
    for patch in sglang_eagle3_patch.status()
}
print(json.dumps(found))
"""


def statuses(environment: Environment, folder: Path) -> dict[str, tuple[str, str, dict[str, str]]]:
    done = subprocess.run(
        [environment.python, "-W", "ignore", "-c", _STATUS],
        env=process_variables(environment, {VARIABLE: "1"}),
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, tuple[str, str, dict[str, str]]] = json.loads(done.stdout.splitlines()[-1])
    return found


def twins(environment: Environment) -> list[str]:
    files = refresh.series(environment.release.version)
    return [refresh.read_patch_file(file).runtime_patch for file in files]


def test_on_the_pristine_release_every_twin_is_applied(
    environment: Environment, tmp_path: Path
) -> None:
    found = statuses(environment, tmp_path)
    assert {name: found[name][:2] for name in twins(environment)} == {
        name: ["applied", ""] for name in twins(environment)
    }


def test_on_the_patched_tree_no_twin_is_needed(environment: Environment, tmp_path: Path) -> None:
    found = statuses(patched(environment, tmp_path / "patched"), tmp_path)
    assert {name: found[name][0] for name in twins(environment)} == dict.fromkeys(
        twins(environment), "not-needed"
    ), found
    for name in twins(environment):
        assert set(found[name][2].values()) <= {"not-needed", "waiting"}
    assert found["wrapper-capture"][0] == "applied"
