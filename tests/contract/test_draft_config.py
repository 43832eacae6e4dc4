"""draft-config: what SGLang's real config reader and draft class make of a draft's config."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from sglang_eagle3_patch.errors import DraftError
from tests.contract.conftest import DraftFactory
from tests.contract.drafts import mla_config
from tests.cpu_sglang.pair import forms

MakeConfig = Callable[[dict[str, Any]], Any]


def with_layer(**fields: Any) -> dict[str, Any]:
    """The speculators config with other fields in its decoder layer's config."""
    config = forms.speculators_config(False)
    config["transformer_layer_config"] = {**config["transformer_layer_config"], **fields}
    return config


def test_stock_refuses_a_speculators_config(make_config: MakeConfig, rank: None) -> None:
    with pytest.raises(ValueError, match="model_type"):
        make_config(forms.speculators_config(False))


@pytest.mark.usefixtures("plugin")
class TestSpeculatorsConfig:
    def test_it_is_read_like_the_native_one(self, make_config: MakeConfig) -> None:
        ours = make_config(forms.speculators_config(False))
        native = make_config(forms.sglang_config())
        for name in (
            "architectures",
            "model_type",
            "hidden_size",
            "intermediate_size",
            "num_hidden_layers",
            "num_attention_heads",
            "num_key_value_heads",
            "head_dim",
            "vocab_size",
            "draft_vocab_size",
            "rms_norm_eps",
            "tie_word_embeddings",
            "max_position_embeddings",
        ):
            assert getattr(ours, name) == getattr(native, name), name
        assert ours.rope_parameters["rope_theta"] == native.rope_parameters["rope_theta"]

    def test_rope_reaches_the_attention(self, make_draft: DraftFactory) -> None:
        draft = make_draft(
            with_layer(rope_parameters={"rope_theta": 50000.0, "rope_type": "default"})
        )
        assert draft.model.layers[0].self_attn.rotary_emb.base == 50000.0

    def test_another_draft_algorithm_is_left_alone(self, make_config: MakeConfig) -> None:
        config = {**forms.speculators_config(False), "speculators_model_type": "dflash"}
        with pytest.raises(ValueError, match="model_type") as refusal:
            make_config(config)
        assert not isinstance(refusal.value, DraftError)

    def test_a_qwen3_layer_is_refused_by_name(self, make_config: MakeConfig) -> None:
        with pytest.raises(DraftError, match=r"draft-config: .*model_type is 'qwen3'"):
            make_config(with_layer(model_type="qwen3"))


@pytest.mark.usefixtures("plugin")
class TestFlagsTheClassIgnores:
    def test_norm_before_residual(self, make_draft: DraftFactory) -> None:
        with pytest.raises(DraftError, match="norm_before_residual is true") as refusal:
            make_draft(forms.speculators_config(True))
        assert "SGLANG_EAGLE3_PATCH=-draft-config" in str(refusal.value)

    def test_norm_before_residual_in_sglangs_own_form(self, make_draft: DraftFactory) -> None:
        with pytest.raises(DraftError, match="norm_before_residual is true"):
            make_draft({**forms.sglang_config(), "norm_before_residual": True})

    def test_norm_before_residual_unstated(self, make_draft: DraftFactory) -> None:
        with pytest.raises(DraftError, match="norm_before_residual is unstated"):
            make_draft(forms.speculators_config(None))

    def test_norm_before_residual_in_the_mla_class(self, make_draft: DraftFactory) -> None:
        with pytest.raises(DraftError, match="norm_before_residual is true"):
            make_draft({**mla_config(), "norm_before_residual": True})

    def test_norm_before_fc_which_the_mla_class_lacks(self, make_draft: DraftFactory) -> None:
        with pytest.raises(DraftError, match=r"norm_before_fc is true.*no input_norm"):
            make_draft({**mla_config(), "eagle_config": {"norm_before_fc": True}})

    def test_flags_the_class_has_are_taken(self, make_draft: DraftFactory) -> None:
        for flags in ({"norm_before_fc": True}, {"fc_norm": True}, {"norm_output": True}):
            make_draft({**forms.speculators_config(False), **flags})

    def test_a_window_needs_its_flag(self, make_draft: DraftFactory) -> None:
        config = with_layer(layer_types=["sliding_attention"], sliding_window=512)
        with pytest.raises(DraftError, match=r"start with --speculative-draft-window-size 511"):
            make_draft(config)

    def test_a_window_with_its_flag_is_taken(
        self, make_draft: DraftFactory, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from sglang.srt.models import llama_eagle3

        # Launch arguments are published once a process; the class asks them for this one field.
        asked = SimpleNamespace(speculative_draft_window_size=511)
        monkeypatch.setattr(llama_eagle3, "get_spec", lambda: asked)
        make_draft(with_layer(layer_types=["sliding_attention"], sliding_window=512))
        with pytest.raises(DraftError, match="window of 511"):
            make_draft(with_layer(layer_types=["sliding_attention"], sliding_window=511))

    def test_a_window_that_a_config_class_made_up_is_not_judged(
        self, make_draft: DraftFactory
    ) -> None:
        config = make_draft({**forms.sglang_config(), "model_type": "gpt_oss"}).config
        assert "sliding_attention" in config.layer_types

    def test_every_ignored_flag_is_told(self, make_draft: DraftFactory) -> None:
        config = with_layer(layer_types=["sliding_attention"], sliding_window=512)
        with pytest.raises(DraftError, match=r"norm_before_residual.*; .*window of 512"):
            make_draft({**config, "norm_before_residual": True})


def test_stock_ignores_norm_before_residual(make_draft: DraftFactory) -> None:
    draft = make_draft({**forms.sglang_config(), "norm_before_residual": True})
    assert not [name for name, _ in draft.named_modules() if "residual" in name]
