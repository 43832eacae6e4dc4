"""draft-weights against SGLang's real MLA draft class: a trained draft whose latent projections
did not all come. Stock loads each of these without a word, and that is stated too."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from sglang_eagle3_patch.errors import DraftError
from tests.contract.conftest import DraftFactory
from tests.contract.drafts import Tensors, drop, unfilled
from tests.cpu_sglang.pair import forms

ATTENTION = "layers.0.self_attn"
FUSED = "fused_qkv_a_proj_with_mqa"
PARTS = ("q_a_proj", "kv_a_proj_with_mqa")


def fused(tensors: Tensors) -> Tensors:
    """Return the draft with both down projections as the one that they are in the model."""
    parts = [tensors.pop(f"{ATTENTION}.{part}.weight") for part in PARTS]
    return {**tensors, f"{ATTENTION}.{FUSED}.weight": torch.cat(parts)}


# What is done to the draft, what the refusal says of it, what stock leaves as memory held it.
DAMAGES: dict[str, tuple[Callable[[Tensors], Tensors], list[str], str]] = {
    "an already fused projection": (
        fused,
        [
            f"2 missing: {ATTENTION}.q_a_proj.weight [44, 256], "
            f"{ATTENTION}.kv_a_proj_with_mqa.weight [40, 256]",
            f"1 not used: {ATTENTION}.{FUSED}.weight [84, 256]",
        ],
        FUSED,
    ),
    "a lone q_a_proj": (
        drop(f"{ATTENTION}.kv_a_proj_with_mqa.weight"),
        [f"1 missing: {ATTENTION}.kv_a_proj_with_mqa.weight [40, 256]"],
        FUSED,
    ),
    "no kv_b_proj": (
        drop(f"{ATTENTION}.kv_b_proj.weight"),
        [f"1 missing: {ATTENTION}.kv_b_proj.weight [208, 24]"],
        "kv_b_proj",
    ),
}


def changed(name: str) -> Tensors:
    tensors, _ = forms.mla()
    return DAMAGES[name][0](tensors)


@pytest.mark.parametrize("name", DAMAGES)
@pytest.mark.usefixtures("plugin")
def test_it_is_refused_by_name(name: str, make_draft: DraftFactory) -> None:
    draft = make_draft(forms.mla_config())
    with pytest.raises(DraftError) as refusal:
        draft.load_weights(iter(changed(name).items()))
    for text in [*DAMAGES[name][1], "Eagle3DeepseekV2ForCausalLM", "Fix: "]:
        assert text in str(refusal.value)


# When one of these begins to raise or to speak, upstream has mended it.
@pytest.mark.parametrize("name", DAMAGES)
def test_stock_takes_it_in_silence(
    name: str, make_draft: DraftFactory, caplog: pytest.LogCaptureFixture
) -> None:
    draft = make_draft(forms.mla_config())
    draft.load_weights(iter(changed(name).items()))
    assert unfilled(draft) == [f"model.midlayer.self_attn.{DAMAGES[name][2]}.weight"]
    assert not caplog.records


def test_a_whole_one_leaves_nothing_unfilled(make_draft: DraftFactory) -> None:
    tensors, config = forms.mla()
    draft = make_draft(config)
    draft.load_weights(iter(tensors.items()))
    assert unfilled(draft) == []
