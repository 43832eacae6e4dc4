"""What has to be checked of a draft before it is served, and the rules that check it.

The numbers are those of the list that the doctor was made from: P of headers, config and launch
arguments, C of small values.
"""

from __future__ import annotations

import pytest

from sglang_eagle3_patch.checkpoint.rules import RULES

CHECKS: dict[tuple[str, str], str] = {
    ("P01", "weights are there, in a format that SGLang picks"): "files-weights",
    ("P02", "one layout of names, known prefixes"): "names-dropped names-clash",
    ("P03", "the loader drops nothing and fills everything"): (
        "names-dropped names-missing names-unused"
    ),
    ("P04", "as many layers as stated, as many as the class takes"): (
        "names-layer-count names-several-layers"
    ),
    ("P05", "a later layer's norm has the engine's name"): "names-later-norm",
    ("P06", "shapes go together; q takes 2H"): "shapes-config shapes-eagle1",
    ("P07", "fc takes what this target's layers hand over"): (
        "shapes-fc shapes-target-width layers-number"
    ),
    ("P08", "fc is not as wide as the draft"): "shapes-fc-skipped",
    ("P09", "the architecture is a draft class, of the tensors' attention"): (
        "config-architecture config-attention config-query-rank"
    ),
    ("P10", "speculators' form, and an EAGLE-3 draft in it"): (
        "config-speculators config-not-eagle3 config-layer-kind config-model-type"
    ),
    ("P11", "norm_before_residual is computed, and stated"): (
        "flags-norm-before-residual flags-residual-unstated"
    ),
    ("P12", "norms of aux states are stated where there are tensors, and computed"): (
        "flags-norm-before-fc flags-fc-norm flags-tensors"
    ),
    ("P13", "what norm_output means to who wrote it"): (
        "flags-norm-output flags-norm-output-meaning flags-no-last-norm"
    ),
    ("P14", "aux ids: place, number, order, range, convention, what the target can capture"): (
        "layers-unreadable layers-place layers-number layers-order layers-range layers-last "
        "layers-captured"
    ),
    ("P15", "layers are set before graphs are captured"): "layers-graphs",
    ("P16", "the target's class can capture and share"): (
        "target-class target-capture target-embedding"
    ),
    ("P17", "draft_vocab_size is stated, the head's, and no more than vocab_size"): (
        "vocab-size-unstated vocab-head-rows vocab-head-overwritten vocab-head-missing vocab-larger"
    ),
    ("P18", "a reduced vocabulary has its map, of integers"): "vocab-map-missing vocab-map-shape",
    ("P19", "t2d is for this vocabulary"): "vocab-marks",
    ("P20", "no tied head beside an own one"): "vocab-tied",
    ("P21", "the embedding is there where it is not shared, and kept where it is the draft's"): (
        "vocab-embedding-missing vocab-embedding-overwritten"
    ),
    ("P22", "embedding and vocabularies are of one size"): "vocab-embedding-rows vocab-target",
    ("P23", "no tensors that are dropped: norms of heads, biases, other architectures"): (
        "flags-head-norms flags-attention-bias flags-mlp-bias flags-fc-bias names-foreign"
    ),
    ("P24", "one rope, in the release's form"): (
        "rope-newer-schema rope-conflict rope-partial rope-amplitude rope-mrope"
    ),
    (
        "P25",
        "the rope that was trained with",
    ): "rope-untrained rope-exported rope-dynamic rope-maybe-untrained",
    ("P26", "the window that was trained with"): (
        "window-unserved window-untrained window-layer-types"
    ),
    ("P27", "the draft's context is as long as the target's"): "context-short context-untrained",
    ("P28", "the activation is silu"): "config-activation",
    ("P29", "target_hidden_size is not null"): "config-target-width-null",
    ("P30", "no variants that nothing computes"): (
        "flags-eagle-config flags-double-norm flags-states-unused config-unknown-keys"
    ),
    ("P31", "dtypes are floats, or a quantisation is stated"): "files-dtypes files-quantised",
    ("P32", "launch arguments"): (
        "launch-algorithm launch-no-speculation launch-flags launch-quantization launch-structure "
        "launch-computation launch-load-format launch-pipeline launch-backend"
    ),
    ("P33", "the target that the draft records"): "target-recorded target-name",
    ("P34", "not a converter's file of random weights"): "files-untrained",
    ("C1", "d2t maps every draft token to one of the target's, by offsets"): (
        "vocab-map-values vocab-map-absolute"
    ),
    ("C2", "norms are finite, and not as before training"): "files-not-finite files-untrained",
    ("C3", "an embedding of its own is not overwritten"): "vocab-embedding-overwritten",
}
# About the release and about what was not looked at, not about the draft.
BESIDES = {"E3-engine-positions", "E3-engine-release", "E3-files-values-unread"}


def rules_of(names: str) -> set[str]:
    return {f"E3-{name}" for name in names.split()}


def test_the_list_is_whole() -> None:
    numbers = [f"P{number:02}" for number in range(1, 35)] + [f"C{number}" for number in (1, 2, 3)]
    assert [number for number, _ in CHECKS] == numbers


@pytest.mark.parametrize("check", CHECKS, ids=" ".join)
def test_each_check_has_its_rules(check: tuple[str, str]) -> None:
    rules = rules_of(CHECKS[check])
    assert rules
    assert rules <= set(RULES)


def test_each_rule_is_for_a_check() -> None:
    assert set.union(*map(rules_of, CHECKS.values())) | BESIDES == set(RULES)
