"""A file that others read meanwhile is the old one or the new one."""

from __future__ import annotations

from pathlib import Path

import pytest

from sglang_eagle3_patch.whole_file import replacing


def test_readers_see_the_old_file_until_the_new_one_is_whole(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    file.write_bytes(b"old")
    with replacing(file) as stream:
        stream.write(b"new")
        stream.flush()
        assert file.read_bytes() == b"old"
    assert file.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [file]


def test_what_goes_wrong_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    file.write_bytes(b"old")
    with pytest.raises(TypeError), replacing(file) as stream:
        stream.writelines([b"ne", None])  # type: ignore[list-item]
    assert file.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [file]


def test_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), replacing(tmp_path / "gone" / "report.json"):
        pass
