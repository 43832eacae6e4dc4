"""Every producer's draft, told apart and described by one spec."""

from __future__ import annotations

import re
from typing import Any

import pytest

from sglang_eagle3_patch.checkpoint import producers
from sglang_eagle3_patch.checkpoint.spec import DraftSpec
from tests.unit.checkpoint import drafts
from tests.unit.test_checkpoint import CHECKPOINTS, WRITTEN_BY_TRAINERS

SPECS = {
    name: DraftSpec.of(config, headers) for name, (_, config, headers) in drafts.WRITTEN.items()
}


@pytest.mark.parametrize("name", SPECS)
def test_each_is_recognised(name: str) -> None:
    assert SPECS[name].producer.name == drafts.WRITTEN[name][0]


def test_every_row_of_the_table_is_met() -> None:
    met = {spec.producer.name for spec in SPECS.values()}
    assert met == {row.name for row in producers.PRODUCERS} | {"unknown"}


@pytest.mark.parametrize("name", SPECS)
def test_each_has_one_set_of_known_names(name: str) -> None:
    spec = SPECS[name]
    assert spec.unknown_tensors == ()
    assert spec.unknown_keys == ()
    assert spec.name_clashes == ()
    assert {"layers.0.hidden_norm.weight", "fc.weight"} <= set(spec.tensors)


@pytest.mark.parametrize("name", SPECS)
def test_sizes_by_shape_agree_with_those_stated(name: str) -> None:
    spec = SPECS[name]
    assert spec.shaped_sizes.differing(spec.stated_sizes) == {}
    assert spec.sizes.hidden == spec.sizes.target_hidden == drafts.HIDDEN
    assert spec.num_aux == drafts.AUX
    assert spec.num_layers == (2 if "two layers" in name else 1)
    assert spec.attention == ("mla" if "MLA" in name else "mha")


@pytest.mark.parametrize(
    ("name", "ids", "norm_output", "residual"),
    [
        ("SafeAILab", "inputs", False, False),
        ("SpecForge", "outputs", None, False),
        ("speculators 0.3 trainer", "outputs", False, True),
        ("speculators 0.9 trainer, two layers", "inputs", False, True),
        ("speculators 0.9 converter", "unknown", False, False),
        ("ModelOpt", "outputs", False, False),
        ("TorchSpec MLA", "outputs", False, False),
        ("TorchSpec MLA for vLLM", "inputs", False, False),
        ("TorchSpec MHA", "outputs", True, False),
        ("native, of the whole vocabulary", "unknown", False, False),
        ("NeMo Automodel", "outputs", True, False),
        ("renamed by hand", "unknown", False, None),
    ],
)
def test_conventions(name: str, ids: str, norm_output: bool | None, residual: bool | None) -> None:
    spec = SPECS[name]
    assert spec.producer.aux_ids == ids
    assert spec.flags.norm_output is norm_output
    assert spec.flags.norm_before_residual is residual


@pytest.mark.parametrize(
    ("name", "before_fc", "fc_norm"),
    [
        ("SpecForge", False, True),
        ("SpecForge with aux norms", False, True),
        ("speculators 0.9 trainer, two layers", True, False),
        ("SafeAILab", False, False),
    ],
)
def test_norms_before_fc(name: str, before_fc: bool, fc_norm: bool) -> None:
    assert SPECS[name].flags.norm_before_fc is before_fc
    assert SPECS[name].flags.fc_norm is fc_norm


TORCHSPEC_LLAMA = drafts.flat(drafts.SGLANG, _torchspec_version="0.1")


@pytest.mark.parametrize(
    ("config", "names", "ids"),
    [
        # Its exporter renames the layer for vLLM, but moves only kimi_k2's ids.
        (TORCHSPEC_LLAMA, ["layers.0.hidden_norm.weight"], "outputs"),
        (TORCHSPEC_LLAMA, ["midlayer.hidden_norm.weight"], "outputs"),
        ({**TORCHSPEC_LLAMA, "model_type": "kimi_k2"}, ["layers.0.hidden_norm.weight"], "inputs"),
        (drafts.mla(), ["layers.0.hidden_norm.weight"], "inputs"),
        (drafts.mla(model_type="deepseek_v3"), ["layers.0.hidden_norm.weight"], "outputs"),
        # Without names the exported and the native one look the same.
        (drafts.mla(), [], "unknown"),
        (TORCHSPEC_LLAMA, [], "outputs"),
        (drafts.flat(drafts.SGLANG, eagle_config=drafts.MODELOPT), [], "outputs"),
        (drafts.flat("Eagle3LlamaForCausalLM"), [], "outputs"),
        (drafts.speculators(drafts.TRAINER, "0.9.0"), [], "inputs"),
    ],
)
def test_what_ids_of_torchspec_and_of_unnamed_tensors_mean(
    config: dict[str, Any], names: list[str], ids: str
) -> None:
    assert producers.recognise(config, names).aux_ids == ids


def test_modelopt_alone_norms_twice() -> None:
    twice = {name for name, spec in SPECS.items() if spec.flags.double_input_norm}
    assert twice == {name for name in SPECS if re.match(r"ModelOpt(,| 0|$)", name)}


REAL = {
    "specforge-0.2.0": "SpecForge",
    "speculators-0.3.0": "speculators trainer before 0.5",
}


# Flags on in each real file; the rest have the residual alone.
TRUE_FLAGS: dict[str, set[str]] = {
    "all": {"norm_before_residual", "norm_before_fc", "fc_norm", "norm_output"},
    "specforge-0.2.0": set(),
    "speculators-0.9.0-plain": set(),
    "speculators-0.9.0-fcnorm": {"norm_before_residual", "fc_norm", "norm_output"},
    "speculators-0.9.0-default-0.9": {"norm_before_residual", "norm_before_fc", "norm_output"},
}


@pytest.mark.parametrize("name", WRITTEN_BY_TRAINERS)
def test_real_files(name: str) -> None:
    spec = DraftSpec.read(CHECKPOINTS / name)
    assert spec.producer.name == REAL.get(name, "speculators trainer")
    assert spec.unknown_tensors == ()
    assert spec.unknown_keys == ()
    assert spec.shaped_sizes.differing(spec.stated_sizes) == {}
    assert spec.rope.theta == 50000.0
    assert spec.num_layers == (2 if "2layer" in name else 1)
    assert spec.flags.qk_norm is ("qwen3" in name)
    on = {flag for flag in TRUE_FLAGS["all"] if getattr(spec.flags, flag)}
    assert on == TRUE_FLAGS.get(name, {"norm_before_residual"})


def flags_of(*headers: str, **changes: Any) -> Any:
    tensors = drafts.top() | drafts.layer("layers.0.")
    tensors |= drafts.floats(**dict.fromkeys(headers, (1,)))
    return DraftSpec.of(drafts.flat(drafts.SGLANG, **changes), tensors).flags


def test_tensors_show_what_the_config_leaves_out() -> None:
    assert flags_of("input_norm.weight").norm_before_fc is True
    assert flags_of("layers.0.self_attn.q_proj.bias").qkv_bias is True
    assert flags_of("layers.0.self_attn.o_proj.bias").o_bias is True
    assert flags_of("layers.0.mlp.up_proj.bias").mlp_bias is True
    assert flags_of("fc.bias").fc_bias is True
    plain = flags_of()
    for flag in ("norm_before_fc", "qkv_bias", "o_bias", "mlp_bias", "fc_bias"):
        assert getattr(plain, flag) is False
    unread = DraftSpec.of(drafts.flat(drafts.SGLANG), {})
    assert unread.flags.fc_norm is None
    assert unread.attention == "mha"
    assert unread.num_layers is None


def test_eagle_config_goes_before_the_top_level() -> None:
    nested = {"norm_before_fc": True, "return_hidden_post_norm": True, "use_last_layernorm": False}
    flags = flags_of(eagle_config=nested, norm_before_fc=False)
    assert flags.norm_before_fc is True
    assert flags.norm_output is True
    assert flags.norm_before_head is False


def test_a_window_counts_for_the_layers_named() -> None:
    flags = flags_of(layer_types=["sliding_attention"], sliding_window=2048)
    assert (flags.window, flags.window_layers) == (2048, (0,))
    assert flags_of(layer_types=["full_attention"], sliding_window=2048).window is None
    # A target's own list, copied along with the rest of its config.
    copied = flags_of(layer_types=["sliding_attention"] * 36, sliding_window=2048)
    assert copied.window is None
