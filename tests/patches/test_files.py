"""What the patch files say of themselves, and that their table says the same."""

from __future__ import annotations

import email
import re
from pathlib import Path

import pytest

from sglang_eagle3_patch.hooks import PATCHES
from tests.patches.trees import REPOSITORY, is_code, refresh, touched_paths

FILES = [file for release in refresh.releases() for file in refresh.series(release)]
IDS = [f"{file.parent.name}-{file.name[:4]}" for file in FILES]
BY_NAME = {patch.name: patch for patch in PATCHES}
each_file = pytest.mark.parametrize("file", FILES, ids=IDS)


def header(file: Path, name: str) -> str:
    value = str(email.message_from_string(file.read_text(encoding="utf-8"))[name])
    return re.sub(r"\n\s*", " ", value)


def parts(file: Path) -> tuple[str, str]:
    """The message of a patch file, and what stands between its `---` and the first change."""
    before, _, after = file.read_text(encoding="utf-8").partition("\n---\n")
    return before.partition("\n\n")[2], after.partition("\ndiff --git ")[0]


def test_the_releases() -> None:
    assert refresh.releases() == ["0.5.9", "0.5.23"]


@pytest.mark.parametrize("release", ["0.5.9", "0.5.23"])
def test_the_series_lists_the_files_in_order(release: str) -> None:
    listed = refresh.series(release)
    assert listed == sorted((refresh.SERIES_FOLDER / release).glob("*.patch"))
    assert [int(file.name[:4]) for file in listed] == list(range(1, len(listed) + 1))


# wrapper-capture is generic: upstream adds the methods to a class at a time; self-report tells of
# this package. The others change behaviour, and their files are still to be written.
WITHOUT_A_FILE = {"wrapper-capture", "self-report"}
TO_BE_WRITTEN = {"draft-forward", "embed-head", "load-paths", "draft-positions", "cpu-lengths"}


def test_every_runtime_patch_has_its_file() -> None:
    expected = set(BY_NAME) - WITHOUT_A_FILE - TO_BE_WRITTEN
    twins = {
        release: [refresh.read_patch_file(file).runtime_patch for file in refresh.series(release)]
        for release in refresh.releases()
    }
    assert sorted(twins["0.5.9"]) == sorted(expected)
    assert sorted(twins["0.5.23"]) == sorted(expected - {"kimi-capture"})
    assert {name for name, patch in BY_NAME.items() if not patch.patch_files} == (
        WITHOUT_A_FILE | TO_BE_WRITTEN
    )


@pytest.mark.parametrize("name", BY_NAME)
def test_a_runtime_patch_names_its_files(name: str) -> None:
    files = [
        str(file.relative_to(REPOSITORY))
        for file in FILES
        if refresh.read_patch_file(file).runtime_patch == name
    ]
    assert list(BY_NAME[name].patch_files) == files


@each_file
class TestHeader:
    def test_the_subject(self, file: Path) -> None:
        assert re.fullmatch(r"\[PATCH\] \[Spec\] [A-Z][a-z]+ .*[^.]", header(file, "Subject"))
        assert len(header(file, "Subject").removeprefix("[PATCH] ")) <= 75

    def test_the_message_says_how_it_was_verified(self, file: Path) -> None:
        message, _ = parts(file)
        assert "\n\nVerified " in message
        assert all(len(line) <= 75 for line in message.splitlines())
        assert "Runtime-Patch" not in message

    def test_no_word_of_this_project_goes_upstream(self, file: Path) -> None:
        _, _, changes = file.read_text(encoding="utf-8").partition("\ndiff --git ")
        for text in (parts(file)[0], changes):
            assert not re.search(r"eagle3.patch|SGLANG_EAGLE3|DraftError", text)

    def test_all_files_have_one_author(self, file: Path) -> None:
        assert re.fullmatch(r".+ <\S+@\S+>", header(file, "From"))
        assert header(file, "From") == header(FILES[0], "From")

    def test_the_commit_is_nobodys(self, file: Path) -> None:
        assert file.read_text().startswith(f"From {'0' * 40} Mon Sep 17 00:00:00 2001\n")

    def test_the_block_that_git_am_drops(self, file: Path) -> None:
        _, notes = parts(file)
        twin = BY_NAME[refresh.read_patch_file(file).runtime_patch]
        fields = dict(line.split(": ", 1) for line in notes.partition("\n\n")[0].splitlines())
        assert fields == {
            "Forwarded": "no",
            "Bug": twin.upstream,
            "Upstream-Status": "Pending",
            "Runtime-Patch": twin.name,
            "Remove-When": twin.remove_when,
        }
        assert fields["Bug"].startswith("https://github.com/sgl-project/sglang/")

    def test_only_the_package_and_its_tests_are_touched(self, file: Path) -> None:
        paths = touched_paths(file)
        assert paths
        assert all(is_code(path) or path.startswith("test/registered/unit/") for path in paths)


def test_the_table_is_the_files() -> None:
    readme = refresh.README.read_text(encoding="utf-8")
    assert refresh.with_table(readme) == readme
    assert all(f"sglang/{file.parent.name}/{file.name}" in readme for file in FILES)
