"""Every release and each of its workers, stock and patched: the cells, and what they must show.

The drafter is the weak one, trained as speculators trains by default: what a release or a worker
computes differently shows in its histogram, and so does a flag that is ignored. Results of a whole
run (`./launch.sh test --matrix`) are kept in `matrix.json`, which the README's table is made from.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cpu_sglang import releases
from tests.cpu_sglang.pair import forms
from tests.server.cases import CASES, ON, OUTLOOK, POISONED, PROMPTS, ServerCase
from tests.server.serving import Outcome

RESULTS = Path(__file__).with_name("matrix.json")
# What stock does with `layers.0.*` names under SGLang's own config; elsewhere they load, and
# norm_before_residual, which the config doesn't know, is ignored.
_NO_CAPTURE = ("0.5.9",)
_NAMES_DROPPED = ("0.5.10", "0.5.10.post1", "0.5.11")
# SGLang's own CPU backend computes something else there, the text included.
_TEXT_WRONG = ("0.5.16", "0.5.17", "0.5.18")
# What is left of a release's ways once draft-positions is in.
PATCHED = {"positions_ahead_counted_twice": "counted_twice", "positions_ahead": "plain"}


@dataclass(frozen=True)
class Cell:
    """One server of the matrix. `what` is `speculators` or `layers` (stock), or `patched`."""

    release: str
    worker: str
    what: str

    @property
    def name(self) -> str:
        return f"matrix {self.release} {self.worker} {self.what}"

    @property
    def case(self) -> ServerCase:
        """The server of the cell."""
        variables, arguments = _choosing(self.release, self.worker)
        if self.what == "patched":
            variables |= ON
        else:
            variables |= POISONED
        draft = forms.founding_weak if self.what == "layers" else forms.speculators_weak
        return ServerCase(draft, self.release, variables=variables, arguments=arguments)

    @property
    def expected(self) -> list[list[int]] | None:
        """The histograms that torch predicts, None where there is nothing to predict."""
        quirk = releases.find(self.release).quirks[self.worker]
        if self.what == "patched":
            return OUTLOOK.histograms("weak", PATCHED.get(quirk, quirk), PROMPTS)
        known = (*_NO_CAPTURE, *_NAMES_DROPPED, *_TEXT_WRONG)
        if self.what == "layers" and self.release not in known:
            return OUTLOOK.histograms("weak_norm_before_residual_ignored", quirk, PROMPTS)
        return None

    @property
    def text_is_right(self) -> bool:
        """Whether the text is the target's own, as speculation promises."""
        return self.what == "patched" or self.release not in _TEXT_WRONG

    @property
    def refusal(self) -> str | None:
        """What stock says when it does not start, None when it does."""
        if self.what == "speculators":
            return "Should have a `model_type` key"
        if self.what == "layers" and self.release in _NO_CAPTURE:
            return "has no attribute 'set_eagle3_layers_to_capture'"
        return None


def _choosing(release: str, worker: str) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the variables and arguments that make the release use the worker."""
    if worker == releases.find(release).worker:
        return {}, ()
    return (
        ({}, ("--disable-overlap-schedule",))
        if worker == "v1"
        else (
            {"SGLANG_ENABLE_SPEC_V2": "1"},
            (),
        )
    )


def cells(whole: bool = releases.WHOLE) -> list[Cell]:
    """Return the cells of all releases, or of those at which something changed."""
    found = []
    for release in releases.RELEASES.values():
        if whole or release.version in releases.IN_CI:
            found.append(Cell(release.version, release.worker, "speculators"))
            found += [
                Cell(release.version, worker, what)
                for worker in release.quirks
                for what in ("layers", "patched")
            ]
    return found


CASES |= {cell.name: cell.case for cell in cells(whole=True)}


def result(outcome: Outcome) -> dict[str, Any]:
    """Return what is kept of an outcome."""
    if outcome.served is None:
        return {"served": False}
    length = outcome.served.accept_length
    return {
        "served": True,
        "accept_length": None if length is None else round(length, 3),
        "histogram": outcome.histogram,
        "text_is_right": outcome.served.texts == OUTLOOK.texts[:PROMPTS],
    }


def keep(cell: Cell, outcome: Outcome) -> None:
    """Put the outcome into the file of results."""
    kept = read_results()
    kept[cell.name] = result(outcome)
    order = [cell.name for cell in cells(whole=True)]
    lines = [
        f"{json.dumps(name)}: {json.dumps(kept[name])}"
        for name in sorted(kept.keys() & set(order), key=order.index)
    ]
    unfinished = RESULTS.with_suffix(".json.new")
    unfinished.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    unfinished.replace(RESULTS)


def read_results() -> dict[str, Any]:
    """Return the results kept, by the cell's name."""
    if not RESULTS.exists():
        return {}
    results: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8"))
    return results


def support_table() -> list[str]:
    """Return the README's rows: release, worker, and the accept length of each cell."""
    kept = read_results()

    def shown(release: str, worker: str, what: str) -> str:
        found = kept.get(Cell(release, worker, what).name)
        if found is None:
            return "not run"
        if not found["served"]:
            return "refuses to start"
        wrong = "" if found["text_is_right"] else ", wrong text"
        return f"{found['accept_length']:.3f}{wrong}"

    rows = [
        "| SGLang | worker | stock, speculators' folder | stock, `layers.0.*` | patched | torch |"
    ]
    rows.append("|---|---|---|---|---|---|")
    for release in releases.RELEASES.values():
        for worker, quirk in release.quirks.items():
            stock = shown(release.version, release.worker, "speculators")
            rows.append(
                f"| {release.version} | {worker} | {stock} | "
                f"{shown(release.version, worker, 'layers')} | "
                f"{shown(release.version, worker, 'patched')} | "
                f"{OUTLOOK.accept_length('weak', PATCHED.get(quirk, quirk), PROMPTS):.3f} |"
            )
    return rows
