"""draft-weights against SGLang's real draft class; the stock failures are stated too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from sglang_eagle3_patch.errors import DraftError
from tests.contract.conftest import DraftFactory
from tests.contract.drafts import Tensors, add, drop, prefixed, rename_one, unfilled
from tests.cpu_sglang.pair import forms

LAYER = "midlayer"

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
class TestNormOfALaterLayer:
    """Trainers call it `input_layernorm`; SGLang's class has that too, and uses `hidden_norm`."""

    CONFIG: dict[str, Any] = {**forms.sglang_config(), "num_hidden_layers": 2}  # noqa: RUF012

    def tensors(self, **norms: float) -> Tensors:
        first = forms.rename_layer(forms.drafter_weights())
        second = {
            name.replace("layers.0.", "layers.1."): value
            for name, value in first.items()
            if name.startswith("layers.0.") and "_norm." not in name and "input_l" not in name
        }
        for part in "qkv":
            name = f"layers.1.self_attn.{part}_proj.weight"
            second[name] = second[name][:, :128]
        norm = {f"layers.1.{name}.weight": torch.full((128,), x) for name, x in norms.items()}
        return {**norm, **first, **second}

    @pytest.mark.parametrize("name", ["input_layernorm", "hidden_norm"])
    def test_either_name_is_taken(self, make_draft: DraftFactory, name: str) -> None:
        draft = make_draft(self.CONFIG)
        draft.load_weights(iter(self.tensors(**{name: 7.0}).items()))
        assert draft.model.layers[1].hidden_norm.weight.tolist() == [7.0] * 128

    @pytest.mark.parametrize("turned", [False, True])
    def test_a_file_with_both_has_told_which_is_which(
        self, make_draft: DraftFactory, turned: bool
    ) -> None:
        draft = make_draft(self.CONFIG)
        tensors = list(self.tensors(input_layernorm=5.0, hidden_norm=7.0).items())
        draft.load_weights(iter(tensors[::-1] if turned else tensors))
        assert draft.model.layers[1].hidden_norm.weight.tolist() == [7.0] * 128
        assert draft.model.layers[1].input_layernorm.weight.tolist() == [5.0] * 128

    def test_without_either_it_is_missing(self, make_draft: DraftFactory) -> None:
        with pytest.raises(DraftError, match=r"1 missing: layers.1.hidden_norm.weight \[128\]"):
            make_draft(self.CONFIG).load_weights(iter(self.tensors().items()))
