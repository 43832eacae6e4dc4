"""Writes `docs/rules.md` from the rules' docstrings: `python -m …checkpoint.rules.document`.

A test compares the two.
"""

from __future__ import annotations

import sys
from pathlib import Path

from sglang_eagle3_patch.checkpoint.rules import RULES, SUBJECTS

FILE = "docs/rules.md"
_HEAD = """# What `sglang-eagle3 doctor` looks at

Each finding has an id of this page. A rule says `ok`, `wrong` or `unknown`, and what comes of it on
stock SGLang and with the plugin: it serves as trained, it serves other numbers (degraded), or it
refuses to start. An error that the plugin mends is shown as `fixable`.
"""


def link(rule_id: str) -> str:
    """Return where a rule is explained, relative to the repository."""
    return f"{FILE}#{rule_id.lower()}"


def page() -> str:
    """Return the page: a section per subject, an entry per rule."""
    parts = [_HEAD]
    for subject in SUBJECTS:
        title = (subject.__doc__ or "").splitlines()[0].removeprefix("Rules about ").rstrip(".")
        parts.append(f"\n## {title[0].upper()}{title[1:]}\n")
        for rule in RULES.values():
            if rule.answer.__module__ == subject.__name__:
                what, cause, remedy = rule.explanation
                parts.append(
                    f"\n### {rule.id}\n\n{what} ({rule.severity})\n\n"
                    f"- **Cause**: {cause}\n- **Remedy**: {remedy}\n"
                )
    return "".join(parts)


if __name__ == "__main__":
    target = Path(sys.argv[1] if len(sys.argv) > 1 else FILE)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(page(), encoding="utf-8")
