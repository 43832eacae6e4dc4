"""What the patch files say of themselves, and that their tables say the same."""

from __future__ import annotations

import email
import re
from pathlib import Path

import pytest

from sglang_eagle3_patch.commands.patches_series import Series, all_series, touched_paths
from sglang_eagle3_patch.hooks import PATCHES
from tests.contract.releases import write
from tests.cpu_sglang import releases
from tests.patches.trees import OWN_TESTS, is_code, own_tests, refresh

SERIES = all_series()
BY_NAME = {patch.name: patch for patch in PATCHES}
each_series = pytest.mark.parametrize("series", SERIES, ids=lambda series: series.folder.name)


def header(file: Path, name: str) -> str:
    value = str(email.message_from_string(file.read_text(encoding="utf-8"))[name])
    return re.sub(r"\n\s*", " ", value)


def parts(file: Path) -> tuple[str, str]:
    """The message of a patch file, and what stands between its `---` and the first change."""
    before, _, after = file.read_text(encoding="utf-8").partition("\n---\n")
    return before.partition("\n\n")[2], after.partition("\ndiff --git ")[0]


def test_every_supported_release_has_one_series() -> None:
    assert refresh.releases() == list(releases.RELEASES)


@each_series
def test_the_series_lists_the_files_in_order(series: Series) -> None:
    assert list(series.files) == sorted(series.folder.glob("*.patch"))
    assert [int(file.name[:4]) for file in series.files] == list(range(1, len(series.files) + 1))
    assert series.folder.name == series.releases[-1]


# wrapper-capture is generic: upstream adds the methods to a class at a time; draft-rope corrects
# what trainers wrote; self-report tells of this package, startup-watch of how a start goes.
WITHOUT_A_FILE = {"wrapper-capture", "draft-rope", "self-report", "startup-watch"}


@pytest.mark.parametrize("release", refresh.releases())
def test_every_runtime_patch_has_its_file_and_every_file_its_patch(release: str) -> None:
    twins = [refresh.read_patch_file(file).runtime_patch for file in refresh.series(release)]
    on_pristine = write.read()[release]
    assert sorted(twins) == sorted(
        name
        for name, status in on_pristine.items()
        if status == "applied" and name not in WITHOUT_A_FILE
    )


PARTS = ("aux_capture", "draft_args", "draft_config", "draft_vocab", "fc_check")
ADDED = ("draft_weight_check", *(f"eagle3_{name}" for name in PARTS))


@each_series
class TestHeaders:
    def test_the_subject(self, series: Series) -> None:
        for file in series.files:
            subject = header(file, "Subject")
            assert re.fullmatch(r"\[PATCH\] \[Spec\] [A-Z][a-z]+ .*[^.]", subject)
            assert len(subject.removeprefix("[PATCH] ")) <= 75, file

    def test_the_message_says_how_it_was_verified(self, series: Series) -> None:
        for file in series.files:
            message, _ = parts(file)
            assert "\n\nVerified " in message, file
            assert all(len(line) <= 75 for line in message.splitlines()), file
            assert "Runtime-Patch" not in message, file

    def test_no_word_of_this_project_goes_upstream(self, series: Series) -> None:
        for file in series.files:
            _, _, changes = file.read_text(encoding="utf-8").partition("\ndiff --git ")
            for text in (parts(file)[0], changes):
                assert not re.search(r"eagle3.patch|SGLANG_EAGLE3|DraftError", text), file

    def test_all_files_have_one_author(self, series: Series) -> None:
        for file in series.files:
            assert re.fullmatch(r".+ <\S+@\S+>", header(file, "From")), file
            assert header(file, "From") == header(SERIES[0].files[0], "From"), file

    def test_the_commit_is_nobodys(self, series: Series) -> None:
        for file in series.files:
            first = f"From {'0' * 40} Mon Sep 17 00:00:00 2001\n"
            assert file.read_text(encoding="utf-8").startswith(first), file

    def test_the_block_that_git_am_drops(self, series: Series) -> None:
        for file in series.files:
            _, notes = parts(file)
            twin = BY_NAME[refresh.read_patch_file(file).runtime_patch]
            fields = dict(line.split(": ", 1) for line in notes.partition("\n\n")[0].splitlines())
            earlier = [f"{number:04}" for number in range(1, int(file.name[:4]))]
            assert set(fields.pop("Depends", "").split()) <= set(earlier), file
            bug = fields.pop("Bug", None)
            assert fields == {
                "Forwarded": "no",
                "Upstream-Status": "Pending",
                "Runtime-Patch": twin.name,
                "Remove-When": twin.remove_when,
            }
            if bug is None:
                assert twin.upstream.startswith("none: "), file
            else:
                assert bug == twin.upstream
                assert bug.startswith("https://github.com/sgl-project/sglang/"), file

    def test_only_the_package_and_its_tests_are_touched(self, series: Series) -> None:
        for file in series.files:
            paths = touched_paths(file)
            assert paths, file
            assert all(is_code(path) or path.startswith(OWN_TESTS) for path in paths), file

    def test_each_brings_its_tests(self, series: Series) -> None:
        assert [file for file in series.files if own_tests([file]) == 0] == []

    def test_what_is_added_is_the_series_own(self, series: Series) -> None:
        # A file that a release has moved must not come back where it was.
        for file in series.files:
            text = file.read_text(encoding="utf-8")
            added = re.findall(r"^diff --git a/(\S+) b/\S+\nnew file mode", text, re.MULTILINE)
            assert {path for path in added if is_code(path)} <= {
                f"python/sglang/srt/speculative/{name}.py" for name in ADDED
            }, file


def test_the_tables_are_the_files() -> None:
    readme = refresh.README.read_text(encoding="utf-8")
    assert refresh.with_tables(readme) == readme
    assert all(f"(sglang/{series.folder.name})" in readme for series in SERIES)
