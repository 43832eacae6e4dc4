"""Names, configs and aux layers of the checkpoints that real trainers write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sglang_eagle3_patch.checkpoint.config import (
    ConfigNotUnderstood,
    from_speculators,
    is_eagle3,
    is_speculators,
)
from sglang_eagle3_patch.checkpoint.layouts import NOT_WEIGHTS, canonical_name
from sglang_eagle3_patch.checkpoint.spec import DraftSpec
from tests.cpu_sglang.pair import forms

CHECKPOINTS = Path(__file__).parents[1] / "checkpoints"
WRITTEN_BY_TRAINERS = sorted(path.name for path in CHECKPOINTS.iterdir() if path.is_dir())


def config_of(name: str) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((CHECKPOINTS / name / "config.json").read_text())
    return config


@pytest.mark.parametrize(
    ("name", "canonical"),
    [
        ("midlayer.self_attn.q_proj.weight", "layers.0.self_attn.q_proj.weight"),
        ("layers.0.hidden_norm.weight", "layers.0.hidden_norm.weight"),
        ("model.layers.0.mlp.up_proj.weight", "layers.0.mlp.up_proj.weight"),
        ("midlayer.1.hidden_norm.weight", "layers.1.hidden_norm.weight"),
        ("eagle_module.fc.weight", "fc.weight"),
        ("module.draft_model.midlayer.mlp.down_proj.weight", "layers.0.mlp.down_proj.weight"),
        ("aux_norm_mid.weight", "fc_norm.1.weight"),
        ("lm_head.weight", "lm_head.weight"),
        ("d2t", "d2t"),
        ("something.midlayer.weight", "something.midlayer.weight"),
    ],
)
def test_canonical_names(name: str, canonical: str) -> None:
    assert canonical_name(name) == canonical
    assert canonical_name(canonical) == canonical


def test_only_tables_and_the_targets_tensors_are_no_weights() -> None:
    assert NOT_WEIGHTS.search("t2d")
    assert NOT_WEIGHTS.search("layers.0.self_attn.rotary_emb.inv_freq")
    assert NOT_WEIGHTS.search("verifier_lm_head.weight")
    for weight in ("d2t", "fc.weight", "layers.0.self_attn.q_norm.weight", "not_t2d"):
        assert not NOT_WEIGHTS.search(weight)


@pytest.mark.parametrize("name", WRITTEN_BY_TRAINERS)
def test_trainers_configs_are_known_as_eagle3(name: str) -> None:
    assert is_eagle3(config_of(name))
    assert is_speculators(config_of(name)) == name.startswith("speculators")


@pytest.mark.parametrize(
    "name", [n for n in WRITTEN_BY_TRAINERS if n.startswith("speculators") and "qwen3" not in n]
)
def test_a_speculators_config_comes_out_flat(name: str) -> None:
    written, config = config_of(name), from_speculators(config_of(name))
    layer = written["transformer_layer_config"]
    assert config["architectures"] == ["LlamaForCausalLMEagle3"]
    assert config["model_type"] == "llama"
    assert config["hidden_size"] == layer["hidden_size"]
    assert config["num_hidden_layers"] == layer["num_hidden_layers"]
    assert config["draft_vocab_size"] == written["draft_vocab_size"]
    assert config["norm_before_residual"] is written["norm_before_residual"]
    assert "target_hidden_size" not in config
    # transformers 4 reads the one, transformers 5 the other; 10000 is nobody's but the default
    assert config["rope_theta"] == config["rope_parameters"]["rope_theta"] == 50000.0
    ids = written["eagle_aux_hidden_state_layer_ids"]
    nested = config["eagle_config"].get("eagle_aux_hidden_state_layer_ids")
    assert nested == (None if ids is None else [1, 3, 4])


def test_an_unstated_residual_stays_unstated() -> None:
    config = from_speculators(forms.speculators_config(None))
    assert config["norm_before_residual"] is None


def test_a_qwen3_layer_is_refused_by_name() -> None:
    with pytest.raises(ConfigNotUnderstood, match=r"model_type is 'qwen3'.*q_norm"):
        from_speculators(config_of("speculators-0.9.0-qwen3"))


@pytest.mark.parametrize(
    "change",
    [
        {"transformer_layer_config": None},
        {"transformer_layer_config": {"model_type": "llama"}},
        {"eagle_aux_hidden_state_layer_ids": "2,4,5"},
        {"eagle_aux_hidden_state_layer_ids": [2, True, 5]},
    ],
)
def test_a_mistyped_speculators_config_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ConfigNotUnderstood):
        from_speculators({**forms.speculators_config(False), **change})


def test_rope_scaling_survives_both_ways() -> None:
    config = forms.speculators_config(False)
    layer = config["transformer_layer_config"]
    layer["rope_parameters"] = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e6}
    translated = from_speculators(config)
    assert translated["rope_theta"] == 1e6
    assert translated["rope_scaling"] == {"rope_type": "yarn", "factor": 4.0}
    del layer["rope_parameters"]
    layer.update(rope_theta=1e6, rope_scaling={"rope_type": "yarn", "factor": 4.0})
    translated = from_speculators(config)
    assert translated["rope_parameters"] == {
        "rope_type": "yarn",
        "factor": 4.0,
        "rope_theta": 1e6,
    }


@pytest.mark.parametrize("name", WRITTEN_BY_TRAINERS)
def test_specs_of_real_checkpoints(name: str) -> None:
    spec = DraftSpec.read(CHECKPOINTS / name)
    assert spec.is_eagle3
    assert spec.num_aux == 3
    assert "layers.0.self_attn.q_proj.weight" in spec.tensors
