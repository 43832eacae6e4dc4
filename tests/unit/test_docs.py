"""Tables that exist twice are compared."""

from __future__ import annotations

from pathlib import Path

from sglang_eagle3_patch.hooks import PATCHES
from sglang_eagle3_patch.settings import VARIABLES

REPOSITORY = Path(__file__).parents[2]


def rows_of(table: str) -> list[list[str]]:
    """The cells of the README's rows between the two markers of a table."""
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    inside = text.split(f"<!-- {table}: begin")[1].split(f"<!-- {table}: end")[0]
    lines = inside.splitlines()[1:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line]


def test_the_patches_of_the_readme_are_those_of_the_code() -> None:
    assert rows_of("patches") == [[f"`{patch.name}`", patch.title] for patch in PATCHES]


def test_the_variables_of_the_readme_are_those_of_the_code() -> None:
    assert rows_of("variables") == [[f"`{v.name}`", v.default, v.meaning] for v in VARIABLES]


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
