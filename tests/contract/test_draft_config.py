"""draft-config: what SGLang's real config reader and draft class make of a draft's config."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import sglang_eagle3_patch
from sglang_eagle3_patch.checkpoint.producers import UNKNOWN
from sglang_eagle3_patch.checkpoint.spec import DraftSpec
from sglang_eagle3_patch.checkpoint.trained_rope import resolve
from sglang_eagle3_patch.errors import DraftError
from sglang_eagle3_patch.hooks import draft_rope
from sglang_eagle3_patch.hooks.draft_rope import with_trained_rope
from sglang_eagle3_patch.hooks.parts import local_draft
from sglang_eagle3_patch.settings import PREFIX
from tests.contract.conftest import DraftFactory
from tests.contract.drafts import mla_config
from tests.cpu_sglang.pair import forms
from tests.unit.checkpoint import drafts as producers

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

    def test_a_qwen3_layer_is_llamas_with_norms_of_q_and_k(self, make_config: MakeConfig) -> None:
        config = make_config(with_layer(model_type="qwen3"))
        assert config.model_type == "llama"
        assert config.qk_norm

    def test_a_layer_of_another_kind_is_refused_by_name(self, make_config: MakeConfig) -> None:
        with pytest.raises(DraftError, match=r"draft-config: .*model_type is 'gpt_oss'"):
            make_config(with_layer(model_type="gpt_oss"))


@pytest.mark.parametrize(
    ("stated", "changes"),
    [
        ({"rope_theta": 5e4, "rope_type": "default"}, {"rope_theta": 5e4}),
        (
            {"rope_theta": 5e4, "rope_type": "yarn", "factor": 4.0},
            {"rope_theta": 5e4, "rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
        ),
        ({"full_attention": {"rope_theta": 5e4}}, {}),
    ],
)
def test_a_native_config_states_its_rope_for_transformers_4_too(
    stated: dict[str, Any], changes: dict[str, Any]
) -> None:
    # transformers 4 is not in this environment; the cells of fidelity run where it is (0.5.9).
    config = {"rope_parameters": stated, "rope_scaling": None}
    assert with_trained_rope(config, resolve(config, UNKNOWN)) == {**config, **changes}


def test_scaling_without_a_theta_goes_with_the_theta_beside_it() -> None:
    linear = {"rope_type": "linear", "factor": 2.0}
    config = {"rope_theta": 1e6, "rope_parameters": linear}
    assert with_trained_rope(config, resolve(config, UNKNOWN)) == {
        "rope_theta": 1e6,
        "rope_parameters": {"rope_theta": 1e6, **linear},
        "rope_scaling": linear,
    }


@pytest.mark.parametrize(
    "config",
    [
        {"rope_theta": 1e6},
        {"rope_theta": 1e6, "rope_scaling": {"type": "linear", "factor": 2.0}},
        {"rope_theta": 1e6, "rope_scaling": {"rope_type": "default", "rope_theta": 1e6}},
        {},
    ],
)
def test_a_rope_that_both_versions_read_as_trained_is_left_alone(config: dict[str, Any]) -> None:
    assert with_trained_rope(config, resolve(config, UNKNOWN)) == config


ANGELSLIM = {**forms.sglang_config(), "modal_type": "LLM", "rope_theta": 1e6}
TWO_THETAS = {**forms.sglang_config(), "rope_theta": 1e6, "rope_parameters": {"rope_theta": 5e4}}


def base(draft: Any) -> float:
    """The theta of the rope that SGLang has built."""
    built: float = draft.model.layers[0].self_attn.rotary_emb.base
    return built


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if "rope_theta" in r.getMessage()]


def test_stock_serves_the_theta_that_the_trainer_ignored(make_draft: DraftFactory) -> None:
    assert base(make_draft(ANGELSLIM)) == 1e6


@pytest.mark.usefixtures("plugin")
class TestTheta:
    @pytest.mark.parametrize("form", ["rope_theta", "rope_parameters"])
    def test_one_that_the_trainer_ignored_is_replaced(
        self, make_draft: DraftFactory, caplog: pytest.LogCaptureFixture, form: str
    ) -> None:
        config = dict(ANGELSLIM)
        if form == "rope_parameters":
            config[form] = {"rope_theta": config.pop("rope_theta"), "rope_type": "default"}
        draft = make_draft(config)
        assert base(draft) == 10000.0
        assert draft.config.rope_parameters["rope_theta"] == 10000.0
        (said,) = warnings_of(caplog)
        assert "is 1000000, and it is served with 10000: AngelSlim trains with" in said
        assert "SGLANG_EAGLE3_PATCH_OPTIONS=rope_theta=1000000" in said

    def test_one_that_the_trainer_may_have_ignored_stays(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        from sglang.srt.utils.hf_transformers_utils import get_config

        tensors, config = forms.native()  # by its names SpecForge's
        folder = forms.write(tmp_path / "draft", tensors, {**config, "rope_theta": 1e6})
        for _ in range(2):
            found = get_config(str(folder), trust_remote_code=False)
            assert found.rope_parameters["rope_theta"] == 1e6
        (said,) = warnings_of(caplog)
        assert "is 1000000, which it is served with; SpecForge before November 2025" in said
        assert "SGLANG_EAGLE3_PATCH_OPTIONS=rope_theta=10000" in said

    def test_of_two_none_is_taken(self, make_config: MakeConfig) -> None:
        with pytest.raises(DraftError, match="1000000 as rope_theta and 50000 in") as refusal:
            make_config(TWO_THETAS)
        assert "OPTIONS=rope_theta=1000000 or SGLANG_EAGLE3_PATCH_OPTIONS=rope_theta=50000" in str(
            refusal.value
        )

    def test_of_two_in_a_speculators_config_none_is_taken(self, make_config: MakeConfig) -> None:
        with pytest.raises(DraftError, match="1000000 as rope_theta and 50000 in"):
            make_config(with_layer(rope_theta=1e6, rope_parameters={"rope_theta": 5e4}))

    @pytest.mark.parametrize(
        "config",
        [
            ANGELSLIM,
            TWO_THETAS,
            forms.sglang_config(),
            with_layer(rope_theta=1e6, rope_parameters={"rope_theta": 5e4}),
        ],
    )
    def test_the_users_word_goes_before_all(
        self, make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch, config: dict[str, Any]
    ) -> None:
        monkeypatch.setenv(f"{PREFIX}_OPTIONS", "rope_theta=5e5")
        assert make_config(config).rope_parameters["rope_theta"] == 5e5

    def test_the_users_word_is_not_for_the_target(
        self, make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv(f"{PREFIX}_OPTIONS", "rope_theta=5e5")
        target = {**forms.sglang_config(), "architectures": ["LlamaForCausalLM"]}
        assert make_config(target).rope_parameters["rope_theta"] == 10000.0

    def test_what_the_hub_has_of_a_draft_tells_its_trainer(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        # The hub is a fake: its draft's config is here, and its weights are not yet.
        _, config, headers = producers.WRITTEN["SpecForge"]
        config = {**config, "rope_theta": 1e6}
        spec = DraftSpec.of(config, {}, tmp_path)
        monkeypatch.setattr(draft_rope, "read_draft", lambda *_: spec)
        monkeypatch.setattr(local_draft, "hub_headers", lambda *_: headers)
        found = draft_rope.trained_rope(config, "org/a-draft", None)
        assert found.otherwise == 10000.0
        (said,) = warnings_of(caplog)
        assert "rope_theta of org/a-draft is 1000000" in said


@pytest.fixture
def without_draft_forward(rank: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(PREFIX, "-draft-forward")
    sglang_eagle3_patch.activate()
    yield
    sglang_eagle3_patch.deactivate()


@pytest.mark.usefixtures("without_draft_forward")
class TestFlagsTheClassIgnores:
    def test_norm_before_residual(self, make_draft: DraftFactory) -> None:
        with pytest.raises(DraftError, match="norm_before_residual is true") as refusal:
            make_draft(forms.speculators_config(True))
        assert "SGLANG_EAGLE3_PATCH=-draft-config" in str(refusal.value)

    def test_norm_before_residual_in_sglangs_own_form(self, make_draft: DraftFactory) -> None:
        with pytest.raises(DraftError, match="norm_before_residual is true"):
            make_draft({**forms.sglang_config(), "norm_before_residual": True})

    def test_norm_before_residual_in_the_mla_class(self, make_draft: DraftFactory) -> None:
        with pytest.raises(DraftError, match="norm_before_residual is true"):
            make_draft({**mla_config(), "norm_before_residual": True})

    def test_norm_before_fc_which_the_mla_class_lacks(self, make_draft: DraftFactory) -> None:
        with pytest.raises(DraftError, match=r"norm_before_fc is true.*no input_norm"):
            make_draft({**mla_config(), "eagle_config": {"norm_before_fc": True}})

    def test_a_qwen3_layer(self, make_draft: DraftFactory) -> None:
        with pytest.raises(DraftError, match=r"Qwen3's, and the class has no q_norm"):
            make_draft(with_layer(model_type="qwen3"))

    def test_flags_the_class_has_are_taken(self, make_draft: DraftFactory) -> None:
        for flags in ({"norm_before_fc": True}, {"fc_norm": True}, {"norm_output": True}):
            make_draft({**forms.speculators_config(False), **flags})

    def test_every_ignored_flag_is_told(self, make_draft: DraftFactory) -> None:
        config = with_layer(layer_types=["sliding_attention"], sliding_window=512)
        with pytest.raises(DraftError, match=r"norm_before_residual.*; .*window of 512"):
            make_draft({**config, "norm_before_residual": True})


@pytest.mark.usefixtures("plugin")
class TestFlags:
    def test_what_draft_forward_computes_is_taken(self, make_draft: DraftFactory) -> None:
        make_draft({**with_layer(model_type="qwen3"), "norm_before_residual": True})
        flags = {"norm_before_residual": True, "eagle_config": {"norm_before_fc": True}}
        make_draft({**mla_config(), **flags})

    def test_norm_before_residual_unstated(self, make_draft: DraftFactory) -> None:
        with pytest.raises(DraftError, match="norm_before_residual is unstated"):
            make_draft(forms.speculators_config(None))

    def test_two_norms_in_an_order_the_class_has_not_are_refused(
        self, make_draft: DraftFactory
    ) -> None:
        with pytest.raises(DraftError, match=r"norm_before_fc is true.*no input_norm"):
            make_draft({**mla_config(), "norm_before_fc": True, "fc_norm": True})

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

    @pytest.mark.parametrize("served", [None, 511])
    def test_a_window_of_some_layers_is_refused_by_name(
        self, make_draft: DraftFactory, monkeypatch: pytest.MonkeyPatch, served: int | None
    ) -> None:
        from sglang.srt.models import llama_eagle3

        asked = SimpleNamespace(speculative_draft_window_size=served)
        monkeypatch.setattr(llama_eagle3, "get_spec", lambda: asked)
        mixed = ["full_attention", "sliding_attention"]
        config = with_layer(layer_types=mixed, sliding_window=512, num_hidden_layers=2)
        with pytest.raises(DraftError, match=r"'full_attention', 'sliding_attention'") as refusal:
            make_draft(config)
        assert "Fix: train all of its layers with one window, or none." in str(refusal.value)
        assert "--speculative-draft-window-size" not in str(refusal.value)

    def test_a_window_that_a_config_class_made_up_is_not_judged(
        self, make_draft: DraftFactory
    ) -> None:
        config = make_draft({**forms.sglang_config(), "model_type": "gpt_oss"}).config
        assert "sliding_attention" in config.layer_types


def test_stock_ignores_norm_before_residual(make_draft: DraftFactory) -> None:
    draft = make_draft({**forms.sglang_config(), "norm_before_residual": True})
    assert not [name for name, _ in draft.named_modules() if "residual" in name]


class TestWhatNoReleaseComputes:
    @pytest.mark.parametrize(
        ("changes", "told"),
        [
            ({"parallel_drafting": True}, "parallel_drafting: True"),
            ({"residual_scale": 0.5}, "residual_scale: 0.5"),
            ({"eagle_config": {"next_layer_regular": False}}, "next_layer_regular: False"),
            ({"eagle_config": {"parallel_draft_step": 4}}, "parallel_draft_step: 4"),
        ],
    )
    @pytest.mark.parametrize("form", [forms.sglang_config, lambda: forms.speculators_config(False)])
    def test_is_refused(
        self, plugin: None, make_config: Any, form: Any, changes: dict[str, Any], told: str
    ) -> None:
        with pytest.raises(DraftError, match=f"no SGLang release computes: .*{told}"):
            make_config({**form(), **changes})

    @pytest.mark.parametrize(
        "changes",
        [
            {"eagle_config": {"next_layer_regular": True, "parallel_draft_step": 1}},
            {"parallel_drafting": False, "new_bookkeeping": None, "_of_a_trainer": "x"},
        ],
    )
    def test_what_says_nothing_passes(
        self, plugin: None, make_config: Any, changes: dict[str, Any]
    ) -> None:
        make_config({**forms.sglang_config(), **changes})
