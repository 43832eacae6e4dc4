"""Single facts of a spec: names and keys nobody knows, sizes that don't agree, rope."""

from __future__ import annotations

from typing import Any

import pytest

from sglang_eagle3_patch.checkpoint.rope import Rope, RopeUnavailable, stated_rope
from sglang_eagle3_patch.checkpoint.spec import DraftSpec
from tests.unit.checkpoint import drafts


def spec_with(*tensors: str, **changes: Any) -> DraftSpec:
    headers = drafts.top() | drafts.layer("midlayer.")
    headers |= drafts.floats(**dict.fromkeys(tensors, (1,)))
    return DraftSpec.of(drafts.flat(drafts.SGLANG, **changes), headers)


@pytest.mark.parametrize(
    "name",
    [
        "mask_hidden",
        "eh_proj.weight",
        "enorm.weight",
        "parallel_draft_heads.0.weight",
        "fc2.weight",
    ],
)
def test_tensors_of_other_architectures_are_unknown(name: str) -> None:
    assert spec_with(name).unknown_tensors == (name,)


@pytest.mark.parametrize(
    "name",
    [
        "midlayer.self_attn.q_norm.weight",
        "midlayer.self_attn.k_proj.bias",
        "midlayer.mlp.up_proj.weight_scale",
        "midlayer.self_attn.rotary_emb.inv_freq",
        "layers.1.hidden_norm.weight",
        "verifier_lm_head.weight",
    ],
)
def test_names_of_some_layout_are_known(name: str) -> None:
    assert spec_with(name).unknown_tensors == ()


def test_keys_nobody_knows_are_named_by_path() -> None:
    spec = spec_with(
        residual_scale=0.5,
        eagle_config={**drafts.EAGLE_CONFIG, "norm_twice": True},
        rope_scaling={"rope_type": "llama3", "twist": 2},
        _name_or_path="anything",
        transformers_version="5.19.0",
        auto_map={"": "config.Config"},
    )
    assert spec.unknown_keys == ("eagle_config.norm_twice", "residual_scale", "rope_scaling.twist")


def test_a_key_that_holds_null_says_nothing() -> None:
    config = {**drafts.flat(drafts.SGLANG), "residual_scale": None}
    assert DraftSpec.of(config, {}).unknown_keys == ()


def test_two_names_of_one_tensor_clash() -> None:
    assert spec_with("layers.0.hidden_norm.weight").name_clashes == ("layers.0.hidden_norm.weight",)


def test_sizes_that_differ_are_named_with_both_values() -> None:
    spec = spec_with(intermediate_size=128, head_dim=32, draft_vocab_size=drafts.VOCAB)
    assert spec.shaped_sizes.differing(spec.stated_sizes) == {
        "intermediate": (drafts.INTERMEDIATE, 128),
        "head_dim": (drafts.HEAD_DIM, 32),
        "draft_vocab": (drafts.DRAFT_VOCAB, drafts.VOCAB),
    }
    assert spec.sizes.intermediate == drafts.INTERMEDIATE


def test_a_target_of_another_width() -> None:
    assert spec_with(target_hidden_size=96).num_aux == 2
    assert spec_with(target_hidden_size=100).num_aux is None
    assert spec_with(target_hidden_size=96).sizes.hidden == drafts.HIDDEN


def test_llama4s_dense_width_goes_before_its_experts() -> None:
    assert spec_with(intermediate_size_mlp=96, intermediate_size=32).stated_sizes.intermediate == 96


def test_what_the_config_leaves_out_is_none() -> None:
    spec = DraftSpec.of({"architectures": [drafts.SGLANG]}, {})
    assert set(vars(spec.sizes).values()) == {None}
    assert spec.rope == Rope()
    for value in (spec.norm_eps, spec.activation, spec.max_positions, spec.tie_word_embeddings):
        assert value is None


def test_what_the_file_holds() -> None:
    spec = DraftSpec.of(drafts.flat(drafts.SGLANG), drafts.top("embed_tokens.weight", "t2d"))
    held = (spec.has_embedding, spec.has_head, spec.has_d2t, spec.has_t2d)
    assert held == (False, True, True, False)


LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


@pytest.mark.parametrize(
    "layer",
    [
        {"rope_theta": 5e4, "rope_scaling": LLAMA3},
        {"rope_parameters": {"rope_theta": 5e4, **LLAMA3}},
        {"rope_theta": 1.0, "rope_scaling": None, "rope_parameters": {"rope_theta": 5e4, **LLAMA3}},
    ],
)
def test_both_schemas_of_rope(layer: dict[str, Any]) -> None:
    assert stated_rope(layer) == Rope(5e4, LLAMA3)


def test_scaling_is_first_looked_for_in_its_older_place() -> None:
    other = {"rope_theta": 7.0, "rope_type": "linear", "factor": 2.0}
    layer = {"rope_theta": 5e4, "rope_scaling": LLAMA3, "rope_parameters": other}
    assert stated_rope(layer) == stated_rope(layer, old=True) == Rope(5e4, LLAMA3)


def test_what_transformers_4_reads() -> None:
    assert stated_rope({"rope_parameters": {"rope_theta": 5e4, **LLAMA3}}, old=True) == Rope()
    inner = {"rope_theta": 1.5, "rope_scaling": {"rope_theta": 5e4, **LLAMA3}}
    assert stated_rope(inner, old=True).theta == 1.5
    assert stated_rope(inner).theta == 5e4


def test_plain_rope_has_no_scaling() -> None:
    assert stated_rope({"rope_parameters": {"rope_theta": 5, "rope_type": "default"}}) == Rope(5.0)
    assert stated_rope({"rope_theta": 5, "rope_scaling": None}) == Rope(5.0)


@pytest.mark.parametrize(
    "rope",
    [
        Rope(1e4, {"rope_type": "longrope", "factor": 2.0}),
        Rope(1e4, {"rope_type": "yarn", "factor": 2.0}),
        Rope(1e4, {"rope_type": "linear"}),
        Rope(1e4, partial=0.25),
    ],
)
def test_rope_without_a_formula_is_refused(rope: Rope) -> None:
    with pytest.raises(RopeUnavailable):
        rope.frequencies(16)
