"""Tables that exist twice are compared."""

from __future__ import annotations

from pathlib import Path

from sglang_eagle3_patch.hooks import PATCHES
from tests import readme

REPOSITORY = Path(__file__).parents[2]


def test_the_tables_of_the_readme_are_up_to_date() -> None:
    text = readme.README.read_text(encoding="utf-8")
    assert text == readme.filled(text), "write them anew: ./launch.sh run -- python -m tests.readme"


def test_the_start_line_in_the_readme_is_the_one_shipped() -> None:
    line = (REPOSITORY / "startup" / "sglang_eagle3_patch.pth").read_text(encoding="ascii")
    assert line in (REPOSITORY / "README.md").read_text(encoding="utf-8")


def test_every_patch_file_says_why_where_how_and_when_it_can_go() -> None:
    from sglang_eagle3_patch import hooks

    for patch in PATCHES:
        module = getattr(hooks, patch.name.replace("-", "_"))
        assert module.__doc__ is not None
        assert module.__doc__.startswith(f"{patch.name}: ")
        for part in ("Why: ", "Where: ", "How: ", "When it can go: "):
            assert part in module.__doc__
