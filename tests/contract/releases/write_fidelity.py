"""The table of which drafts come out right where: `fidelity.json`, and as text `docs/fidelity.md`.

    python -m tests.contract.releases.write_fidelity

makes the text anew; `write` examines the releases and writes both.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.contract.releases.fidelity import OTHER, PARITY, REFUSED
from tests.contract.releases.fidelity_cells import NOBODY, REFERENCE, TRAINER, cells
from tests.contract.releases.run import ALL_RELEASES

RESULTS = Path(__file__).parent / "fidelity.json"
TEXT = Path(__file__).parents[3] / "docs" / "fidelity.md"
# cell -> "plugin" or "stock" -> outcome -> releases
Results = dict[str, dict[str, dict[str, list[str]]]]

_HEADER = f"""\
# Fidelity

Does SGLang's own draft class compute what the trainer computed? For each row a small draft is
written as its producer writes it, loaded by the release's own reader of configs, class and loader,
and its logits over three draft steps are compared. This file is written by
`python -m tests.contract.releases.write`; tests compare it with what each release does.

- *{PARITY}*: every logit within 1e-4 of the logit scale, the best token the same in every row.
- *{OTHER}*: it loads, and computes something else without a word.
- *refused*: it does not load, for the reason of that number below.

Judged by: {TRAINER} (logits that the real library computed), {REFERENCE} (plain torch, which agrees
with those), or {NOBODY}: a draft that can only be refused. *Stock* is SGLang without the plugin;
speculators' drafts are given to it with their config and names translated, or it would read none.

Releases examined: RELEASES.

| producer | layers named | draft | judged by | with the plugin | stock |
|---|---|---|---|---|---|
"""


def read() -> Results:
    """Return the committed results."""
    results: Results = json.loads(RESULTS.read_text(encoding="utf-8"))
    return results


def outcome(results: Results, cell: str, kind: str, release: str) -> str:
    """Return what became of a cell in a release, "" where the results lack it."""
    found = results.get(cell, {}).get(kind, {})
    return next((what for what, releases in found.items() if release in releases), "")


def examined(results: Results) -> list[str]:
    """Return the releases that the results are of, in order."""
    found = {
        release
        for kinds in results.values()
        for by_outcome in kinds.values()
        for releases in by_outcome.values()
        for release in releases
    }
    return [release for release in ALL_RELEASES if release in found]


def write(reports: Mapping[str, Mapping[str, Any]]) -> None:
    """Write both files from what `examine` found in each release."""
    results: Results = {}
    for (release, report), (kind, part) in itertools.product(
        reports.items(), {"plugin": "fidelity", "stock": "stock"}.items()
    ):
        for cell, found in report[part].items():
            by_outcome = results.setdefault(cell, {}).setdefault(kind, {})
            by_outcome.setdefault(found["outcome"], []).append(release)
    lines = (f" {json.dumps(cell)}: {json.dumps(kinds)}" for cell, kinds in results.items())
    RESULTS.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    TEXT.parent.mkdir(exist_ok=True)
    TEXT.write_text(text(results), encoding="utf-8")


def text(results: Results) -> str:
    """Return `docs/fidelity.md`."""
    reasons: dict[str, int] = {}
    rows = "".join(
        f"| {cell.producer} | `{cell.layout}` | {cell.flags} | {cell.judge} "
        f"| {_over_releases(results, cell.name, 'plugin', reasons)} "
        f"| {_over_releases(results, cell.name, 'stock', reasons)} |\n"
        for cell in cells()
    )
    told = "".join(f"{number}. {reason}\n" for reason, number in reasons.items())
    header = _HEADER.replace("RELEASES", ", ".join(examined(results)))
    return f"{header}{rows}\n## Reasons\n\n{told}"


def _over_releases(results: Results, cell: str, kind: str, reasons: dict[str, int]) -> str:
    """Return a cell's outcomes, neighbours among the examined releases together."""

    def in_short(release: str) -> str:
        found = outcome(results, cell, kind, release)
        if not found.startswith(REFUSED):
            return found
        number = reasons.setdefault(found.removeprefix(REFUSED), len(reasons) + 1)
        return f"refused ({number})"

    spans = [
        (what, list(releases))
        for what, releases in itertools.groupby(examined(results), key=in_short)
    ]
    if len(spans) == 1:
        return spans[0][0]
    return "; ".join(
        f"{releases[0]} to {releases[-1]}: {what}"
        if len(releases) > 1
        else f"{releases[0]}: {what}"
        for what, releases in spans
    )


if __name__ == "__main__":
    TEXT.write_text(text(read()), encoding="utf-8")
