"""The README's tables, made from the code and from kept results: `python -m tests.readme` writes.

What stands between `<!-- NAME: begin -->` and `<!-- NAME: end -->` is one table; a test compares.
"""

from __future__ import annotations

from pathlib import Path

from sglang_eagle3_patch.hooks import PATCHES
from sglang_eagle3_patch.settings import VARIABLES
from tests.server import matrix

README = Path(__file__).parents[1] / "README.md"


def tables() -> dict[str, list[str]]:
    """Return each table's lines by its name."""
    return {
        "variables": [
            "| variable | default | meaning |",
            "|---|---|---|",
            *(f"| `{v.name}` | {v.default} | {v.meaning} |" for v in VARIABLES),
        ],
        "patches": [
            "| patch | what it does |",
            "|---|---|",
            *(f"| `{patch.name}` | {patch.title} |" for patch in PATCHES),
        ],
        "support": matrix.support_table(),
    }


def filled(text: str) -> str:
    """Return the README's text with every table as it must be.

    Raises ValueError for a table that the text has no place for.
    """
    for name, lines in tables().items():
        begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"
        if text.count(begin) != 1 or text.count(end) != 1:
            raise ValueError(f"README.md has not one place for the table {name}")
        before, rest = text.split(begin)
        _, after = rest.split(end)
        text = "".join((before, begin, *(f"{line}\n" for line in lines), end, after))
    return text


if __name__ == "__main__":
    README.write_text(filled(README.read_text(encoding="utf-8")), encoding="utf-8")
