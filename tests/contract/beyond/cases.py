"""What is given to SGLang for each rule that no draft class shows: a draft, a target, a launch.

The drafts are those of `tests/unit/doctor/broken.py`, the healthy one beside them, and more that
break a rule where it depends on what breaks it what comes of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from sglang_eagle3_patch.checkpoint.aux_layers import KEY as IDS
from sglang_eagle3_patch.checkpoint.launch import LONGER_CONTEXT, LaunchArguments
from sglang_eagle3_patch.checkpoint.rules import Case
from sglang_eagle3_patch.facts import facts_for
from tests.contract.releases.doctor_fixtures import Side
from tests.unit.checkpoint import drafts
from tests.unit.doctor.broken import BROKEN, eagle, target
from tests.unit.doctor.cases import LAUNCH, NEWEST, OLDEST, case, config

Layers = tuple[int, ...] | None
SIDES: tuple[Side, ...] = ("stock", "plugin")
RELEASES = (OLDEST, NEWEST)

_DEFAULT = (2, 4, 5)
# The inputs of the layers that the drafts which break a rule were trained on.
_TRAINED: Mapping[str, tuple[int, ...]] = {
    "E3-target-capture": _DEFAULT,
    "E3-layers-place": (3, 4, 6),  # AngelSlim's, by outputs
    "E3-layers-captured": (2, 4, 5),  # SafeAILab's, by inputs
    "E3-layers-last": (3, 5, 8),  # by the user's word
    "E3-layers-graphs": (2, 3, 5),
}
_SAFEAILAB = drafts.top("embed_tokens.weight", "t2d") | drafts.layer("midlayer.")
_OVERRIDES = "--json-model-override-args"
_FURTHER: Mapping[str, Mapping[str, tuple[Case, Layers]]] = {
    "E3-layers-unreadable": {
        "at the top": (case(config(eagle_aux_hidden_state_layer_ids="1,3,4")), None)
    },
    "E3-layers-order": {
        "descending": (case(config(eagle_config={IDS: [4, 3, 1]}), _SAFEAILAB), (5, 4, 2))
    },
    "E3-layers-graphs": {
        "without graphs": (
            case(eagle(**{IDS: [1, 2, 4]}), launch=(*LAUNCH, "--disable-cuda-graph")),
            (2, 3, 5),
        )
    },
    "E3-target-capture": {
        "wrapper": (case(target=target(architectures=["LlavaLlamaForCausalLM"])), _DEFAULT),
    },
    "E3-launch-flags": {
        "window": (case(launch=(*LAUNCH, "--speculative-draft-window-size", "255")), None)
    },
    "E3-launch-computation": {
        "theta": (case(launch=(*LAUNCH, _OVERRIDES, '{"rope_theta": 7.0}')), None)
    },
    "E3-launch-algorithm": {
        "that is none": (case(launch=("--speculative-algorithm", "MAGIC")), None)
    },
    "E3-launch-load-format": {"dummy": (case(launch=(*LAUNCH, "--load-format", "dummy")), None)},
    "E3-launch-structure": {
        "vocabulary": (case(launch=(*LAUNCH, _OVERRIDES, '{"draft_vocab_size": 64}')), None)
    },
}


class Compared(NamedTuple):
    """What SGLang is given on one side; `trained` are the inputs of the layers trained on."""

    rule: str
    side: Side
    name: str
    case: Case
    trained: Layers

    @property
    def id(self) -> str:
        return f"{self.rule}-{self.side}-{self.name}"


def compared(release: str, rules: Iterable[str]) -> Iterator[Compared]:
    """Yield all that is given to a release for `rules`."""
    for rule in rules:
        cases = {
            "healthy": (case(), _DEFAULT),
            "broken": (BROKEN[rule].case, _TRAINED.get(rule)),
            **_FURTHER.get(rule, {}),
        }
        for side in SIDES:
            for name, (told, trained) in cases.items():
                yield Compared(rule, side, name, at(told, release), trained)


def at(told: Case, release: str) -> Case:
    """Return a case as it is at another release."""
    engine = facts_for(release)
    assert engine is not None
    environment = {LONGER_CONTEXT: "1"} if told.launch.longer_context_allowed else None
    flags = engine.launch.speculative_flags
    return replace(
        told,
        engine=engine,
        launch=LaunchArguments.parse(told.launch.given, flags, environment),
    )
