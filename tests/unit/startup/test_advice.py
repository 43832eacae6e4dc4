"""The advice names only what the release in hand has."""

from __future__ import annotations

import pytest

from sglang_eagle3_patch.startup.advice import DISABLE_DRAFT_EXTEND, advice
from sglang_eagle3_patch.startup.stages import Stage

OLD = {"--cuda-graph-max-bs", "--disable-cuda-graph", "--disable-piecewise-cuda-graph"}
NEW = {
    "--cuda-graph-max-bs-decode",
    "--cuda-graph-max-bs-prefill",
    "--disable-prefill-cuda-graph",
    DISABLE_DRAFT_EXTEND,
}


@pytest.mark.parametrize("stage", [None, *Stage])
@pytest.mark.parametrize("switches", [OLD, NEW, set()])
def test_every_stage_has_some(stage: Stage | None, switches: set[str]) -> None:
    assert all(advice(stage, switches))


def test_capture_of_the_draft_extend_graph() -> None:
    new = "; ".join(advice(Stage.DRAFT_EXTEND_GRAPHS, NEW))
    assert "--disable-cuda-graph" in new
    assert f"{DISABLE_DRAFT_EXTEND}=1" in new
    assert "--cuda-graph-max-bs-decode" in new
    assert "--speculative-draft-attention-backend" in new
    old = "; ".join(advice(Stage.DRAFT_EXTEND_GRAPHS, OLD))
    assert DISABLE_DRAFT_EXTEND not in old
    assert "fewer sizes: --cuda-graph-max-bs;" in old


def test_capture_of_the_target_says_nothing_of_the_draft() -> None:
    text = "; ".join(advice(Stage.TARGET_GRAPHS, NEW))
    assert "draft" not in text
    assert DISABLE_DRAFT_EXTEND not in text


def test_capture_of_prefill() -> None:
    assert "--disable-prefill-cuda-graph" in advice(Stage.TARGET_PREFILL_GRAPHS, NEW)[0]
    assert "--disable-piecewise-cuda-graph" in advice(Stage.TARGET_PREFILL_GRAPHS, OLD)[0]
    assert "--disable-cuda-graph" in advice(Stage.TARGET_PREFILL_GRAPHS, set())[0]


def test_weights_and_pools() -> None:
    assert "disk" in advice(Stage.DRAFT_WEIGHTS, NEW)[0]
    assert "--mem-fraction-static" in advice(Stage.TARGET_POOLS, NEW)[0]
    assert "NCCL_DEBUG" in advice(Stage.RANKS, NEW)[0]
