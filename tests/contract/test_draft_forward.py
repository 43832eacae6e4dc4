"""draft-forward: SGLang's real draft classes against the plain torch reference, over three steps.

Runs at any release: `./launch.sh run --sglang 0.5.9 -- pytest …`.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import sglang_eagle3_patch
from sglang_eagle3_patch.errors import DraftError
from sglang_eagle3_patch.hooks.parts.draft_pieces import input_layer
from sglang_eagle3_patch.parity.sglang_draft import SglangDraft
from sglang_eagle3_patch.settings import PREFIX
from tests.contract.flagged_drafts import (
    agreement,
    deepseek_config,
    difference,
    llama_config,
    served,
    tensors_for,
    trained,
)
from tests.cpu_sglang.pair import forms
from tests.oracles import golden_files

MakeConfig = Callable[..., dict[str, Any]]
SAME, OTHER = 1e-4, 0.05

HAS_MLA = importlib.util.find_spec("sglang.srt.models.kimi_k25_eagle3") is not None
CLASSES = [
    pytest.param(llama_config, id="llama"),
    pytest.param(
        deepseek_config,
        id="mla",
        marks=pytest.mark.skipif(not HAS_MLA, reason="the MLA class came with 0.5.12"),
    ),
]
FC_INPUT = [{}, {"norm_before_fc": True}, {"fc_norm": True}]
COMBINATIONS = [
    {"norm_before_residual": residual, **fc_input, "norm_output": output}
    for residual, fc_input, output in product((False, True), FC_INPUT, (False, True))
]


def name_of(flags: dict[str, Any]) -> str:
    return "+".join(flag for flag, on in flags.items() if on) or "none"


@pytest.fixture
def plugin() -> Iterator[None]:
    sglang_eagle3_patch.activate()
    yield
    sglang_eagle3_patch.deactivate()


def rope_of(draft: SglangDraft) -> Any:
    return input_layer(draft.model.model).self_attn.rotary_emb


def has_several_layers() -> bool:
    from sglang.srt.models import llama_eagle3

    return "is_input_layer" in Path(llama_eagle3.__file__ or "").read_text(encoding="utf-8")


def assert_as_trained(tensors: forms.Tensors, config: dict[str, Any], folder: Path) -> None:
    ours, reference = served(folder, tensors, config), trained(tensors, config, folder)
    assert difference(ours, reference) <= SAME
    assert agreement(ours, reference) == 1.0


@pytest.mark.usefixtures("plugin")
class TestAsTrained:
    @pytest.mark.parametrize("flags", COMBINATIONS, ids=name_of)
    @pytest.mark.parametrize("make_config", CLASSES)
    def test_every_combination(
        self, make_config: MakeConfig, flags: dict[str, Any], tmp_path: Path
    ) -> None:
        config = make_config(**flags)
        assert_as_trained(tensors_for(config), config, tmp_path)

    @pytest.mark.parametrize("make_config", CLASSES)
    def test_nothing_of_the_residual_hangs_on_the_scale_of_fc(
        self, make_config: MakeConfig, tmp_path: Path
    ) -> None:
        # Needs no reference: all that fc's output goes through first is a norm.
        config = make_config(norm_before_residual=True)
        tensors = tensors_for(config)
        scaled = {**tensors, "fc.weight": 16 * tensors["fc.weight"]}
        plain = served(tmp_path / "plain", tensors, config)
        assert difference(served(tmp_path / "scaled", scaled, config), plain) <= SAME
        raw = {**config, "norm_before_residual": False}
        without = served(tmp_path / "raw", tensors, raw)
        assert difference(served(tmp_path / "raw-scaled", scaled, raw), without) > OTHER

    @pytest.mark.parametrize("number", [2, 3])
    def test_only_the_first_layer_norms_its_residual(self, number: int, tmp_path: Path) -> None:
        if not has_several_layers():
            pytest.skip("this release refuses several layers itself")
        config = llama_config(
            num_hidden_layers=number, norm_before_residual=True, fc_norm=True, norm_output=True
        )
        assert_as_trained(tensors_for(config), config, tmp_path)

    def test_norms_of_q_and_k(self, tmp_path: Path) -> None:
        config = llama_config(qk_norm=True, norm_before_residual=True)
        assert_as_trained(tensors_for(config), config, tmp_path)

    def test_biases_of_the_attention(self, tmp_path: Path) -> None:
        config = llama_config(attention_bias=True, norm_before_residual=True)
        assert_as_trained(tensors_for(config), config, tmp_path)

    def test_a_bias_and_a_norm_of_the_same_projection(self, tmp_path: Path) -> None:
        config = llama_config(attention_bias=True, qk_norm=True)
        assert_as_trained(tensors_for(config), config, tmp_path)

    @pytest.mark.parametrize(
        "amplitude",
        [{}, {"mscale": 0.7, "mscale_all_dim": 1.3}, {"attention_factor": 0.6}],
        ids=lambda amplitude: "+".join(amplitude) or "of the factor",
    )
    def test_the_amplitude_of_yarn(self, amplitude: dict[str, float], tmp_path: Path) -> None:
        yarn = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64}
        config = llama_config(rope_parameters={"rope_theta": 5e4, **yarn, **amplitude})
        tensors = tensors_for(config)
        assert_as_trained(tensors, config, tmp_path)

    def test_the_rope_that_models_share_is_left_as_it_is(self, tmp_path: Path) -> None:
        yarn = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64}
        scaling = {**yarn, "attention_factor": 0.6}
        config = llama_config(rope_parameters={"rope_theta": 5e4, **scaling}, rope_scaling=scaling)
        folder = forms.write(tmp_path, tensors_for(config), config)
        ours = rope_of(SglangDraft(folder))
        sglang_eagle3_patch.deactivate()
        stock = rope_of(SglangDraft(folder))
        assert ours.mscale == pytest.approx(0.6)
        assert stock.mscale == pytest.approx(1 + 0.1 * math.log(8.0))
        ratio = ours.cos_sin_cache / stock.cos_sin_cache
        assert float(ratio.nan_to_num(ours.mscale / stock.mscale).std()) < 1e-4

    @pytest.mark.parametrize(
        "flags",
        [
            {"eagle_config": {"norm_before_fc": True}},
            {"eagle_config": {"fc_norm": True}},
            {"eagle_config": {"norm_output": True}},
            {"eagle_config": {"return_hidden_post_norm": True}},
            {"eagle_config": {"norm_before_residual": True}},
        ],
        ids=str,
    )
    @pytest.mark.parametrize("make_config", CLASSES)
    def test_flags_stated_in_eagle_config(
        self, make_config: MakeConfig, flags: dict[str, Any], tmp_path: Path
    ) -> None:
        config = make_config(**flags)
        del config["norm_output"], config["norm_before_residual"]
        tensors = tensors_for({**config, **flags["eagle_config"]})
        config["eagle_config"] = {"norm_before_residual": False, **flags["eagle_config"]}
        assert_as_trained(tensors, config, tmp_path)


# Stock computes something else without a word. When one of these fails, upstream has mended it:
# narrow the test to the releases that still fail.
@pytest.mark.parametrize("make_config", CLASSES)
def test_stock_ignores_norm_before_residual(make_config: MakeConfig, tmp_path: Path) -> None:
    config = make_config(norm_before_residual=True)
    tensors = tensors_for(config)
    stock = served(tmp_path, forms_of_every_release(tensors), config)
    assert difference(stock, trained(tensors, config, tmp_path / "reference")) > OTHER


def test_stock_ignores_the_attention_factor_of_yarn(tmp_path: Path) -> None:
    yarn = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64}
    scaling = {**yarn, "attention_factor": 0.6}
    config = llama_config(rope_parameters={"rope_theta": 5e4, **scaling}, rope_scaling=scaling)
    tensors = tensors_for(config)
    stock = served(tmp_path, forms_of_every_release(tensors), config)
    assert difference(stock, trained(tensors, config, tmp_path / "reference")) > OTHER


def test_stock_reads_the_norm_of_a_later_layer_from_nowhere(tmp_path: Path) -> None:
    if not has_several_layers():
        pytest.skip("this release refuses several layers itself")
    config = llama_config(num_hidden_layers=2)
    tensors = tensors_for(config)
    stock = served(tmp_path, tensors, config)
    assert difference(stock, trained(tensors, config, tmp_path)) > OTHER


class TestDoubleNormOfModelOpt:
    """Its files are told by keys of `eagle_config` and by names that are not `midlayer.*`."""

    config = llama_config(eagle_config={"next_layer_regular": True, "use_last_layernorm": True})

    def test_stock_norms_once(self, tmp_path: Path) -> None:
        if not has_several_layers():
            pytest.skip("this release drops layers.0.* names")
        tensors = tensors_for(self.config)
        stock = served(tmp_path, tensors, self.config)
        assert difference(stock, trained(tensors, self.config, tmp_path)) > OTHER

    @pytest.mark.usefixtures("plugin")
    def test_it_is_computed(self, tmp_path: Path) -> None:
        assert_as_trained(tensors_for(self.config), self.config, tmp_path)


def forms_of_every_release(tensors: forms.Tensors) -> forms.Tensors:
    return {name.replace("layers.0.", "midlayer."): value for name, value in tensors.items()}


class TestNormOutputOfSpecForge:
    """SpecForge's files are told by `midlayer.*` with d2t and t2d; its flag is about the head."""

    def checkpoint(self, **fields: Any) -> tuple[forms.Tensors, dict[str, Any]]:
        import torch

        config = llama_config(**fields)
        del config["_torchspec_version"]
        tensors = forms_of_every_release(tensors_for(config))
        tensors["d2t"] = torch.zeros(config["vocab_size"], dtype=torch.int64)
        tensors["t2d"] = torch.ones(config["vocab_size"], dtype=torch.bool)
        return tensors, config

    @pytest.mark.usefixtures("plugin")
    @pytest.mark.parametrize("stated", [True, False])
    def test_it_has_meant_two_things_and_is_refused(self, tmp_path: Path, stated: bool) -> None:
        tensors, config = self.checkpoint(norm_output=stated, fc_norm=True)
        with pytest.raises(DraftError, match="say what recurs: write return_hidden_post_norm"):
            served(tmp_path, tensors, config)

    @pytest.mark.usefixtures("plugin")
    def test_so_it_is_under_the_prefix_of_a_dump(self, tmp_path: Path) -> None:
        tensors, config = self.checkpoint(norm_output=True)
        dumped = {f"module.draft_model.{name}": tensor for name, tensor in tensors.items()}
        with pytest.raises(DraftError, match="a draft of SpecForge: to SpecForge it meant"):
            served(tmp_path, dumped, config)

    @pytest.mark.usefixtures("plugin")
    def test_of_an_unknown_writer_it_is_taken_as_sglang_does_and_told(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        tensors, config = self.checkpoint(norm_output=True)
        unknown = {name.replace("midlayer.", "layers.0."): t for name, t in tensors.items()}
        ours = served(tmp_path, unknown, config)
        explicit = {**config, "eagle_config": {"return_hidden_post_norm": True}}
        assert difference(ours, trained(unknown, explicit, tmp_path)) <= SAME
        assert caplog.text.count("nothing tells who wrote this draft") == 1

    @pytest.mark.usefixtures("plugin")
    @pytest.mark.parametrize("recurs_normed", [True, False])
    def test_the_remedy_mends_it(self, tmp_path: Path, recurs_normed: bool) -> None:
        word = {"eagle_config": {"return_hidden_post_norm": recurs_normed}}
        tensors, config = self.checkpoint(**word)
        del config["norm_output"]
        plain = {**config, "norm_output": recurs_normed, "eagle_config": {}}
        plain["_torchspec_version"] = "0.1.0"  # of no such producer
        ours = served(tmp_path, tensors, config)
        assert difference(ours, trained(tensors, plain, tmp_path)) <= SAME

    @pytest.mark.usefixtures("plugin")
    def test_the_users_word_for_it_is_taken(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        word = {"eagle_config": {"return_hidden_post_norm": True}}
        tensors, config = self.checkpoint(norm_output=True, **word)
        ours = served(tmp_path, tensors, config)
        normed = {**config, "_torchspec_version": "0.1.0"}  # of no such producer
        assert difference(ours, trained(tensors, normed, tmp_path)) <= SAME
        assert "looks like" not in caplog.text

    @pytest.mark.usefixtures("plugin")
    def test_a_draft_that_states_nothing_is_served(self, tmp_path: Path) -> None:
        tensors, config = self.checkpoint()
        del config["norm_output"]
        assert_as_trained(tensors, config, tmp_path)

    def test_stock_feeds_normed_states_where_it_knows_the_flag(self, tmp_path: Path) -> None:
        if not has_several_layers():
            pytest.skip("this release knows no norm_output")
        tensors, config = self.checkpoint(norm_output=True)
        stock = served(tmp_path, tensors, config)
        # As SpecForge meant it until September 2026.
        meant = {**config, "eagle_config": {"return_hidden_post_norm": False}}
        assert difference(stock, trained(tensors, meant, tmp_path)) > OTHER


class TestSwitchedOff:
    @pytest.fixture(autouse=True)
    def without(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        monkeypatch.setenv(PREFIX, "-draft-forward")
        sglang_eagle3_patch.activate()
        yield
        sglang_eagle3_patch.deactivate()

    @pytest.mark.parametrize(
        ("flag", "told"),
        [
            ("norm_before_residual", "norm_before_residual is true"),
            ("qk_norm", "its layer is Qwen3's"),
            ("attention_bias", "attention_bias is true"),
            ("mlp_bias", "mlp_bias is true"),
        ],
    )
    def test_the_flag_is_refused(self, flag: str, told: str, tmp_path: Path) -> None:
        config = llama_config(**{flag: True})
        with pytest.raises(DraftError, match=f"draft-config: .*{told}"):
            served(tmp_path, tensors_for(config), config)


@pytest.mark.usefixtures("plugin")
def test_a_window_served_by_its_flag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In training the window stays where a draft begins; served, it goes along with each step, as
    on every engine, and its oldest key is lost in each."""
    if not has_several_layers():
        pytest.skip("this release has no window for drafts")
    from sglang.srt.models import llama_eagle3

    (case,) = (c for c in golden_files.cases() if (c.library, c.name) == ("speculators", "window"))
    # Launch arguments are published once a process; the class asks them for this one field.
    asked = SimpleNamespace(speculative_draft_window_size=golden_files.WINDOW - 1)
    for asks in {"get_spec", "get_server_args", "get_global_server_args"} & vars(
        llama_eagle3
    ).keys():
        monkeypatch.setattr(llama_eagle3, asks, lambda: asked)
    forms.write(tmp_path, case.tensors(), case.config)
    draft = SglangDraft(tmp_path).load(case.tensors(), golden_files.embedding())
    logits = draft.forward(*golden_files.inputs(), golden_files.STEPS)
    first, *later = [step[list(golden_files.ROWS)] for step in logits]
    assert difference([first], [case.logits[0]]) <= SAME
    assert agreement([first], [case.logits[0]]) == 1.0
    assert difference(later, list(case.logits[1:])) > OTHER


# What real trainers' modules computed; a window is served by a launch argument, not by the class.
REFUSED = {
    ("speculators", "biases"): "mlp_bias is true",
    ("speculators", "window"): "sliding window of 4 tokens",
    ("specforge", "norm_output"): "norm_output is true",
    ("specforge", "no-norm_output"): "norm_output is false",
}


@pytest.mark.usefixtures("plugin")
@pytest.mark.parametrize("case", golden_files.cases(), ids=lambda c: f"{c.library}-{c.name}")
def test_what_a_real_trainer_computed(case: golden_files.Case, tmp_path: Path) -> None:
    if case.name == "two-layers" and not has_several_layers():
        pytest.skip("this release refuses several layers itself")
    if "kv_lora_rank" in case.config and not HAS_MLA:
        pytest.skip("the MLA class came with 0.5.12")
    tensors = case.tensors()
    forms.write(tmp_path, tensors, case.config)
    refused = REFUSED.get((case.library, case.name))
    if refused is not None:
        with pytest.raises(DraftError, match=refused):
            SglangDraft(tmp_path).load(tensors)
        return
    aux, token_ids = golden_files.inputs()
    draft = SglangDraft(tmp_path).load(tensors, golden_files.embedding())
    logits = draft.forward(aux, token_ids, golden_files.STEPS)
    ours = [step[list(golden_files.ROWS)] for step in logits]
    assert difference(ours, list(case.logits)) <= SAME
    assert agreement(ours, list(case.logits)) == 1.0


@pytest.mark.usefixtures("plugin")
def test_what_can_not_be_put_in_is_refused_by_name(tmp_path: Path) -> None:
    config = llama_config(mlp_bias=True)
    with pytest.raises(DraftError, match="mlp_bias is true, and the class builds its MLP without"):
        served(tmp_path, tensors_for(config), config)
