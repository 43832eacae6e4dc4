"""Which layers a draft was trained on, from its ids and from who wrote them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sglang_eagle3_patch.checkpoint import aux_layers
from sglang_eagle3_patch.checkpoint.aux_layers import KEY, AuxLayers
from sglang_eagle3_patch.checkpoint.config import ConfigNotUnderstood
from sglang_eagle3_patch.checkpoint.producers import PRODUCERS, UNKNOWN, recognise
from tests.cpu_sglang.pair import forms

CHECKPOINTS = Path(__file__).parents[2] / "checkpoints"
BY_NAME = {producer.name: producer for producer in PRODUCERS}


def speculators(ids: Any, **changes: Any) -> dict[str, Any]:
    return {**forms.speculators_config(False), KEY: ids, **changes}


def native(ids: Any) -> dict[str, Any]:
    return {**forms.sglang_config(), "eagle_config": {KEY: ids}}


def resolved(config: dict[str, Any], num_layers: int = 8, producer: str = "") -> AuxLayers:
    found = BY_NAME[producer] if producer else recognise(config, ())
    return aux_layers.resolve(config, num_layers, None, found)


def test_the_users_word_beats_the_config() -> None:
    assert aux_layers.resolve(native([1, 3, 4]), 8, option=(1, 2, 3)).inputs == (1, 2, 3)


class TestSpeculators:
    def test_the_trainer_means_inputs(self) -> None:
        found = resolved(speculators([1, 3, 5]))
        assert found.inputs == (1, 3, 5)
        assert found.certain

    @pytest.mark.parametrize("version", ["0.3.0", "0.4.0.1"])
    def test_the_early_trainer_meant_outputs(self, version: str) -> None:
        found = resolved(speculators([1, 3, 4], speculators_version=version))
        assert found.inputs == (2, 4, 5)
        assert found.certain

    def test_without_ids_the_early_trainer_is_one_layer_later(self) -> None:
        config = json.loads((CHECKPOINTS / "speculators-0.3.0" / "config.json").read_text())
        found = resolved(config)
        assert found.inputs == (3, 5, 6)
        assert not found.certain
        assert "outputs of [2, 4, 5]" in found.source

    def test_without_ids_the_default_is_taken(self) -> None:
        found = resolved(speculators(None))
        assert found.inputs == (2, 4, 5)
        assert not found.certain

    def test_the_converter_copies_what_was_typed(self) -> None:
        converter = ["Eagle3Speculator"]
        outputs = resolved(speculators([1, 3, 4], architectures=converter))
        assert outputs.inputs == (2, 4, 5)
        assert outputs.certain
        open_to_both = resolved(speculators([1, 2, 3], architectures=converter))
        assert not open_to_both.certain
        assert "inputs [1, 2, 3] or outputs, which are inputs [2, 3, 4]" in open_to_both.source


class TestEagleConfig:
    # What SpecForge ships, with the layers of their targets; [1, 17, 33] of 36 among them.
    @pytest.mark.parametrize(
        ("ids", "num_layers"), [([1, 29, 57], 61), ([1, 17, 33], 36), ([1, 23, 44], 48)]
    )
    def test_specforge_trains_through_sglangs_setter(self, ids: list[int], num_layers: int) -> None:
        found = resolved(native(ids), num_layers, "SpecForge")
        assert found.inputs is None
        assert found.certain

    @pytest.mark.parametrize("producer", ["ModelOpt", "TorchSpec", "AngelSlim"])
    def test_outputs_whatever_the_first_is(self, producer: str) -> None:
        found = resolved(native([2, 30, 57]), 61, producer)
        assert found.inputs == (3, 31, 58)
        assert found.certain

    def test_the_order_of_a_list_says_nothing_where_layers_are_captured_in_theirs(self) -> None:
        found = resolved(native([32, 1, 17]), 36, "ModelOpt")
        assert found.inputs == (2, 18, 33)

    def test_an_empty_list_states_none(self) -> None:
        assert resolved(native([]), 8, "ModelOpt").inputs is None

    def test_a_llama_draft_of_torchspec_for_vllm_has_outputs(self) -> None:
        config = {**native([1, 17, 32]), "model_type": "llama", "_torchspec_version": "0.1"}
        producer = recognise(config, ["layers.0.hidden_norm.weight"])
        assert aux_layers.resolve(config, 36, None, producer).inputs == (2, 18, 33)

    def test_without_names_both_readings_of_torchspecs_ids_are_told(self) -> None:
        config = {**native([2, 30, 57]), **{"architectures": ["Eagle3DeepseekV2ForCausalLM"]}}
        config["model_type"] = "kimi_k2"
        found = resolved(config, 61)
        assert (found.inputs, found.certain) == (None, False)
        assert "inputs [2, 30, 57] or outputs, which are inputs [3, 31, 58]" in found.source

    def test_inputs_stay(self) -> None:
        found = resolved(native([2, 30, 58]), 61, "TorchSpec, exported for vLLM")
        assert found.inputs == (2, 30, 58)

    @pytest.mark.parametrize("producer", ["", "ModelOpt", "SpecForge"])
    def test_the_last_layers_output_can_only_be_an_input(self, producer: str) -> None:
        found = resolved(native([24, 30, 36]), 36, producer)
        assert found.inputs == (24, 30, 36)
        assert found.certain

    @pytest.mark.parametrize(
        ("ids", "inputs"), [([2, 30, 58], (2, 30, 58)), ([1, 29, 57], (2, 30, 58))]
    )
    def test_the_default_tells_its_convention(self, ids: list[int], inputs: tuple[int]) -> None:
        found = aux_layers.resolve(native(ids), 61, None, UNKNOWN)
        assert found.inputs == inputs
        assert found.certain

    def test_an_unknown_producer_keeps_sglangs_meaning_and_names_both(self) -> None:
        found = aux_layers.resolve(native([3, 9, 20]), 61, None, UNKNOWN)
        assert found.inputs is None
        assert not found.certain
        assert "inputs [3, 9, 20] or outputs, which are inputs [4, 10, 21]" in found.source

    def test_it_comes_before_the_top_level(self) -> None:
        found = resolved({**native([1, 2, 3]), KEY: [4, 5, 6]}, producer="ModelOpt")
        assert found.inputs == (2, 3, 4)

    def test_without_ids_sglangs_default_stays(self) -> None:
        found = resolved(forms.sglang_config())
        assert found.inputs is None
        assert found.certain


def test_the_top_level_alone_is_read_too() -> None:
    found = aux_layers.resolve({**forms.sglang_config(), KEY: [2, 4, 5]}, 8, None, UNKNOWN)
    assert found.inputs == (2, 4, 5)
    assert found.certain


@pytest.mark.parametrize("ids", ["2,4,5", [2, True, 5], [-1, 2, 3], [2.0, 4, 5], {}])
@pytest.mark.parametrize("form", [native, speculators])
def test_what_is_no_list_of_layers_is_refused(form: Any, ids: Any) -> None:
    with pytest.raises(ConfigNotUnderstood, match="no list of layer numbers"):
        resolved(form(ids))
