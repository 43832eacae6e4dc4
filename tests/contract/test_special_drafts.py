"""draft-weights for MLA and quantised drafts, padded sizes, and tensors that are no weights."""

from __future__ import annotations

import copy
import math
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
from tests.contract.drafts import Tensors, drop, mla_config, mla_tensors, prefixed, unfilled
from tests.contract.test_load_paths import loaded
from tests.cpu_sglang.pair import forms
from tests.cpu_sglang.pair.drafter import DrafterShape


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


def quantised() -> tuple[forms.Tensors, dict[str, Any]]:
    """The pair's draft in fp8 with a scale for each row, as a checkpoint of `w8a8_fp8` holds it."""
    tensors, config = forms.founding()
    for name in [name for name in tensors if name.endswith("_proj.weight")]:
        weight = tensors[name].float()
        scale = weight.abs().amax(1, keepdim=True) / 448
        tensors[name] = (weight / scale).to(torch.float8_e4m3fn)
        tensors[f"{name}_scale"] = scale
    return tensors, {**config, "quantization_config": {"quant_method": "w8a8_fp8"}}


class TestQuantisedCheckpoint:
    """Of the methods of quantised checkpoints, the one whose linears this CPU can build."""

    OUT = "layers.0.self_attn.o_proj"

    def rounded_by(self, draft: Any) -> float:
        linear = draft.model.layers[0].self_attn.o_proj
        served = linear.weight.float().t() * linear.weight_scale
        trained = forms.drafter_weights()["midlayer.self_attn.o_proj.weight"].float()
        return float((served - trained).norm() / trained.norm())

    def load(self, folder: Path, checkpoint: tuple[forms.Tensors, dict[str, Any]]) -> Any:
        return loaded(forms.write(folder, *checkpoint), "auto", "w8a8_fp8")

    @pytest.mark.usefixtures("plugin")
    def test_it_loads_whole(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level("INFO")
        assert 0.01 < self.rounded_by(self.load(tmp_path, quantised())) < 0.1
        assert "all 21 tensors of the draft loaded" in caplog.text

    @pytest.mark.usefixtures("plugin")
    @pytest.mark.parametrize("part", ["o_proj", "k_proj"])
    def test_a_scale_that_is_missing_is_refused(self, tmp_path: Path, part: str) -> None:
        tensors, config = quantised()
        del tensors[f"layers.0.self_attn.{part}.weight_scale"]
        with pytest.raises(DraftError, match=rf"1 missing: layers.0.self_attn.{part}.weight_scale"):
            self.load(tmp_path, (tensors, config))

    @pytest.mark.usefixtures("plugin")
    def test_a_scale_that_nothing_takes_is_refused(self, tmp_path: Path) -> None:
        tensors, config = quantised()
        scale = tensors.pop(f"{self.OUT}.weight_scale")
        tensors[f"{self.OUT}.weight_scale_inv"] = scale
        with pytest.raises(DraftError, match=r"not used: layers.0.self_attn.o_proj.weight_scale_i"):
            self.load(tmp_path, (tensors, config))

    @pytest.mark.usefixtures("rank")
    def test_stock_serves_what_the_memory_held(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # `loaded` goes through the hook behind the load, which finds nothing accounted for.
        monkeypatch.setattr(draft_weights, "refuse_unaccounted", lambda *_: None)
        tensors, config = quantised()
        del tensors[f"{self.OUT}.weight_scale"]
        torch.use_deterministic_algorithms(True, warn_only=True)  # fresh memory is NaN
        try:
            assert math.isnan(self.rounded_by(self.load(tmp_path, (tensors, config))))
        finally:
            torch.use_deterministic_algorithms(False)
