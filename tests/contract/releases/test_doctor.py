"""The doctor's verdicts are what SGLang's classes do, with the plugin and without, on any release.

What they do with the cells of fidelity is kept in `fidelity.json`, for all releases; drafts of
`doctor_fixtures` are looked at anew. Numbers as trained are called serves, others degraded.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from sglang_eagle3_patch.checkpoint.config import is_speculators
from sglang_eagle3_patch.checkpoint.config_keys import unknown_keys
from sglang_eagle3_patch.checkpoint.rules import RULES, Case, Judgement, judge_case
from sglang_eagle3_patch.commands.doctor_inputs import find_draft, find_target
from sglang_eagle3_patch.facts import facts_for
from tests.contract.releases import run, write_fidelity
from tests.contract.releases.conftest import Report
from tests.contract.releases.doctor_fixtures import (
    NOT_OF_A_CLASS,
    SHOWN_BY_CELLS,
    Side,
    fixtures,
)
from tests.contract.releases.doctor_observed import DEGRADED, REFUSES, SERVES
from tests.contract.releases.fidelity import OTHER, PARITY, REFUSED, as_stock_wants_it
from tests.contract.releases.fidelity_cells import TRAINED_ON, Cell, cells
from tests.cpu_sglang.pair import forms
from tests.unit.doctor.broken import BROKEN

pytestmark = pytest.mark.timeout(2 * run.SECONDS)

SIDES: tuple[Side, ...] = ("stock", "plugin")
_MEANS_TWO_THINGS = "norm_output has two meanings, and the file does not say which"
_TWO_THETAS = "it states two thetas, and was trained with one"
_NOBODY_KNOWS_THE_KEY = "what the key switches, nobody knows"


class Unknown(NamedTuple):
    """Where the doctor can't know what comes of a draft, and why. Anywhere else it must."""

    sides: tuple[Side, ...]
    why: str
    releases: tuple[str, ...] = run.ALL_RELEASES


CANNOT_KNOW: Mapping[str, Unknown] = {
    "E3-config-unknown-keys": Unknown(("stock",), _NOBODY_KNOWS_THE_KEY),
    "nobody known | midlayer | residual_scale: 0.5": Unknown(("stock",), _NOBODY_KNOWS_THE_KEY),
    "nobody known | midlayer | use_residual: false": Unknown(("stock",), _NOBODY_KNOWS_THE_KEY),
    "nobody known | midlayer | embedding_multiplier: 12.0": Unknown(
        ("stock",),
        _NOBODY_KNOWS_THE_KEY,
    ),
    "nobody known | midlayer | eagle_config.residual_scale: 0.5": Unknown(
        ("stock",),
        _NOBODY_KNOWS_THE_KEY,
    ),
    "E3-flags-norm-output-meaning": Unknown(("stock",), _MEANS_TWO_THINGS),
    "SpecForge 0.2.0 | midlayer | norm_output": Unknown(("stock",), _MEANS_TWO_THINGS),
    "SpecForge 0.2.0 | midlayer | no-norm_output": Unknown(("stock",), _MEANS_TWO_THINGS),
    "SpecForge | midlayer | as written": Unknown(("stock",), _MEANS_TWO_THINGS),
    "nobody known | layers.0 | norm_output: true": Unknown(SIDES, _MEANS_TWO_THINGS),
    "nobody known | layers.0 | residual_scale: 0.5, speculators' config": Unknown(
        ("stock",),
        _NOBODY_KNOWS_THE_KEY,
    ),
    "nobody known | layers.0 | norm_before_residual unstated, speculators' config": Unknown(
        ("stock",),
        "trainers differ in what they take for unstated",
    ),
    "E3-rope-conflict": Unknown(("stock",), _TWO_THETAS),
    "SpecForge 0.2.0 | midlayer | rope_theta: 1e6 beside another in rope_parameters": Unknown(
        ("stock",), _TWO_THETAS
    ),
    "E3-window-layer-types": Unknown(
        SIDES, "transformers decides, and which version is installed", ("0.5.10", "0.5.10.post1")
    ),
}
_AT_CLASS_LEVEL = {PARITY: SERVES, OTHER: DEGRADED}


@dataclass(frozen=True)
class Comparison:
    """What the doctor says of a draft on one side of a release, and what came of it there."""

    draft: str
    side: Side
    release: str
    said: str
    why: str
    seen: str

    @property
    def agrees(self) -> bool:
        if self.said == "unknown":
            return (self.draft, self.side) in _unknown_at(self.release)
        return self.said == self.seen


def _unknown_at(release: str) -> set[tuple[str, Side]]:
    """Return the drafts and sides of which the doctor can't know at a release."""
    return {
        (draft, side)
        for draft, unknown in CANNOT_KNOW.items()
        for side in unknown.sides
        if release in unknown.releases
    }


@cache
def _read(draft: Path, target: Path | None) -> Case:
    found = find_draft(str(draft))
    engine = facts_for(run.ALL_RELEASES[-1])
    assert engine is not None
    return Case(
        found.spec,
        find_target(str(target)) if target else None,
        engine,
        values=found.values(str(target) if target else None),
        files=found.names,
    )


@cache
def _judged(draft: Path, target: Path | None, release: str) -> Judgement:
    """Judge a draft by all rules but those of what no class can show."""
    engine = facts_for(release)
    assert engine is not None
    judgement = judge_case(replace(_read(draft, target), engine=engine))
    findings = tuple(f for f in judgement.findings if f.id not in NOT_OF_A_CLASS)
    return replace(judgement, findings=findings)


def verdict(draft: Path, target: Path | None, release: str, side: Side) -> tuple[str, str]:
    """Return what the doctor says comes of a draft, and why."""
    told = getattr(_judged(draft, target, release), side)
    return told.outcome, told.why


def _written(cell: Cell, side: Side, folder: Path) -> Path:
    """Write the draft that `fidelity` gave to SGLang on this side, below `folder`.

    Without the plugin that is a translation, which has lost the keys that nobody knows, and the
    names that tell who wrote it: what they tell of `norm_output` is said by a key that no release
    reads.
    """
    given = as_stock_wants_it(cell) if side == "stock" else cell
    config = given.config
    if given is not cell:
        lost = {key: cell.config[key] for key in unknown_keys(cell.config) if key in cell.config}
        recurs = {"return_hidden_post_norm": bool(config.get("norm_output"))}
        config = {**config, **lost, "eagle_config": {**config.get("eagle_config", {}), **recurs}}
    return forms.write(folder / ("given" if given is cell else "translated"), given.tensors, config)


def _recorded(folder: Path) -> Iterator[Comparison]:
    results = write_fidelity.read()
    for number, cell in enumerate(cells()):
        for side in SIDES:
            draft = _written(cell, side, folder / str(number))
            # By its values alone the doctor tells such an embedding from the target's.
            compared = cell.flags.endswith(TRAINED_ON)
            target = _target_of(cell, folder / f"target-{number}") if compared else None
            for release in write_fidelity.examined(results):
                found = write_fidelity.outcome(results, cell.name, side, release)
                seen = REFUSES if found.startswith(REFUSED) else _AT_CLASS_LEVEL[found]
                yield Comparison(
                    cell.name, side, release, *verdict(draft, target, release, side), seen
                )


def _target_of(cell: Cell, folder: Path) -> Path:
    """Write what the doctor reads of the cell's target to `folder`."""
    vocab, width = cell.lent[0].shape
    sizes = {"vocab_size": vocab, "hidden_size": width, "num_hidden_layers": 8}
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **sizes}
    return forms.write(folder, {"model.embed_tokens.weight": cell.lent[0]}, config)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> list[Comparison]:
    return list(_recorded(tmp_path_factory.mktemp("cells")))


def test_of_every_cell_the_doctor_says_what_came_of_it(recorded: list[Comparison]) -> None:
    assert len(recorded) == len(cells()) * len(SIDES) * len(run.ALL_RELEASES)
    assert [comparison for comparison in recorded if not comparison.agrees] == []


def test_what_the_doctor_cannot_know_of_cells_it_does_not_know(recorded: list[Comparison]) -> None:
    unknown = {(c.draft, c.side) for c in recorded if c.said == "unknown"}
    names = {cell.name for cell in cells()}
    expected = set.union(*map(_unknown_at, run.ALL_RELEASES))
    assert unknown == {(name, side) for name, side in expected if name in names}


def test_every_outcome_is_among_those_compared(recorded: list[Comparison]) -> None:
    for side in SIDES:
        assert {c.said for c in recorded if c.side == side} >= {SERVES, REFUSES, "unknown"}
    assert {c.seen for c in recorded if c.side == "stock"} == {SERVES, DEGRADED, REFUSES}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    """Each fixture's draft and its target's config, on the disk."""
    folder = tmp_path_factory.mktemp("fixtures")
    written = {}
    for number, fixture in enumerate(fixtures()):
        draft = forms.write(folder / f"draft-{number}", fixture.cell.tensors, fixture.cell.config)
        target = folder / f"target-{number}"
        target.mkdir()
        (target / "config.json").write_text(json.dumps(dict(fixture.target.config)))
        written[fixture.name] = draft, target
    return written


@pytest.mark.parametrize("release", run.chosen())
def test_of_every_fixture_the_doctor_says_what_comes_of_it(
    report: Report, release: str, folders: Mapping[str, tuple[Path, Path]]
) -> None:
    compared, reasons = [], {}
    for side in SIDES:
        seen = report["doctor"][side]
        assert set(seen) == set(folders), seen.get("error")
        for name, (draft, target) in folders.items():
            said = verdict(draft, target, release, side)
            compared.append(Comparison(name, side, release, *said, seen[name]["outcome"]))
            reasons[name, side] = seen[name]["why"]
    assert [(c, reasons[c.draft, c.side]) for c in compared if not c.agrees] == []
    unknown = {(c.draft, c.side) for c in compared if c.said == "unknown"}
    assert unknown == {(name, side) for name, side in _unknown_at(release) if name in folders}


def test_every_rule_is_shown_by_a_draft_or_told_why_not() -> None:
    shown = {fixture.name for fixture in fixtures()} & set(BROKEN)
    assert shown | set(NOT_OF_A_CLASS) | set(SHOWN_BY_CELLS) == set(RULES)
    assert not shown & NOT_OF_A_CLASS.keys()
    assert not NOT_OF_A_CLASS.keys() & SHOWN_BY_CELLS.keys()
    assert set(SHOWN_BY_CELLS.values()) <= {cell.name for cell in cells()}


@pytest.mark.parametrize(("rule", "cell"), SHOWN_BY_CELLS.items())
def test_cells_that_stand_for_a_rule_break_it(rule: str, cell: str, tmp_path: Path) -> None:
    found = next(c for c in cells() if c.name == cell)
    assert is_speculators(found.config) == cell.startswith("speculators")
    case = _read(forms.write(tmp_path / "draft", found.tensors, found.config), None)
    assert rule in {finding.id for finding in judge_case(case).told}
