"""A tree of SGLang's source that a series is put on, checked against, or taken from, by git.

All files of a series go in or none does: git patches copies of what they touch, beside the tree's
own files, and the copies are moved into place once all are there.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sglang_eagle3_patch.commands.patches_series import (
    Series,
    all_series,
    series_for,
    touched_paths,
)

_RELEASE = re.compile(r"\d+\.\d+\.\d+(\.post\d+)?")
# `git apply` would write other line ends, or overlook spaces, as the user's settings have it.
_NO_SETTINGS = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}


class CannotPatch(RuntimeError):
    """The tree can't be patched as asked; the text names what is wrong and one thing to do."""


@dataclass(frozen=True)
class Tree:
    """A source tree. `root`: where git runs, the checkout or the folder that holds `sglang/`."""

    root: Path
    installed: bool

    @classmethod
    def at(cls, path: Path) -> Tree:
        """Find the tree that `path` names: a checkout, a folder that holds an installed `sglang`,
        or that package itself. Raises `CannotPatch` for anything else."""
        path = path.resolve()
        candidates = [cls(path, installed=False), cls(path, installed=True)]
        if path.name == "sglang":  # a copy of another name would stand for its neighbour
            candidates.append(cls(path.parent, installed=True))
        for tree in candidates:
            if (tree.package / "srt").is_dir():
                return tree
        raise CannotPatch(
            f"{path} is no tree of SGLang. Fix: name the checkout, which holds python/sglang/srt, "
            "or the site-packages folder, which holds sglang/srt"
        )

    @property
    def package(self) -> Path:
        """The folder of the package `sglang`."""
        return self.root / ("sglang" if self.installed else "python/sglang")

    def release(self) -> str:
        """Return the release this tree is of, by its nearest tag or its `_version.py`.

        Raises `CannotPatch` when neither names one.
        """
        if not self.installed and (self.root / ".git").exists():
            described = self.git("describe", "--tags", "--match", "v[0-9]*", "--abbrev=0")
            if described.returncode == 0:
                return described.stdout.strip().removeprefix("v")
        file = self.package / "_version.py"
        text = file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""
        for version in re.findall(r"'(.+?)'", text):
            if _RELEASE.fullmatch(version):
                return str(version)
        raise CannotPatch(
            f"which release {self.root} is, neither a tag nor {file.name} tells. "
            "Fix: say so, e.g. --release 0.5.23"
        )

    def is_dirty(self) -> bool:
        """Whether tracked files of a git checkout have changes. Raises `CannotPatch` when git
        does not tell, e.g. of a checkout that another user owns."""
        if self.installed or not (self.root / ".git").exists():
            return False
        said = self.git("status", "--porcelain", "--untracked-files=no")
        if said.returncode:
            raise CannotPatch(f"whether {self.root} has changes, git can't tell: {said.stderr}")
        return said.stdout != ""

    def would(self, *, reverse: bool, series: Series) -> str:
        """Return why the series can't be put on, or taken off in reverse; "" if it can."""
        # `git apply --check` knows nothing of what an earlier file of the series adds.
        with tempfile.TemporaryDirectory(prefix="sglang-eagle3-patches-") as folder:
            return self._patch_copies(Path(folder), reverse=reverse, series=series)

    def change(self, *, reverse: bool, series: Series) -> None:
        """Put the series on, or take it off. Raises `CannotPatch` or OSError, with the tree as it
        was."""
        # In the tree, so that moving a file there or back takes no space and can't stop half-way.
        with tempfile.TemporaryDirectory(prefix=".sglang-eagle3-", dir=self.root) as folder:
            patched, kept = Path(folder) / "patched", Path(folder) / "kept"
            problem = self._patch_copies(patched, reverse=reverse, series=series)
            if problem:
                raise CannotPatch(problem)
            self._exchange(self._targets(series), patched, kept)

    def _patch_copies(self, folder: Path, *, reverse: bool, series: Series) -> str:
        """Patch copies of what the series touches, in `folder`; return why not, or ""."""
        copy = Tree(folder, self.installed)
        for path in self._targets(series):
            source = self.root / path
            if source.resolve() != source:
                raise CannotPatch(
                    f"{source} is {source.resolve()}, by a symbolic link, and others may use it "
                    "too. Fix: name a tree that has files of its own"
                )
            (copy.root / path).parent.mkdir(parents=True, exist_ok=True)
            if source.exists():
                shutil.copy2(source, copy.root / path)
        # In site-packages there is no `python/`, and none of the tests.
        options = ["-p2", "--include=sglang/*"] if self.installed else []
        options += ["--reverse"] if reverse else []
        for file in reversed(series.files) if reverse else series.files:
            done = copy.git("apply", "--whitespace=nowarn", *options, str(file), **_NO_SETTINGS)
            if done.returncode:
                return f"{file.name}: {done.stderr.strip() or f'git exits {done.returncode}'}"
        self._set_modes(copy, series)
        return ""

    def _set_modes(self, copy: Tree, series: Series) -> None:
        """Give the patched files the modes of the tree's own: git goes by the umask."""
        for path in self._targets(series):
            source, patched = self.root / path, copy.root / path
            if patched.exists() and source.exists():
                shutil.copymode(source, patched)
            elif patched.exists():
                patched.chmod(0o644)

    def _exchange(self, paths: Sequence[str], patched: Path, kept: Path) -> None:
        """Move the tree's own files to `kept` and those of `patched` in their place; back again
        if that fails."""
        moved: list[tuple[Path, Path]] = []

        def move(source: Path, target: Path) -> None:
            if source.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                source.rename(target)
                moved.append((source, target))

        try:
            for path in paths:
                move(self.root / path, kept / path)
                move(patched / path, self.root / path)
        except BaseException:
            for source, target in reversed(moved):
                target.rename(source)
            raise
        finally:
            for path in paths:
                self._remove_empty_folders(path)

    def _remove_empty_folders(self, path: str) -> None:
        """Remove what is empty of the folders around a path, as git does."""
        with contextlib.suppress(OSError):  # the first that isn't empty
            for folder in list(Path(path).parents)[:-1]:
                (self.root / folder).rmdir()

    def git(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run git in the tree, with these environment variables. A repository that the tree only
        lies in is none of our business: `git apply` would skip every path outside of it."""
        kept = {name: text for name, text in os.environ.items() if not name.startswith("GIT_")}
        try:
            return subprocess.run(
                ["git", "-C", str(self.root), *arguments],
                env={
                    **kept,
                    "GIT_CEILING_DIRECTORIES": str(self.root.parent),
                    "LC_ALL": "C",
                    **variables,
                },
                capture_output=True,
                text=True,
            )
        except FileNotFoundError as missing:
            raise CannotPatch(
                "git applies the patches, and is not installed. Fix: install git"
            ) from missing

    def _targets(self, series: Series) -> list[str]:
        """Return what the series changes or adds, relative to the root."""
        paths = sorted({path for file in series.files for path in touched_paths(file)})
        if not self.installed:
            return paths
        inside = [path for path in paths if path.startswith("python/sglang/")]
        return [path.removeprefix("python/") for path in inside]


def series_of(tree: Tree, release: str | None) -> Series:
    """Return the series for the tree, whose release may be told. Raises `CannotPatch`."""
    release = release.removeprefix("v") if release else tree.release()
    series = series_for(release)
    if series is None:
        known = ", ".join(name for found in all_series() for name in found.releases)
        raise CannotPatch(
            f"there is no series for SGLang {release}, only for {known or 'nothing'}. Fix: for a "
            "fork of one of these, name it with --release"
        )
    return series
