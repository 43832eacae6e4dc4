"""The doctor's verdicts on what no draft class shows are what the real SGLang does here.

The drafts are those of `tests/unit/doctor/broken.py`, and the healthy one beside them; how each is
observed is in `doctor_beyond`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from sglang_eagle3_patch.checkpoint.aux_layers import KEY as IDS
from sglang_eagle3_patch.checkpoint.rules import Case, judge_case
from tests.contract.doctor_beyond import OBSERVED, seen, write
from tests.contract.releases.doctor_fixtures import NOT_OF_A_CLASS, Side
from tests.contract.releases.doctor_observed import REFUSES
from tests.unit.checkpoint import drafts
from tests.unit.doctor.broken import BROKEN
from tests.unit.doctor.cases import LAUNCH, case, config

SIDES: tuple[Side, ...] = ("stock", "plugin")
NOT_OBSERVED_HERE: Mapping[str, str] = {
    "E3-files-values-unread": "the doctor's own limit, of which nothing comes",
    "E3-files-quantised": "the methods that quantise drafts want a GPU",
    "E3-vocab-target": "what tokens the rows beyond stand for, tokenizers alone tell",
    "E3-layers-graphs": "graphs are captured on a GPU, and in other releases",
    "E3-rope-mrope": "positions of three kinds come from a multimodal server",
    "E3-target-class": "what classes a package may register, nobody knows",
    "E3-target-recorded": "what another target would accept, only its weights tell",
    "E3-target-name": "what another target would accept, only its weights tell",
    "E3-launch-algorithm": "by a server: tests/server/test_doctor.py",
    "E3-launch-load-format": "by loaders: tests/contract/test_load_paths.py",
    "E3-launch-backend": "nothing comes of it where a backend does for both, as on a CPU",
    "E3-engine-positions": "by a server of another release: tests/server/test_matrix.py",
    "E3-engine-release": "no such release can be looked at",
}
HEALTHY: tuple[Case, tuple[int, ...] | None] = (case(), (2, 4, 5))
TRAINED: Mapping[str, tuple[int, ...]] = {
    "E3-target-capture": (2, 4, 5),  # the default
    "E3-layers-place": (3, 4, 6),  # AngelSlim's, by outputs
    "E3-layers-captured": (2, 4, 5),  # SafeAILab's, by inputs
    "E3-layers-last": (3, 5, 8),  # by the user's word
}
_SAFEAILAB = drafts.top("embed_tokens.weight", "t2d") | drafts.layer("midlayer.")
_OVERRIDES = "--json-model-override-args"
# More that breaks a rule, where it depends on what breaks it what comes of it.
FURTHER: Mapping[str, tuple[Case, tuple[int, ...] | None]] = {
    "E3-layers-unreadable": (
        case(config(eagle_aux_hidden_state_layer_ids="1,3,4")),
        None,
    ),
    "E3-layers-order": (
        case(config(eagle_config={IDS: [4, 3, 1]}), _SAFEAILAB),
        (5, 4, 2),
    ),
    "E3-launch-computation": (
        case(launch=(*LAUNCH, _OVERRIDES, '{"rope_theta": 7.0}')),
        None,
    ),
    "E3-launch-structure": (
        case(launch=(*LAUNCH, _OVERRIDES, '{"draft_vocab_size": 64}')),
        None,
    ),
}
# What is seen where the doctor leaves open what comes.
LEFT_OPEN: Mapping[tuple[str, Side], str] = {
    ("E3-layers-last", "stock"): REFUSES,
    ("E3-layers-last", "plugin"): REFUSES,
    ("E3-launch-no-speculation", "stock"): "runs None",
    ("E3-launch-no-speculation", "plugin"): "runs None",
}
# Left out: of this the doctor says "refuses". Of a class that wraps a language model under a flat
# config no name and no config tells that it does.
DISPUTED: frozenset[tuple[str, Side]] = frozenset({("E3-target-capture", "plugin")})


def said(told: Case, rule: str, side: Side) -> str:
    (effects,) = (found.effects for found in judge_case(told).findings if found.id == rule)
    return effects[side]


def judged() -> Iterator[Any]:
    """Yield rule, side, case and trained layers of all that is compared."""
    for rule in OBSERVED:
        for side in SIDES:
            compared = {"healthy": HEALTHY}
            if rule in FURTHER:
                compared["further"] = FURTHER[rule]
            if (rule, side) not in DISPUTED:
                compared["broken"] = BROKEN[rule].case, TRAINED.get(rule)
            for name, (told, trained) in compared.items():
                yield pytest.param(rule, side, told, trained, id=f"{rule}-{side}-{name}")


@pytest.mark.parametrize(("rule", "side", "told", "trained"), list(judged()))
def test_the_doctor_says_what_comes_of_it(
    rule: str,
    side: Side,
    told: Case,
    trained: tuple[int, ...] | None,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    request.getfixturevalue("plugin" if side == "plugin" else "rank")
    outcome = seen(rule, write(told, side, trained, tmp_path), monkeypatch)
    if said(told, rule, side) == "unknown":
        assert outcome == LEFT_OPEN[rule, side]
    else:
        assert outcome == said(told, rule, side)


def test_every_rule_that_no_class_shows_is_observed_or_told_why_not() -> None:
    assert not OBSERVED.keys() & NOT_OBSERVED_HERE.keys()
    assert OBSERVED.keys() | NOT_OBSERVED_HERE.keys() == NOT_OF_A_CLASS.keys()
