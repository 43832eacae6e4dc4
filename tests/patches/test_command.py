"""`sglang-eagle3 patches apply|check|revert` on real files of the oldest and newest release."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from sglang_eagle3_patch import cli
from sglang_eagle3_patch.commands.patches_series import touched_paths
from tests.cpu_sglang import releases
from tests.patches.trees import git, refresh

on_both_ends = pytest.mark.parametrize("release", ["0.5.9", "0.5.23"])


@pytest.fixture
def release() -> str:
    return releases.DEFAULT


def run(*arguments: str | Path) -> int:
    return cli.main(["patches", *map(str, arguments)])


def changed(tree: Path) -> bool:
    return git(tree, "status", "--porcelain") != ""


@on_both_ends
def test_on_and_off(tree: Path, release: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("check", tree) == 0
    assert f"the series for SGLang {release}" in capsys.readouterr().out
    assert not changed(tree)
    assert run("apply", tree) == 0
    assert (tree / "python/sglang/srt/speculative/draft_weight_check.py").exists()
    assert (tree / "test/registered/unit/spec/test_draft_weight_check.py").exists()
    assert run("check", tree) == 0
    assert "is applied to" in capsys.readouterr().out
    assert run("revert", tree) == 0
    assert not changed(tree)
    assert run("revert", tree) == 1
    assert "is not applied to" in capsys.readouterr().err


def test_twice_is_refused(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("apply", tree) == 0
    assert run("apply", tree) == 1
    assert "is applied to" in capsys.readouterr().err


def test_the_tag_tells_the_release_before_the_file(tree: Path) -> None:
    (tree / "python/sglang/_version.py").write_text("version = '0.0.0.dev3'\n")
    git(tree, "commit", "-q", "-a", "-m", "a fork")
    assert run("apply", tree) == 2
    git(tree, "tag", "v0.5.14", "HEAD~")
    assert run("apply", tree) == 1  # files of another release
    git(tree, "tag", "-d", "v0.5.14")
    assert not changed(tree)


def test_a_version_file_that_is_no_text_tells_nothing(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tree / "python/sglang/_version.py").write_bytes(b"\xff\xfe\xe4")
    assert run("apply", tree) == 2
    assert "neither a tag nor _version.py tells" in capsys.readouterr().err


def test_a_fork_can_be_named(tree: Path, release: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tree / "python/sglang/_version.py").unlink()
    git(tree, "commit", "-q", "-a", "-m", "a fork")
    assert run("apply", tree) == 2
    assert "--release 0.5.23" in capsys.readouterr().err
    assert run("apply", "--release", "0.5.8", tree) == 2
    assert "there is no series for SGLang 0.5.8, only for 0.5.9, " in capsys.readouterr().err
    assert run("apply", "--release", f"v{release}", tree) == 0


def test_a_dirty_tree_is_refused(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with (tree / "python/sglang/_version.py").open("a") as file:
        file.write("# mine\n")
    before = git(tree, "status", "--porcelain")
    for action in ("check", "apply"):
        assert run(action, tree) == 1
        assert "has uncommitted changes" in capsys.readouterr().err
    assert git(tree, "status", "--porcelain") == before


def test_a_checkout_that_git_does_not_read_is_refused(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # As one that another user owns.
    (tree / ".git/HEAD").write_text("nothing\n")
    assert run("apply", tree) == 1
    assert "has changes, git can't tell: fatal: not a git repository" in capsys.readouterr().err


def test_no_tree_is_refused(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tree / "python/sglang/srt/models/llama_eagle3.py"
    for path in (tree / "python/sglang/srt", model, tree / "nowhere"):
        assert run("apply", path) == 2
        assert "is no tree of SGLang" in capsys.readouterr().err


def test_a_link_to_a_tree_is_the_tree(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tree)
    assert run("apply", tmp_path / "link") == 0
    assert changed(tree)
    assert run("revert", tmp_path / "link") == 0
    assert not changed(tree)


@pytest.mark.parametrize("linked", ["sglang", "sglang/srt/models/llama_eagle3.py"])
def test_what_lies_behind_a_link_is_not_touched(
    tree: Path, linked: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # An installed package may be links to a checkout, or to the cache that the installer keeps.
    installed = shutil.copytree(tree / "python", tmp_path / "site-packages")
    if (installed / linked).is_dir():
        shutil.rmtree(installed / linked)
    (installed / linked).unlink(missing_ok=True)
    (installed / linked).symlink_to(tree / "python" / linked)
    assert run("apply", "--site-packages", installed) == 1
    assert "by a symbolic link, and others may use it too" in capsys.readouterr().err
    assert not changed(tree)
    assert (installed / linked).is_symlink()


@on_both_ends
@pytest.mark.parametrize("inside", [".", "sglang"])
def test_an_installed_package_must_be_meant(
    tree: Path, inside: str, capsys: pytest.CaptureFixture[str]
) -> None:
    # A virtual environment within a repository: git would look for the paths from its root.
    installed = tree / "python" / inside
    assert run("apply", installed) == 2
    assert "--site-packages" in capsys.readouterr().err
    assert not changed(tree)
    assert run("check", installed) == 0
    assert run("apply", "--site-packages", installed) == 0
    assert (tree / "python/sglang/srt/speculative/draft_weight_check.py").exists()
    assert not (tree / "python/registered").exists()
    assert run("revert", "--site-packages", installed) == 0
    assert not changed(tree)


def test_a_copy_of_the_package_does_not_stand_for_it(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    installed = tree / "python"
    backup = shutil.copytree(installed / "sglang", installed / "sglang_backup")
    for action in ("apply", "check", "revert"):
        assert run(action, "--site-packages", backup) == 2
        assert f"{backup} is no tree of SGLang" in capsys.readouterr().err
    assert git(tree, "diff", "--stat") == ""


def test_the_modes_of_files_stay(tree: Path) -> None:
    model = tree / "python/sglang/srt/models/llama_eagle3.py"
    added = tree / "python/sglang/srt/speculative/draft_weight_check.py"
    model.chmod(0o640)
    before = os.umask(0o077)
    try:
        assert run("apply", tree) == 0
        assert added.stat().st_mode & 0o777 == 0o644
        assert model.stat().st_mode & 0o777 == 0o640
        assert run("revert", tree) == 0
    finally:
        os.umask(before)
    assert model.stat().st_mode & 0o777 == 0o640


def test_the_users_git_settings_do_not_steer_it(
    tree: Path, release: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".gitconfig").write_text("[core]\n\tautocrlf = true\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    shutil.rmtree(tree / ".git")
    assert run("apply", tree) == 0
    paths = {path for file in refresh.series(release) for path in touched_paths(file)}
    assert not [path for path in paths if b"\r" in (tree / path).read_bytes()]
    assert run("revert", tree) == 0


def test_one_file_that_does_not_fit_leaves_all_as_they_were(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tree / "python/sglang/srt/models/llama_eagle3.py"
    model.write_text(model.read_text().replace("hidden_norm", "other_norm"))
    git(tree, "commit", "-q", "-a", "-m", "a fork")
    assert run("apply", tree) == 1
    told = capsys.readouterr().err
    assert "error: patch failed: python/sglang/srt/models/llama_eagle3.py" in told
    assert "git am --keep-non-patch --3way" in told
    assert not changed(tree)


def test_a_tree_with_some_of_the_files_is_left_so(
    tree: Path, release: str, capsys: pytest.CaptureFixture[str]
) -> None:
    git(tree, "apply", *map(str, refresh.series(release)[:3]))
    git(tree, "add", "-A")
    git(tree, "commit", "-q", "-m", "three of them")
    for action in ("check", "apply"):
        assert run(action, tree) == 1
        assert "nothing of it is changed" in capsys.readouterr().err
    assert run("revert", tree) == 1
    assert not changed(tree)


@pytest.mark.parametrize("action", ["apply", "revert"])
def test_a_failure_midway_is_taken_back(
    tree: Path, action: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if action == "revert":
        assert run("apply", tree) == 0
        git(tree, "add", "-A")
        git(tree, "commit", "-q", "-m", "patched")
    real, into_the_tree = Path.rename, []

    def fails_once(self: Path, target: Path) -> Path:
        if target.is_relative_to(tree / "python"):
            into_the_tree.append(target)
            if len(into_the_tree) == 3:
                raise OSError(errno.EIO, "Input/output error")
        return real(self, target)

    monkeypatch.setattr(Path, "rename", fails_once)
    assert run(action, tree) == 1
    assert "Input/output error" in capsys.readouterr().err
    assert len(into_the_tree) > 3
    assert not changed(tree)


def test_a_full_disk_leaves_the_tree_as_it_was(tree: Path) -> None:
    # A limit of the size of a file stands for it: git and Python fail to write as they do then.
    run_main = "import sys; from sglang_eagle3_patch.cli import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", run_main, "patches", "apply", tree],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000)),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "sglang-eagle3 patches apply: [Errno 27] File too large" in done.stderr
    assert not changed(tree)


def test_a_tree_that_may_not_be_written_to(
    tree: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = tempfile.TemporaryDirectory

    # Said by the test, since root may write everywhere.
    def refused(**how: Any) -> tempfile.TemporaryDirectory[str]:
        if how.get("dir") == tree:
            raise PermissionError(errno.EACCES, "Permission denied", str(tree))
        return real(**how)

    monkeypatch.setattr(tempfile, "TemporaryDirectory", refused)
    assert run("check", tree) == 0
    assert run("apply", tree) == 1
    assert f"Permission denied: '{tree}'" in capsys.readouterr().err
    assert not changed(tree)


def test_without_git(
    tree: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(tree / ".git")
    monkeypatch.setitem(os.environ, "PATH", "/nowhere")
    assert run("apply", tree) == 1
    assert "is not installed. Fix: install git" in capsys.readouterr().err


def test_a_tree_without_git_history(tree: Path) -> None:
    shutil.rmtree(tree / ".git")
    assert run("apply", tree) == 0
    assert (tree / "test/registered/unit/spec/test_draft_weight_check.py").exists()
    assert run("revert", tree) == 0
