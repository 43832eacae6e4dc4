"""aux-capture, on a real target of SGLang's with real setters."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
import torch

from sglang_eagle3_patch.checkpoint.spec import DraftSpec
from sglang_eagle3_patch.errors import DraftError
from sglang_eagle3_patch.hooks import aux_capture
from sglang_eagle3_patch.hooks.parts.target_capture import captured_inputs, capturing_module
from sglang_eagle3_patch.settings import PREFIX
from tests.contract.drafts import mla_config
from tests.cpu_sglang.pair import forms


@pytest.fixture
def target(rank: None) -> Any:
    """The real Kimi-K2.5 class over the tiny target's sizes, weights untouched."""
    from sglang.srt.configs.model_config import ModelConfig
    from sglang.srt.models.kimi_k25 import KimiK25ForConditionalGeneration
    from sglang.srt.runtime_context import get_context

    config = ModelConfig.from_server_args(get_context().server_args)
    model = KimiK25ForConditionalGeneration(config.hf_config)
    model.set_eagle3_layers_to_capture(None)
    return model


def spec_of(tmp_path: Path, config: dict[str, Any], **tensors: torch.Tensor) -> DraftSpec:
    weights = {**forms.drafter_weights(), **tensors}
    return DraftSpec.read(forms.write(tmp_path / "draft", weights, config))


def captured(target: Any) -> list[int]:
    return captured_inputs(capturing_module(target))


def speculators(ids: list[int] | None, architecture: str = "Eagle3DraftModel") -> dict[str, Any]:
    return {
        **forms.speculators_config(False),
        "eagle_aux_hidden_state_layer_ids": ids,
        "architectures": [architecture],
    }


@pytest.mark.parametrize("ids", [[2, 4, 5], [0, 3, 7], [3, 5, 6], [2, 3, 4]])
def test_what_the_trainer_wrote_is_captured(target: Any, tmp_path: Path, ids: list[int]) -> None:
    # SGLang's setter adds 1 only if the first id is 1; whatever it takes, these inputs come out.
    aux_capture.check_capture(target, spec_of(tmp_path, speculators(ids)), "draft")
    assert captured(target) == ids


def test_layers_that_the_class_cannot_set_are_refused(target: Any, tmp_path: Path) -> None:
    with pytest.raises(DraftError, match=r"wants the inputs of layers \[1, 3, 6\]"):
        aux_capture.check_capture(target, spec_of(tmp_path, speculators([1, 3, 6])), "draft")


def test_stock_would_shift_them(target: Any) -> None:
    # [0, 2, 6] are the outputs for inputs [1, 3, 7]; taken as inputs they are other layers.
    target.set_eagle3_layers_to_capture([0, 2, 6])
    assert captured(target) == [0, 2, 6]
    target.set_eagle3_layers_to_capture([1, 3, 4])
    assert captured(target) == [2, 4, 5]


def test_an_uncertain_origin_is_a_warning(
    target: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spec = spec_of(tmp_path, speculators([2, 3, 6], "Eagle3Speculator"))
    aux_capture.check_capture(target, spec, "draft")
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "aux_layers=" in caplog.text


def test_the_users_word_beats_the_config(
    target: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"{PREFIX}_OPTIONS", "aux_layers=2:3:7")
    aux_capture.check_capture(target, spec_of(tmp_path, speculators([2, 4, 5])), "draft")
    assert captured(target) == [2, 3, 7]


def test_a_native_draft_keeps_what_sglang_set(target: Any, tmp_path: Path) -> None:
    target.set_eagle3_layers_to_capture([2, 3, 6])
    aux_capture.check_capture(target, spec_of(tmp_path, forms.sglang_config()), "draft")
    assert captured(target) == [2, 3, 6]


@pytest.mark.parametrize(
    ("ids", "problem"),
    [
        ([3, 5], "fc takes 3 aux hidden states"),
        ([2, 4, 4], "not distinct and ascending"),
        ([2, 4, 11], "the target has 8 layers"),
    ],
)
def test_layers_that_cannot_be_right_are_refused(
    target: Any, tmp_path: Path, ids: list[int], problem: str
) -> None:
    target.set_eagle3_layers_to_capture(ids)
    with pytest.raises(DraftError, match=problem) as refusal:
        aux_capture.check_capture(target, spec_of(tmp_path, forms.sglang_config()), "draft")
    assert str(ids) in str(refusal.value)


def test_the_order_of_a_list_is_refused_only_where_it_could_be_the_trainers(
    target: Any, tmp_path: Path
) -> None:
    target.set_eagle3_layers_to_capture([5, 4, 2])
    native = spec_of(tmp_path, forms.sglang_config())  # SpecForge's names: captured in layer order
    aux_capture.check_capture(target, native, "draft")
    nobodys = DraftSpec(native.folder, native.config, native.tensors)
    with pytest.raises(DraftError, match="not distinct and ascending"):
        aux_capture.check_capture(target, nobodys, "draft")


def test_the_output_of_the_last_layer_is_a_warning(
    target: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    target.set_eagle3_layers_to_capture([2, 4, 8])
    aux_capture.check_capture(target, spec_of(tmp_path, forms.sglang_config()), "draft")
    assert "input of layer 8 is the output of the last layer" in caplog.text


class FlaggedTarget(torch.nn.Module):
    """A target as Qwen's mixtures of experts are: their real setter on layers of nothing."""

    def __init__(self) -> None:
        from sglang.srt.models.qwen2_moe import Qwen2MoeModel

        super().__init__()
        self.model = torch.nn.Module()
        self.model.layers = torch.nn.ModuleList(torch.nn.Identity() for _ in range(8))
        self.setter = Qwen2MoeModel.set_eagle3_layers_to_capture

    def set_eagle3_layers_to_capture(self, layer_ids: list[int] | None) -> None:
        ids = [2, 4, 5] if layer_ids is None else [layer + 1 for layer in layer_ids]
        self.setter(self.model, ids)

    def flagged(self) -> list[int]:
        flags = [getattr(layer, "_is_layer_to_capture", False) for layer in self.model.layers]
        return [index for index, flag in enumerate(flags) if flag]


class TestTargetsWithAFlagOnEachLayer:
    def test_setting_again_does_not_add_up(self, rank: None, tmp_path: Path) -> None:
        target = FlaggedTarget()
        target.set_eagle3_layers_to_capture(None)
        spec = spec_of(tmp_path, speculators([1, 3, 6]))
        aux_capture.check_capture(target, spec, "draft")
        assert target.flagged() == [1, 3, 6]

    def test_stock_adds_up(self, rank: None) -> None:
        target = FlaggedTarget()
        target.set_eagle3_layers_to_capture(None)
        target.set_eagle3_layers_to_capture([0, 2, 5])
        assert target.flagged() == [1, 2, 3, 4, 5, 6]

    def test_what_is_really_captured_is_what_is_checked(self, rank: None, tmp_path: Path) -> None:
        target = FlaggedTarget()
        target.set_eagle3_layers_to_capture(None)
        target.set_eagle3_layers_to_capture([0, 2, 5])
        with pytest.raises(DraftError, match=r"\[1, 2, 3, 4, 5, 6\] .* takes 3 aux hidden states"):
            aux_capture.check_capture(target, spec_of(tmp_path, forms.sglang_config()), "draft")


class MiniMaxTarget(torch.nn.Module):
    """A target as MiniMax-M3 is: its real setter, which flags layers and lists the last output."""

    def __init__(self) -> None:
        from sglang.srt.models.minimax_m3 import MiniMaxM3SparseForCausalLM

        super().__init__()
        self.config = SimpleNamespace(num_hidden_layers=8)
        self.pp_group = SimpleNamespace(is_last_rank=True)
        self.model = torch.nn.Module()
        self.model.layers = torch.nn.ModuleList(torch.nn.Identity() for _ in range(8))
        self.setter = MiniMaxM3SparseForCausalLM.set_eagle3_layers_to_capture

    def set_eagle3_layers_to_capture(self, layer_ids: list[int] | None) -> None:
        self.setter(self, layer_ids)


@pytest.mark.parametrize("ids", [[1, 4, 7], [2, 4, 8]])
def test_the_last_output_has_no_layer_to_be_flagged(
    rank: None, tmp_path: Path, ids: list[int]
) -> None:
    target = MiniMaxTarget()
    target.set_eagle3_layers_to_capture(None)
    aux_capture.check_capture(target, spec_of(tmp_path, speculators(ids)), "draft")
    assert captured(target) == ids


class TestTheFlag:
    CONFIG: dict[str, Any] = {  # noqa: RUF012
        **forms.sglang_config(),
        "eagle_config": {"use_aux_hidden_state": False},
    }

    def read(self, make_config: Callable[[dict[str, Any]], Any], folder: Path) -> bool:
        from sglang.srt.utils.hf_transformers_utils import get_config

        config = get_config(str(folder), trust_remote_code=False)
        used: bool = config.eagle_config["use_aux_hidden_state"]
        return used

    @pytest.mark.usefixtures("plugin")
    def test_it_is_forced_on_for_an_fc_over_several_layers(
        self, make_config: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        folder = forms.write(tmp_path / "d", forms.drafter_weights(), self.CONFIG)
        assert self.read(make_config, folder)
        assert "its fc takes 3 aux hidden states" in caplog.text

    @pytest.mark.usefixtures("plugin")
    def test_a_draft_without_fc_is_left_alone(self, make_config: Any, tmp_path: Path) -> None:
        tensors = forms.drafter_weights()
        del tensors["fc.weight"]
        assert not self.read(make_config, forms.write(tmp_path / "d", tensors, self.CONFIG))

    @pytest.mark.usefixtures("rank")
    def test_stock_takes_it_at_its_word(self, make_config: Any, tmp_path: Path) -> None:
        folder = forms.write(tmp_path / "d", forms.drafter_weights(), self.CONFIG)
        assert not self.read(make_config, folder)


class TestADraftOfTheHubBeforeItsWeightsAreFetched:
    """The hub is mocked, there being none: its cache holds the config, and it may tell headers."""

    # The native draft of TorchSpec and the one for vLLM have this config, and other names.
    CONFIG: dict[str, Any] = {  # noqa: RUF012
        **mla_config(),
        "model_type": "kimi_k2",
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 3, 6]},
    }

    def runner(self, target: Any, monkeypatch: pytest.MonkeyPatch, folder: Path) -> Any:
        (folder / "config.json").write_text(json.dumps(self.CONFIG))
        monkeypatch.setattr(
            huggingface_hub, "try_to_load_from_cache", lambda *_, **__: str(folder / "config.json")
        )
        target.set_eagle3_layers_to_capture([2, 3, 6])  # as SGLang has done before
        arguments = SimpleNamespace(
            speculative_draft_model_path="org/draft", speculative_draft_model_revision="v2"
        )
        return SimpleNamespace(
            model=target,
            is_draft_worker=False,
            server_args=arguments,
            spec_algorithm=SimpleNamespace(name="EAGLE3", is_eagle3=lambda: True),
        )

    @pytest.mark.parametrize(
        ("layer", "inputs"), [("layers.0", [2, 3, 6]), ("midlayer", [3, 4, 7])]
    )
    def test_the_hub_is_asked_for_the_names(
        self,
        target: Any,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
        layer: str,
        inputs: list[int],
    ) -> None:
        runner = self.runner(target, monkeypatch, tmp_path)
        shapes = {f"{layer}.hidden_norm.weight": [128], "fc.weight": [128, 3 * 128]}
        part = SimpleNamespace(
            tensors={k: SimpleNamespace(dtype="BF16", shape=v) for k, v in shapes.items()}
        )
        asked = []

        def metadata(name: str, *, revision: str | None) -> Any:
            asked.append((name, revision))
            return SimpleNamespace(files_metadata={"model.safetensors": part})

        monkeypatch.setattr(huggingface_hub, "get_safetensors_metadata", metadata)
        aux_capture.after_capture_is_set(lambda: None, runner, (), {})
        assert asked == [("org/draft", "v2")]
        assert captured(target) == inputs
        assert "WARNING" not in [record.levelname for record in caplog.records]

    @pytest.mark.parametrize("problem", [OSError("offline"), KeyError("files")])
    def test_where_it_does_not_tell_both_readings_are(
        self,
        target: Any,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
        problem: Exception,
    ) -> None:
        def metadata(*_: Any, **__: Any) -> Any:
            raise problem

        runner = self.runner(target, monkeypatch, tmp_path)
        monkeypatch.setattr(huggingface_hub, "get_safetensors_metadata", metadata)
        aux_capture.after_capture_is_set(lambda: None, runner, (), {})
        assert captured(target) == [2, 3, 6]
        warned = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
        readings = "inputs [2, 3, 6] or outputs, which are inputs [3, 4, 7]"
        assert any(readings in text for text in warned)


def test_a_draft_worker_is_not_checked() -> None:
    runner = SimpleNamespace(is_draft_worker=True)
    assert aux_capture.after_capture_is_set(lambda: "ran", runner, (), {}) == "ran"


def test_a_target_that_keeps_its_layers_elsewhere_is_told(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    caplog.set_level("INFO")
    spec = spec_of(tmp_path, forms.sglang_config())
    aux_capture.check_capture(torch.nn.Linear(2, 2), spec, "draft")
    assert "captured layers can't be checked" in caplog.text
