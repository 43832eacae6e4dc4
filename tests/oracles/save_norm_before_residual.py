"""Saves the pair's second drafter with speculators' own `save_pretrained`, as its trainer does.

    pip install --no-deps --target DIR speculators==0.9.0 hs-connectors==0.9.0
    PYTHONPATH=DIR:. python -m tests.oracles.save_norm_before_residual

The library builds its model for the pair's target, of which it reads embedding, head and aux
layers; the trained weights go in, and its folder comes out untouched. To be run again whenever
`pair.train` has written other weights.
"""

from __future__ import annotations

import os
import shutil

import torch
from speculators.models.eagle3.core import Eagle3DraftModel
from transformers import LlamaConfig

from tests.cpu_sglang.pair import forms
from tests.cpu_sglang.pair.drafter import DrafterShape
from tests.cpu_sglang.pair.expectation import DRAFT_STEPS


def main() -> None:
    """Write `forms.SAVED_BY_SPECULATORS`."""
    os.chdir(forms.ASSETS)  # the config names the target as it was given
    model = Eagle3DraftModel.from_training_args(
        verifier_config=LlamaConfig(**forms.speculators_config(True)["transformer_layer_config"]),
        draft_vocab_size=DrafterShape().vocab,
        verifier_name_or_path=forms.TARGET.name,
        ttt_steps=DRAFT_STEPS,
        draft_attn_impl="eager",
        norm_before_residual=True,
    )
    trained = forms.rename_layer(forms.drafter_weights("drafter_norm_before_residual"))
    for name in ("d2t", "t2d"):
        del trained[name]  # speculators has no maps where the draft knows the whole vocabulary
    missing, unexpected = model.load_state_dict(trained, strict=False)
    assert not unexpected, unexpected
    read_of_the_target = {"embed_tokens.weight", "verifier_lm_head.weight", "verifier_norm.weight"}
    assert set(missing) == read_of_the_target, missing
    shutil.rmtree(forms.SAVED_BY_SPECULATORS, ignore_errors=True)
    model.to(torch.bfloat16).save_pretrained(forms.SAVED_BY_SPECULATORS)


if __name__ == "__main__":
    main()
