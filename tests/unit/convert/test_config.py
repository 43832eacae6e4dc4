"""The config that is written: flat, without nulls, and saying what the tensors say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sglang_eagle3_patch.checkpoint.conversion.convert import plan_conversion
from sglang_eagle3_patch.checkpoint.conversion.options import NotConvertible
from sglang_eagle3_patch.checkpoint.spec import DraftSpec
from tests.unit.checkpoint import drafts
from tests.unit.convert import written

LINEAR = {"rope_type": "linear", "factor": 2.0}


def config_from(tmp_path: Path, config: drafts.Config, **changes: Any) -> drafts.Config:
    headers = changes.pop("headers", drafts.top() | drafts.layer("layers.0."))
    source = written.write(tmp_path / "in", config, headers)
    flags = {"norm_before_residual": False, **changes.pop("flags", {})}
    written.convert(source, tmp_path / "out", written.options(flags=flags, **changes))
    return written.config_of(tmp_path / "out")


def test_a_speculators_config_becomes_flat(tmp_path: Path) -> None:
    config = drafts.speculators(
        drafts.TRAINER, "0.9.0", norm_before_residual=False, dtype="bfloat16", **drafts.IDS
    )
    config["auto_map"] = {"": "config.Eagle3SpeculatorConfig"}
    found = config_from(tmp_path, config)
    assert found["architectures"] == ["LlamaForCausalLMEagle3"]
    assert found["model_type"] == "llama"
    assert found["hidden_size"] == drafts.HIDDEN
    assert found["draft_vocab_size"] == drafts.DRAFT_VOCAB
    assert found["tie_word_embeddings"] is False
    assert found["norm_before_residual"] is False
    assert found["dtype"] == found["torch_dtype"] == "bfloat16"
    assert found["num_aux_hidden_states"] == 3
    assert found["eagle_config"] == {
        "use_aux_hidden_state": True,
        "eagle_aux_hidden_state_layer_ids": [1, 3, 4],
    }
    gone = {"transformer_layer_config", "speculators_config", "auto_map", "target_hidden_size"}
    assert not gone & found.keys()
    assert not [key for key in found if key.startswith("speculators_")]


@pytest.mark.parametrize(
    ("stated", "theta", "scaling"),
    [
        ({}, 10000.0, None),
        ({"rope_theta": 5e5}, 5e5, None),
        ({"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}}, 5e5, None),
        (
            {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}},
            5e5,
            {"type": "linear", "rope_type": "linear", "factor": 2.0},
        ),
        (
            {"rope_parameters": {"rope_theta": 1e6, "rope_type": "linear", "factor": 2.0}},
            1e6,
            {"rope_type": "linear", "factor": 2.0},
        ),
        # Either transformers heeds rope_scaling first, and rope_theta where that has none.
        (
            {
                "rope_theta": 1e6,
                "rope_scaling": {"rope_type": "linear", "factor": 2.0},
                "rope_parameters": {"rope_theta": 5e5, "rope_type": "linear", "factor": 4.0},
            },
            1e6,
            {"rope_type": "linear", "factor": 2.0},
        ),
        (
            {"rope_theta": 1e6, "rope_parameters": {"rope_type": "linear", "factor": 2.0}},
            1e6,
            {"rope_type": "linear", "factor": 2.0},
        ),
    ],
)
def test_rope_is_in_both_schemas(
    stated: drafts.Config, theta: float, scaling: drafts.Config | None, tmp_path: Path
) -> None:
    found = config_from(tmp_path, drafts.flat(drafts.SGLANG, **stated))
    assert found["rope_theta"] == found["rope_parameters"]["rope_theta"] == theta
    assert found.get("rope_scaling") == scaling
    kind = scaling["rope_type"] if scaling else "default"
    assert found["rope_parameters"]["rope_type"] == kind


def test_a_base_that_is_no_number_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotConvertible, match="rope_theta is '1e6'"):
        config_from(tmp_path, drafts.flat(drafts.SGLANG, rope_theta="1e6"))


def test_two_thetas_are_refused(tmp_path: Path) -> None:
    two = drafts.flat(drafts.SGLANG, rope_theta=5e5, rope_parameters={"rope_theta": 1e6})
    with pytest.raises(NotConvertible, match=r"rope_theta is 500000, and 1000000 in .*Fix: write"):
        config_from(tmp_path, two)


@pytest.mark.parametrize(
    ("name", "changes", "theta"),
    [
        ("SafeAILab", {}, 10000.0),
        ("AngelSlim", {}, 10000.0),
        ("TorchSpec MHA", {}, 1e6),
        ("TorchSpec MHA", {"rope_scaling": LINEAR}, 10000.0),
        ("SpecForge", {"eagle_config": drafts.EAGLE_CONFIG}, 1e6),
    ],
)
@pytest.mark.parametrize("form", ["rope_theta", "rope_parameters"])
def test_a_theta_that_the_trainer_ignored_is_not_written(
    name: str, changes: drafts.Config, theta: float, form: str, tmp_path: Path
) -> None:
    _, config, headers = drafts.WRITTEN[name]
    rope = {"rope_theta": 1e6} if form == "rope_theta" else {"rope_parameters": {"rope_theta": 1e6}}
    if form == "rope_parameters" and "rope_scaling" in changes:
        changes = {**changes, "rope_scaling": {**changes["rope_scaling"], "rope_theta": 1e6}}
    if "lm_head.weight" in headers and "d2t" not in headers:
        headers = headers | drafts.top("fc.weight")
    found = config_from(
        tmp_path,
        {**config, **changes, **rope},
        headers=headers,
        flags={"norm_output": False},
        needs_plugin=True,
    )
    assert found["rope_theta"] == found["rope_parameters"]["rope_theta"] == theta


def test_partial_rotation_is_where_sglang_looks(tmp_path: Path) -> None:
    rope = {"rope_theta": 1e4, "rope_type": "default", "partial_rotary_factor": 0.25}
    found = config_from(tmp_path, drafts.flat(drafts.SGLANG, rope_parameters=rope))
    assert found["partial_rotary_factor"] == 0.25
    assert found["rope_parameters"]["partial_rotary_factor"] == 0.25


@pytest.mark.parametrize("tied", [True, False])
def test_a_head_in_the_file_is_never_tied(tied: bool, tmp_path: Path) -> None:
    config = drafts.flat(drafts.SGLANG, draft_vocab_size=None, tie_word_embeddings=tied)
    found = config_from(tmp_path, config)
    assert found["tie_word_embeddings"] is False
    assert found["draft_vocab_size"] == drafts.DRAFT_VOCAB


@pytest.mark.parametrize("stated", [None, drafts.VOCAB])
def test_without_a_head_it_is_the_targets(stated: int | None, tmp_path: Path) -> None:
    headers = drafts.top("lm_head.weight", "d2t", "t2d") | drafts.layer("layers.0.")
    config = drafts.flat(drafts.SGLANG, draft_vocab_size=stated)
    assert config_from(tmp_path, config, headers=headers)["draft_vocab_size"] is None


def test_nulls_are_dropped(tmp_path: Path) -> None:
    config = {**drafts.flat(drafts.SGLANG), "quantization_config": None, "target_hidden_size": None}
    config["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": None}
    found = config_from(tmp_path, config)
    assert not {"quantization_config", "target_hidden_size"} & found.keys()
    assert found["eagle_config"] == {"use_aux_hidden_state": True}


def test_the_number_of_layers_is_that_of_the_file(tmp_path: Path) -> None:
    found = config_from(tmp_path, drafts.flat(drafts.SGLANG, num_hidden_layers=36))
    assert found["num_hidden_layers"] == 1


@pytest.mark.parametrize("stated", [True, False])
def test_specforges_norm_output_means_what_its_date_says(stated: bool, tmp_path: Path) -> None:
    """The norm before the head until September 2026, what recurs since; no file tells its date."""
    _, config, headers = drafts.WRITTEN["SpecForge"]
    config = {**config, "norm_output": stated}
    flag = "norm_output" if stated else "norm_before_head"
    said = "since September 2026" if not stated else "before September 2026"
    with pytest.raises(NotConvertible, match=rf"does not tell its date.*--flag {flag}=.*{said}"):
        plan_conversion(written.write(tmp_path / "asked", config, headers), written.options())
    for word in (True, False) if stated else (True,):
        place = tmp_path / str(word)
        found = config_from(place, config, headers=headers, flags={flag: word})
        recurs = stated and word
        assert found.get("norm_output", False) is recurs
        assert found["fc_norm"] is True
        flags = DraftSpec.read(place / "out").flags
        assert (flags.norm_before_head, flags.norm_output) == (True, recurs)
    if not stated:
        with pytest.raises(NotConvertible, match="without a norm before its head"):
            config_from(tmp_path / "old", config, headers=headers, flags={flag: False})


def test_older_aux_norms_are_named_as_their_flag(tmp_path: Path) -> None:
    _, config, headers = drafts.WRITTEN["SpecForge with aux norms"]
    found = config_from(tmp_path, config, headers=headers)
    assert found["fc_norm"] is True
    assert "use_aux_norm" not in found
    assert {f"fc_norm.{i}.weight" for i in range(3)} <= written.read(tmp_path / "out").keys()


def test_a_qwen3_layer_is_llamas_with_more_norms(tmp_path: Path) -> None:
    config = drafts.speculators(drafts.TRAINER, "0.9.0", **drafts.IDS)
    config["transformer_layer_config"]["model_type"] = "qwen3"
    headers = drafts.top() | drafts.layer("layers.0.")
    headers |= {
        f"layers.0.self_attn.{part}_norm.weight": drafts.TensorHeader("BF16", (drafts.HEAD_DIM,))
        for part in "qk"
    }
    found = config_from(tmp_path, config, headers=headers, needs_plugin=True)
    assert (found["model_type"], found["qk_norm"]) == ("llama", True)


def test_a_window_is_kept_and_the_flag_named(tmp_path: Path) -> None:
    window = {"layer_types": ["sliding_attention"], "sliding_window": 2048}
    source = written.write(
        tmp_path / "in",
        drafts.flat(drafts.SGLANG, **window),
        drafts.top() | drafts.layer("layers.0."),
    )
    wanted = written.options(flags={"norm_before_residual": False})
    conversion = written.convert(source, tmp_path / "out", wanted)
    assert written.config_of(tmp_path / "out")["sliding_window"] == 2048
    assert any("--speculative-draft-window-size 2047" in note for note in conversion.plan.notes)
