"""What looks at the matter of each rule that no draft class shows, and what a refusal ends in."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from sglang_eagle3_patch.checkpoint.launch import LONGER_CONTEXT
from tests.contract.beyond import looks
from tests.contract.beyond.cases import RELEASES, Compared
from tests.contract.beyond.world import World, write
from tests.contract.releases.doctor_observed import REFUSES
from tests.unit.doctor.cases import NEWEST, OLDEST


class Observed(NamedTuple):
    """What looks at a rule's matter, and the errors that a refusal ends in on either side.

    `releases` are those that have such a matter.
    """

    look: Callable[[World, pytest.MonkeyPatch], str]
    stock: str = ""
    plugin: str = ""
    releases: tuple[str, ...] = RELEASES


_CLASS_LACKS = "(not implement|no attribute) '?set_eagle3_layers_to_capture"
_NO_GETTER = "has no attribute 'get_embed_and_head'"
_TOO_FEW_STATES = "shapes cannot be multiplied"
_NO_SUCH = "SystemExit|Unknown speculative algorithm name"
_UNACCOUNTED = "without naming|without .*--speculative-draft-load-format auto"
_NO_WEIGHTS = "Cannot find any model weights"
_TOO_LONG = "greater than the derived context_length"
_EAGLE_ALONE = "currently only supports EAGLE|not compatible with .* speculative decoding"
# Under the plugin too SGLang's setter is the first to meet the ids of `eagle_config`.
_NO_NUMBERS = "can only concatenate str"
OBSERVED: Mapping[str, Observed] = {
    "E3-files-weights": Observed(looks.weights, _NO_WEIGHTS, _NO_WEIGHTS),
    "E3-layers-unreadable": Observed(
        looks.capture, _NO_NUMBERS, f"{_NO_NUMBERS}|no list of layer numbers"
    ),
    "E3-layers-place": Observed(looks.capture),
    "E3-layers-captured": Observed(looks.capture),
    "E3-layers-order": Observed(looks.capture, _TOO_FEW_STATES, "are not distinct and ascending"),
    "E3-layers-range": Observed(looks.capture, _TOO_FEW_STATES, "the target has 8 layers"),
    "E3-layers-last": Observed(looks.capture, _TOO_FEW_STATES, _TOO_FEW_STATES),
    "E3-layers-graphs": Observed(looks.graphs, releases=(OLDEST,)),
    "E3-window-untrained": Observed(looks.window, releases=(NEWEST,)),
    "E3-context-short": Observed(looks.longest_context, _TOO_LONG, _TOO_LONG),
    "E3-context-untrained": Observed(looks.longest_context),
    "E3-target-capture": Observed(looks.can_capture, _CLASS_LACKS, _CLASS_LACKS),
    "E3-target-embedding": Observed(looks.can_share, _NO_GETTER, _NO_GETTER),
    "E3-rope-mrope": Observed(looks.rotation),
    "E3-vocab-target": Observed(looks.lookup),
    "E3-launch-load-format": Observed(looks.load_format, plugin=_UNACCOUNTED),
    "E3-launch-algorithm": Observed(looks.algorithm, _NO_SUCH, _NO_SUCH),
    "E3-launch-no-speculation": Observed(looks.speculating),
    "E3-launch-flags": Observed(looks.parsing, "SystemExit", "SystemExit"),
    "E3-launch-quantization": Observed(looks.quantisation),
    "E3-launch-structure": Observed(
        looks.overrides, "^AssertionError|only supports 1 layer", "of another structure: "
    ),
    "E3-launch-computation": Observed(looks.overrides),
    "E3-launch-pipeline": Observed(looks.checking, _EAGLE_ALONE, _EAGLE_ALONE),
}


def seen(given: Compared, folder: Path) -> str:
    """Return what comes of a case here; an error that isn't the rule's is one of the test's."""
    observed = OBSERVED[given.rule]
    refusal = observed.stock if given.side == "stock" else observed.plugin
    with pytest.MonkeyPatch.context() as monkeypatch:
        if given.case.launch.longer_context_allowed:
            monkeypatch.setenv(LONGER_CONTEXT, "1")
        try:
            return observed.look(write(given, folder), monkeypatch)
        except (Exception, SystemExit) as error:
            if refusal and re.search(refusal, f"{type(error).__name__}: {error}"):
                return REFUSES
            raise


def observed_at(release: str) -> tuple[str, ...]:
    """Return the rules that a release has something to observe of."""
    return tuple(rule for rule, observed in OBSERVED.items() if release in observed.releases)
