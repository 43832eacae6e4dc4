"""draft-weights against SGLang's real draft classes; the stock failures are stated too."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sglang_eagle3_patch.errors import DraftError
from sglang_eagle3_patch.hooks import draft_weights
from sglang_eagle3_patch.hooks.parts.expected_tensors import expected_tensors
from tests.contract.conftest import DraftFactory
from tests.cpu_sglang.pair import forms
from tests.cpu_sglang.pair.drafter import DrafterShape

Tensors = dict[str, torch.Tensor]
LAYER = "midlayer"


def prefixed(prefix: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {f"{prefix}{name}": value for name, value in tensors.items()}


def mla_config() -> dict[str, Any]:
    """A small config of the MLA draft class; all sizes differ, so that a mix-up shows."""
    return {
        "architectures": ["Eagle3DeepseekV2ForCausalLM"],
        "model_type": "deepseek_v3",
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "q_lora_rank": 44,
        "kv_lora_rank": 24,
        "qk_nope_head_dim": 32,
        "qk_rope_head_dim": 16,
        "v_head_dim": 20,
        "hidden_act": "silu",
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6,
        "vocab_size": 320,
        "draft_vocab_size": 320,
        "tie_word_embeddings": False,
        "rope_theta": 10000.0,
        "rope_scaling": {
            "type": "yarn",
            "rope_type": "yarn",
            "factor": 2.0,
            "beta_fast": 32,
            "beta_slow": 1,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "original_max_position_embeddings": 1024,
        },
    }


def mla_tensors() -> Tensors:
    shapes = {
        "fc.weight": (128, 384),
        "norm.weight": (128,),
        "lm_head.weight": (320, 128),
        "layers.0.input_layernorm.weight": (128,),
        "layers.0.hidden_norm.weight": (128,),
        "layers.0.post_attention_layernorm.weight": (128,),
        "layers.0.self_attn.q_a_proj.weight": (44, 256),
        "layers.0.self_attn.q_a_layernorm.weight": (44,),
        "layers.0.self_attn.q_b_proj.weight": (4 * (32 + 16), 44),
        "layers.0.self_attn.kv_a_proj_with_mqa.weight": (24 + 16, 256),
        "layers.0.self_attn.kv_a_layernorm.weight": (24,),
        "layers.0.self_attn.kv_b_proj.weight": (4 * (32 + 20), 24),
        "layers.0.self_attn.o_proj.weight": (128, 4 * 20),
        "layers.0.mlp.gate_proj.weight": (256, 128),
        "layers.0.mlp.up_proj.weight": (256, 128),
        "layers.0.mlp.down_proj.weight": (128, 256),
    }
    generator = torch.Generator().manual_seed(3)
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def unfilled(draft: Any) -> list[str]:
    """Parameters (but the target-shared embedding) in which the filling of 12 still stands."""
    return [
        name
        for name, parameter in draft.named_parameters()
        if "embed_tokens" not in name and bool((parameter == 12.0).any())
    ]


def rename_one(tensors: Tensors) -> Tensors:
    tensors["midlayer.self_attn.query.weight"] = tensors.pop("midlayer.self_attn.q_proj.weight")
    return tensors


def drop(name: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {key: value for key, value in tensors.items() if key != name}


def add(name: str, *shape: int) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {**tensors, name: torch.ones(*shape)}


# What is done to a whole checkpoint, and what the refusal must say of it.
DAMAGES: dict[str, tuple[Callable[[Tensors], Tensors], list[str]]] = {
    "one tensor renamed": (
        rename_one,
        [
            "1 missing: layers.0.self_attn.q_proj.weight [128, 256]",
            "1 not used: midlayer.self_attn.query.weight [128, 256]",
        ],
    ),
    "one tensor missing": (drop("fc.weight"), ["1 missing: fc.weight [128, 384]"]),
    "a norm missing": (
        drop("midlayer.hidden_norm.weight"),
        ["1 missing: layers.0.hidden_norm.weight [128]"],
    ),
    "no head": (drop("lm_head.weight"), ["1 missing: lm_head.weight [320, 128]"]),
    "one tensor extra": (add("mask_hidden", 1, 1, 384), ["not used: mask_hidden [1, 1, 384]"]),
    "q_norm extra": (
        add("midlayer.self_attn.q_norm.weight", 32),
        ["not used: midlayer.self_attn.q_norm.weight [32]"],
    ),
    "a bias extra": (
        add("midlayer.self_attn.q_proj.bias", 128),
        ["not used: midlayer.self_attn.q_proj.bias [128]"],
    ),
    "a shard of qkv missing": (
        drop("midlayer.self_attn.k_proj.weight"),
        ["1 missing: layers.0.self_attn.k_proj.weight [64, 256]"],
    ),
    "a shard of gate_up missing": (
        drop("midlayer.mlp.up_proj.weight"),
        ["1 missing: layers.0.mlp.up_proj.weight [256, 128]"],
    ),
    "q_proj with too many rows": (
        add("midlayer.self_attn.q_proj.weight", 256, 256),
        ["midlayer.self_attn.q_proj.weight [256, 256], wanted [128, 256]"],
    ),
    "gate_proj with too many rows": (
        add("midlayer.mlp.gate_proj.weight", 300, 128),
        ["midlayer.mlp.gate_proj.weight [300, 128], wanted [256, 128]"],
    ),
    "down_proj with too many columns": (
        add("midlayer.mlp.down_proj.weight", 128, 300),
        ["midlayer.mlp.down_proj.weight [128, 300], wanted [128, 256]"],
    ),
    "fc for two states": (
        add("fc.weight", 128, 256),
        ["fc.weight [128, 256], wanted [128, 384]"],
    ),
    "the layer twice": (
        add("layers.0.hidden_norm.weight", 128),
        ["layers.0.hidden_norm.weight (a second midlayer.hidden_norm.weight)"],
    ),
    "everything under a foreign prefix": (
        prefixed("drafter."),
        ["not used: drafter.", "missing: fc.weight"],
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.usefixtures("plugin")
def test_a_checkpoint_that_does_not_fit_is_refused(damage: str, make_draft: DraftFactory) -> None:
    change, told = DAMAGES[damage]
    draft = make_draft(forms.sglang_config())
    with pytest.raises(DraftError) as refusal:
        draft.load_weights(iter(change(forms.drafter_weights()).items()))
    for text in [*told, "LlamaForCausalLMEagle3", "Fix: ", "SGLANG_EAGLE3_PATCH=-draft-weights"]:
        assert text in str(refusal.value)


@pytest.mark.usefixtures("plugin")
def test_the_whole_list_is_told_at_once(make_draft: DraftFactory) -> None:
    tensors = forms.drafter_weights()
    del tensors["fc.weight"], tensors["midlayer.self_attn.v_proj.weight"]
    tensors["midlayer.mlp.up_proj.weight"] = torch.ones(255, 128)
    tensors["stray"] = torch.ones(3)
    with pytest.raises(DraftError) as refusal:
        make_draft(forms.sglang_config()).load_weights(iter(tensors.items()))
    assert "2 missing: fc.weight [128, 384], layers.0.self_attn.v_proj" in str(refusal.value)
    assert "1 not used: stray [3]" in str(refusal.value)
    assert "1 of another shape: midlayer.mlp.up_proj.weight [255, 128]" in str(refusal.value)


# Stock SGLang loads these without a word. When one of them begins to raise, upstream has mended
# it, and the docs of the patch want changing.
@pytest.mark.parametrize(
    "damage",
    [
        "one tensor renamed",
        "one tensor missing",
        "no head",
        "one tensor extra",
        "a shard of qkv missing",
        "q_proj with too many rows",
        "down_proj with too many columns",
        "everything under a foreign prefix",
    ],
)
def test_stock_takes_it_in_silence(
    damage: str, make_draft: DraftFactory, caplog: pytest.LogCaptureFixture
) -> None:
    change, _ = DAMAGES[damage]
    draft = make_draft(forms.sglang_config())
    draft.load_weights(iter(change(forms.drafter_weights()).items()))
    assert not caplog.records


@pytest.mark.parametrize(
    "layout",
    [
        lambda tensors: tensors,
        forms.rename_layer,
        lambda tensors: prefixed("model.")(forms.rename_layer(tensors)),
        prefixed("eagle_module."),
        prefixed("module.draft_model."),
    ],
    ids=["midlayer", "layers.0", "model.layers.0", "eagle_module", "module.draft_model"],
)
@pytest.mark.usefixtures("plugin")
def test_every_known_layout_loads_to_the_same_values(
    layout: Callable[[Tensors], Tensors], make_draft: DraftFactory
) -> None:
    draft, tensors = make_draft(forms.sglang_config()), forms.drafter_weights()
    draft.load_weights(iter(layout(tensors).items()))
    assert unfilled(draft) == []
    attention = draft.model.layers[0].self_attn
    fused = torch.cat([tensors[f"{LAYER}.self_attn.{part}_proj.weight"] for part in "qkv"])
    assert torch.equal(attention.qkv_proj.weight, fused.float())
    assert torch.equal(draft.model.fc.weight, tensors["fc.weight"].float())
    assert torch.equal(draft.hot_token_id, torch.arange(320))


def test_stock_leaves_a_foreign_prefix_unfilled(make_draft: DraftFactory) -> None:
    draft = make_draft(forms.sglang_config())
    draft.load_weights(iter(prefixed("eagle_module.")(forms.drafter_weights()).items()))
    assert len(unfilled(draft)) == 10  # every parameter but the shared embedding


@pytest.mark.usefixtures("plugin")
class TestOptionalTensors:
    def test_the_targets_embedding_may_be_missing(self, make_draft: DraftFactory) -> None:
        make_draft(forms.sglang_config()).load_weights(iter(forms.drafter_weights().items()))

    def test_but_not_where_it_cannot_be_shared(self, make_draft: DraftFactory) -> None:
        draft = make_draft({**forms.sglang_config(), "target_hidden_size": 192})
        tensors = {**forms.drafter_weights(), "fc.weight": torch.ones(128, 3 * 192)}
        with pytest.raises(DraftError, match=r"1 missing: embed_tokens.weight \[320, 128\]"):
            draft.load_weights(iter(tensors.items()))

    def test_a_head_shared_with_the_target_may_be_missing(self, make_draft: DraftFactory) -> None:
        draft = make_draft({**forms.sglang_config(), "draft_vocab_size": None})
        draft.load_weights(iter(drop("lm_head.weight")(forms.drafter_weights()).items()))

    def test_d2t_is_needed_for_a_smaller_vocabulary(self, make_draft: DraftFactory) -> None:
        draft = make_draft({**forms.sglang_config(), "draft_vocab_size": 96})
        tensors = {**forms.drafter_weights(), "lm_head.weight": torch.ones(96, 128)}
        del tensors["d2t"]
        with pytest.raises(DraftError, match=r"1 missing: d2t \[96\]"):
            draft.load_weights(iter(tensors.items()))

    def test_d2t_of_another_length_is_refused(self, make_draft: DraftFactory) -> None:
        draft = make_draft({**forms.sglang_config(), "draft_vocab_size": 96})
        tensors = {**forms.drafter_weights(), "lm_head.weight": torch.ones(96, 128)}
        with pytest.raises(DraftError, match=r"d2t \[320\], wanted \[96\]"):
            draft.load_weights(iter(tensors.items()))

    def test_fc_may_be_missing_when_no_states_are_taken(self, make_draft: DraftFactory) -> None:
        draft = make_draft(
            {**forms.sglang_config(), "eagle_config": {"use_aux_hidden_state": False}}
        )
        draft.load_weights(iter(drop("fc.weight")(forms.drafter_weights()).items()))

    def test_a_head_beside_tied_embeddings_is_not_dropped(self, make_draft: DraftFactory) -> None:
        draft = make_draft({**forms.sglang_config(), "tie_word_embeddings": True})
        with pytest.raises(DraftError, match=r"1 not used: lm_head.weight \[320, 128\]"):
            draft.load_weights(iter(forms.drafter_weights().items()))


@pytest.mark.usefixtures("plugin")
class TestWeightUpdates:
    def loaded(self, make_draft: DraftFactory) -> Any:
        draft = make_draft(forms.sglang_config())
        draft.load_weights(iter(forms.drafter_weights().items()))
        return draft

    def test_a_partial_bucket_is_taken(self, make_draft: DraftFactory) -> None:
        draft = self.loaded(make_draft)
        draft.load_weights(iter([("fc.weight", torch.full((128, 384), 0.5))]))
        assert bool((draft.model.fc.weight == 0.5).all())

    def test_the_targets_bucket_is_skipped_and_told(
        self, make_draft: DraftFactory, caplog: pytest.LogCaptureFixture
    ) -> None:
        draft = self.loaded(make_draft)
        before = draft.lm_head.weight.clone()
        bucket = [
            ("language_model.model.layers.3.mlp.gate.weight", torch.ones(4, 128)),
            ("lm_head.weight", torch.ones(999, 128)),
        ]
        draft.load_weights(iter(bucket))
        assert torch.equal(draft.lm_head.weight, before)
        assert "2 skipped" in caplog.text

    def test_a_target_that_shares_names_does_not_overwrite_the_draft(
        self, make_draft: DraftFactory, caplog: pytest.LogCaptureFixture
    ) -> None:
        # A llama target of the draft's own sizes; several releases send its buckets to the draft.
        draft = self.loaded(make_draft)
        before = {name: value.clone() for name, value in draft.named_parameters()}
        bucket = [
            ("model.layers.0.self_attn.o_proj.weight", torch.ones(128, 128)),
            ("model.layers.0.mlp.down_proj.weight", torch.ones(128, 256)),
            ("model.norm.weight", torch.ones(128)),
            ("lm_head.weight", torch.ones(320, 128)),
        ]
        draft.load_weights(bucket)
        draft.load_weights(iter(bucket[:3]))
        assert all(torch.equal(value, before[name]) for name, value in draft.named_parameters())
        assert "0 tensors taken, 4 skipped" in caplog.text
        assert "0 tensors taken, 3 skipped" in caplog.text

    def test_an_iterator_is_not_looked_through_beforehand(self, make_draft: DraftFactory) -> None:
        draft = self.loaded(make_draft)
        held = []

        def stream() -> Any:
            for name in ("model.layers.7.norm.weight", "fc.weight", "model.norm.weight"):
                held.append(name)
                yield name, torch.full((128, 384), 0.5)
                assert held == [name]  # the one before has been let go
                held.clear()

        draft.load_weights(stream())
        assert bool((draft.model.fc.weight == 0.5).all())

    def test_the_update_after_a_dummy_load_is_no_first_load(self, make_draft: DraftFactory) -> None:
        # Dummy weights bypass load_weights; ModelRunner.load_model is what both go through.
        runner = SimpleNamespace(is_draft_worker=True, model=make_draft(forms.sglang_config()))
        draft_weights.remember_first_load(lambda: None, runner, (), {})
        runner.model.load_weights(iter([("fc.weight", torch.full((128, 384), 0.5))]))
        assert bool((runner.model.model.fc.weight == 0.5).all())

    def test_a_deferred_load_is_still_the_first(self, make_draft: DraftFactory) -> None:
        draft = make_draft(forms.sglang_config())
        runner = SimpleNamespace(is_draft_worker=True, model=draft, startup_weight_load=object())
        draft_weights.remember_first_load(lambda: None, runner, (), {})
        with pytest.raises(DraftError, match="missing"):
            draft.load_weights(iter([("fc.weight", torch.ones(128, 384))]))

    def test_loaders_are_put_back(self, make_draft: DraftFactory) -> None:
        fresh = make_draft(forms.sglang_config())
        before = {n: getattr(p, "weight_loader", None) for n, p in fresh.named_parameters()}
        fresh.load_weights(iter(forms.drafter_weights().items()))
        after = {n: getattr(p, "weight_loader", None) for n, p in fresh.named_parameters()}
        assert before == after


@pytest.mark.usefixtures("plugin")
class TestMLADraft:
    @pytest.mark.parametrize("layout", [dict, prefixed("model."), prefixed("module.")])
    def test_whole(self, make_draft: DraftFactory, layout: Callable[..., Tensors]) -> None:
        draft = make_draft(mla_config())
        tensors = mla_tensors()
        draft.load_weights(iter(layout(tensors).items()))
        assert unfilled(draft) == []
        fused = [
            tensors[f"layers.0.self_attn.{n}.weight"] for n in ("q_a_proj", "kv_a_proj_with_mqa")
        ]
        attention = draft.model.midlayer.self_attn
        assert torch.equal(attention.fused_qkv_a_proj_with_mqa.weight, torch.cat(fused))

    @pytest.mark.parametrize("name", sorted(mla_tensors()))
    def test_each_tensor_is_missed(self, make_draft: DraftFactory, name: str) -> None:
        with pytest.raises(DraftError, match=f"missing: {name}"):
            make_draft(mla_config()).load_weights(iter(drop(name)(mla_tensors()).items()))

    def test_an_already_fused_projection_is_not_lost(self, make_draft: DraftFactory) -> None:
        tensors = mla_tensors()
        tensors["layers.0.self_attn.fused_qkv_a_proj_with_mqa.weight"] = torch.cat(
            [
                tensors.pop(f"layers.0.self_attn.{name}.weight")
                for name in ("q_a_proj", "kv_a_proj_with_mqa")
            ]
        )
        with pytest.raises(DraftError, match=r"not used: layers.0.self_attn.fused_qkv_a_proj"):
            make_draft(mla_config()).load_weights(iter(tensors.items()))

    def test_a_wrong_rank_is_refused(self, make_draft: DraftFactory) -> None:
        tensors = {**mla_tensors(), "layers.0.self_attn.o_proj.weight": torch.ones(128, 128)}
        with pytest.raises(DraftError, match=r"o_proj.weight \[128, 128\], wanted \[128, 80\]"):
            make_draft(mla_config()).load_weights(iter(tensors.items()))


@pytest.mark.usefixtures("plugin")
def test_an_fc_that_would_never_run_is_refused(make_draft: DraftFactory) -> None:
    # Where headers can't be read (pickled weights), the flag is not corrected beforehand.
    config = {**forms.sglang_config(), "eagle_config": {"use_aux_hidden_state": False}}
    with pytest.raises(DraftError, match=r"use_aux_hidden_state: false, but .* \[128, 384\]"):
        make_draft(config).load_weights(iter(forms.drafter_weights().items()))


@pytest.mark.usefixtures("plugin")
def test_scales_of_a_kv_cache_are_no_reason_to_refuse(make_draft: DraftFactory) -> None:
    tensors = {**forms.drafter_weights(), "midlayer.self_attn.k_proj.k_scale": torch.ones(1)}
    make_draft(forms.sglang_config()).load_weights(iter(tensors.items()))


@pytest.mark.parametrize(("ranks", "heads", "q_shape"), [(3, 6, None), (2, 4, (128, 256))])
@pytest.mark.usefixtures("plugin")
def test_padding_for_cpu_tensor_parallelism_is_no_reason_to_refuse(
    native_draft: Path, ranks: int, heads: int, q_shape: tuple[int, int] | None
) -> None:
    from sglang.srt.configs.load_config import LoadConfig
    from sglang.srt.configs.model_config import ModelConfig
    from sglang.srt.configs.update_config import adjust_config_with_unaligned_cpu_tp
    from sglang.srt.models.llama_eagle3 import LlamaForCausalLMEagle3
    from sglang.srt.runtime_context import get_context

    arguments = get_context().server_args
    config = ModelConfig.from_server_args(
        arguments, model_path=str(native_draft), is_draft_model=True
    )
    # SGLang's own padding, for several ranks; the model itself is built for the one rank here.
    config.hf_config = copy.deepcopy(config.hf_config)
    config = adjust_config_with_unaligned_cpu_tp(config, LoadConfig(), ranks)
    draft = LlamaForCausalLMEagle3(config.hf_config)
    assert draft.model.layers[0].self_attn.qkv_proj.total_num_heads == heads
    wanted = expected_tensors(draft)
    assert wanted["layers.0.self_attn.q_proj.weight"].shape == q_shape
    assert wanted["layers.0.mlp.gate_proj.weight"].shape is None
    assert wanted["fc.weight"].shape == (128, 384)


class TestQuantisedDraft:
    """No quantised linear can be built on this CPU; the linears' own sizes are real, their
    `quant_method` is a stand-in."""

    @pytest.fixture
    def draft(self, plugin: None, make_draft: DraftFactory) -> Any:
        draft = make_draft(forms.sglang_config())
        draft.quant_config = SimpleNamespace()
        linear = draft.model.layers[0].self_attn.o_proj
        linear.quant_method = SimpleNamespace()
        scale = torch.nn.Parameter(torch.full((1,), 12.0), requires_grad=False)
        scale.weight_loader = lambda parameter, tensor: parameter.data.copy_(tensor)
        linear.register_parameter("weight_scale", scale)
        return draft

    def test_scales_may_be_missing(self, draft: Any) -> None:
        draft.load_weights(iter(forms.drafter_weights().items()))

    def test_scales_are_handed_on(self, draft: Any) -> None:
        name = "midlayer.self_attn.o_proj.weight_scale"
        draft.load_weights(iter({**forms.drafter_weights(), name: torch.ones(1)}.items()))
        assert draft.model.layers[0].self_attn.o_proj.weight_scale.item() == 1.0

    def test_scales_of_others_are_left_to_the_class(self, draft: Any) -> None:
        name = "midlayer.self_attn.q_proj.input_scale"
        draft.load_weights(iter({**forms.drafter_weights(), name: torch.ones(1)}.items()))

    def test_weights_are_still_counted(self, draft: Any) -> None:
        tensors = drop("midlayer.self_attn.o_proj.weight")(forms.drafter_weights())
        with pytest.raises(DraftError, match=r"1 missing: layers.0.self_attn.o_proj.weight"):
            draft.load_weights(iter({**tensors, "stray.weight": torch.ones(1)}.items()))


def test_a_scale_is_refused_where_nothing_is_quantised(
    plugin: None, make_draft: DraftFactory
) -> None:
    tensors = {**forms.drafter_weights(), "midlayer.mlp.up_proj.weight_scale": torch.ones(1)}
    with pytest.raises(DraftError, match=r"not used: midlayer.mlp.up_proj.weight_scale"):
        make_draft(forms.sglang_config()).load_weights(iter(tensors.items()))


def test_shapes_of_the_pair_are_those_of_the_drafter() -> None:
    # The fixtures above rely on them.
    shape = DrafterShape()
    assert (shape.hidden, shape.vocab, shape.aux) == (128, 320, 3)
