"""The series on the pristine files of every release: on, off, and in SGLang's own form."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from sglang_eagle3_patch.commands.patches_series import all_series, touched_paths
from tests.cpu_sglang import releases
from tests.cpu_sglang.releases import WHOLE
from tests.patches.conftest import TreeOf
from tests.patches.trees import git, is_code, refresh, with_what_it_needs

# Writing a series takes seconds: each file is tried without each other one.
ENDS = [refresh.releases()[0], refresh.releases()[-1]]
WRITTEN = [series.folder.name for series in all_series()] if WHOLE else ENDS
NEWEST = refresh.series(releases.DEFAULT)
FORM = ["--isolated", "--no-cache", "--line-length", "88"]
IMPORTS = ["--config", 'lint.isort.known-first-party=["sglang"]']


def test_git_am_takes_the_series(release: str, files: list[Path], committed_tree: TreeOf) -> None:
    tree = committed_tree(release)
    subjects = git(tree, "log", "--reverse", "--format=%s").splitlines()[1:]
    assert subjects == [refresh.read_patch_file(file).subject for file in files]
    messages = git(tree, "log", "--format=%B")
    assert "Runtime-Patch" not in messages
    assert "Upstream-Status" not in messages
    assert git(tree, "status", "--porcelain") == ""


@pytest.mark.parametrize("release", WRITTEN)
def test_files_written_from_that_branch_are_the_same(
    release: str, files: list[Path], committed_tree: TreeOf
) -> None:
    known = {file.subject: file.runtime_patch for file in map(refresh.read_patch_file, files)}
    written = dict(refresh.formatted(committed_tree(release), known))
    assert written == {file.name: file.read_text(encoding="utf-8") for file in files}


def test_git_apply_takes_it_and_takes_it_back(tree: Path, files: list[Path]) -> None:
    # git knows no fuzz: every line of context must be there, at whatever offset.
    git(tree, "apply", *map(str, files))
    assert git(tree, "status", "--porcelain") != ""
    git(tree, "apply", "-R", *map(str, reversed(files)))
    assert git(tree, "status", "--porcelain") == ""


@pytest.mark.parametrize("file", NEWEST, ids=[file.name[:4] for file in NEWEST])
def test_each_file_of_the_newest_series_applies_with_what_it_names(
    file: Path, pristine_tree: TreeOf, tmp_path: Path
) -> None:
    tree = shutil.copytree(pristine_tree(releases.DEFAULT), tmp_path / "tree")
    needed = with_what_it_needs(file)
    git(tree, "apply", *map(str, needed))
    for path in {path for needed_file in needed for path in touched_paths(needed_file)}:
        compile((tree / path).read_text(encoding="utf-8"), path, "exec")


@pytest.fixture
def steps(tree: Path, files: list[Path], tmp_path: Path) -> Path:
    """A folder with what each file touches, `before` and `after` it, all it follows applied."""
    for file in files:
        paths = touched_paths(file)
        _copy(tree, paths, tmp_path / "steps/before" / file.stem)
        git(tree, "apply", str(file))
        _copy(tree, paths, tmp_path / "steps/after" / file.stem)
    return tmp_path / "steps"


def _copy(tree: Path, paths: list[str], folder: Path) -> None:
    for path in paths:
        if (tree / path).exists():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(tree / path, folder / path)


def ruff(folder: Path, *arguments: str) -> list[str]:
    done = subprocess.run(["ruff", *arguments, "."], cwd=folder, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stderr
    return done.stdout.splitlines()


def lint(folder: Path) -> set[str]:
    """What ruff says of names that are missing or not needed and of the order of imports, without
    places: those move."""
    rules = ["--select", "F821,F811,F401,I", *IMPORTS, "--output-format", "concise"]
    found = ruff(folder, "check", *FORM, *rules)
    return {re.sub(r":\d+:\d+:", ":", line) for line in found if ".py:" in line}


def misformatted(folder: Path) -> dict[str, set[str]]:
    """The lines that ruff would format otherwise, by their file."""
    found: dict[str, set[str]] = defaultdict(set)
    path = ""
    for line in ruff(folder, "format", "--diff", *FORM):
        if line.startswith("--- "):
            path = line.removeprefix("--- ")
        elif line.startswith("-"):
            found[path].add(line)
    return found


def test_what_is_touched_stays_in_sglangs_form(steps: Path) -> None:
    # black and isort formatted SGLang up to 0.5.19, ruff does since. What is theirs alone may
    # stay; a line that a patch has written may not differ, whoever formats it.
    assert lint(steps / "after") <= lint(steps / "before")
    before = misformatted(steps / "before")
    for path, lines in misformatted(steps / "after").items():
        assert lines <= before[path], path


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


def run_refresh(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    script = [sys.executable, str(refresh.PATCHES_FOLDER / "refresh")]
    return subprocess.run([*script, *arguments], capture_output=True, text=True)


@pytest.mark.parametrize("release", ["0.5.22"])
def test_a_series_is_put_onto_another_release(tree: Path, committed_tree: TreeOf) -> None:
    done = run_refresh("--from", committed_tree(releases.DEFAULT), tree)
    assert done.returncode == 0, done.stderr
    assert git(tree, "log", "--format=%s").splitlines()[:-1] == [
        refresh.read_patch_file(file).subject for file in reversed(refresh.series("0.5.22"))
    ]


@pytest.mark.parametrize("release", ["0.5.17"])
def test_a_conflict_is_shown_and_left(tree: Path, committed_tree: TreeOf) -> None:
    newest = committed_tree(releases.DEFAULT)
    done = run_refresh("--from", newest, tree)
    assert done.returncode == 1
    assert "in conflict: python/sglang/srt/" in done.stderr
    assert "UU python/sglang/srt/" in git(tree, "status", "--porcelain")
    done = run_refresh("--from", newest, tree)
    assert "is not at its root commit, or has changes" in done.stderr
    # Nor is a series written from it, or from a tree without patches.
    done = run_refresh("0.5.17", tree)
    assert "has changes, or no commit after its root: nothing is written" in done.stderr
    git(tree, "cherry-pick", "--abort")
    assert "nothing is written" in run_refresh("0.5.17", tree).stderr
