"""The folder that speculators' own `save_pretrained` wrote holds the drafter that was trained."""

from __future__ import annotations

import json

import torch
from safetensors.torch import load_file

from tests.cpu_sglang.pair import forms


def test_its_weights_are_the_trained_ones_bit_for_bit() -> None:
    saved = load_file(forms.SAVED_BY_SPECULATORS / "model.safetensors")
    trained = forms.rename_layer(
        load_file(forms.ASSETS / "drafter_norm_before_residual.safetensors")
    )
    target = load_file(forms.TARGET / "model.safetensors")
    trained["embed_tokens.weight"] = target["language_model.model.embed_tokens.weight"]
    assert saved.keys() == trained.keys()
    for name, value in saved.items():
        assert value.dtype == trained[name].dtype == torch.bfloat16
        assert torch.equal(value.view(torch.int16), trained[name].view(torch.int16)), name


def test_the_config_that_other_forms_are_given_is_the_librarys() -> None:
    saved = json.loads((forms.SAVED_BY_SPECULATORS / "config.json").read_text())
    ours = forms.speculators_config(True)
    layer = saved["transformer_layer_config"]
    assert {key: layer.get(key) for key in ours["transformer_layer_config"]} == (
        ours["transformer_layer_config"]
    )
    del ours["transformer_layer_config"]
    assert {key: saved.get(key) for key in ours} == ours
