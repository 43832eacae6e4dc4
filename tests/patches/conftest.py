"""Trees of every release: what is pristine is fetched once, and each tree is built once."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.patches import trees, wheels

TreeOf = Callable[[str], Path]


@pytest.fixture(scope="session")
def pristine() -> dict[str, Path]:
    """Folders that hold each release's `sglang`."""
    return wheels.fetch_all()


@pytest.fixture(scope="session")
def pristine_tree(pristine: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> TreeOf:
    """Gives a repository of what the patches of a release touch, pristine: to be read alone."""

    @cache
    def tree_of(release: str) -> Path:
        folder = tmp_path_factory.mktemp("pristine")
        return trees.touched_files_only(release, pristine[release], folder)

    return tree_of


@pytest.fixture(scope="session")
def committed_tree(pristine_tree: TreeOf, tmp_path_factory: pytest.TempPathFactory) -> TreeOf:
    """Gives the same with the series as commits: to be read alone."""

    @cache
    def tree_of(release: str) -> Path:
        tree = tmp_path_factory.mktemp("committed") / "tree"
        shutil.copytree(pristine_tree(release), tree)
        files = map(str, trees.refresh.series(release))
        trees.git(tree, "am", "--quiet", "--keep-non-patch", *files)
        return tree

    return tree_of


@pytest.fixture(params=trees.refresh.releases())
def release(request: pytest.FixtureRequest) -> str:
    """Every release that has a series."""
    return str(request.param)


@pytest.fixture
def files(release: str) -> list[Path]:
    """The files of its series, in their order."""
    found: list[Path] = trees.refresh.series(release)
    return found


@pytest.fixture
def tree(release: str, pristine_tree: TreeOf, tmp_path: Path) -> Path:
    """A repository of what they touch, pristine."""
    return shutil.copytree(pristine_tree(release), tmp_path / "tree")
