"""The command line that is judged, small values, and the page that explains the rules."""

from __future__ import annotations

from pathlib import Path

import pytest

from sglang_eagle3_patch.checkpoint.header import TensorHeader
from sglang_eagle3_patch.checkpoint.launch import LaunchArguments, is_same_option
from sglang_eagle3_patch.checkpoint.rules import RULES, SUBJECTS, document
from sglang_eagle3_patch.checkpoint.rules.small_values import read_small_values
from sglang_eagle3_patch.checkpoint.target import TargetSpec
from sglang_eagle3_patch.facts import facts_for
from tests.unit.doctor.cases import KIMI, NEWEST
from tests.unit.doctor.folders import write_safetensors

REPOSITORY = Path(__file__).parents[3]


def parse(*arguments: str) -> LaunchArguments:
    engine = facts_for(NEWEST)
    assert engine is not None
    return LaunchArguments.parse(arguments, engine.launch.speculative_flags)


class TestLaunchArguments:
    def test_values_are_read_in_both_spellings(self) -> None:
        found = parse("--model-path", "m", "--quantization=fp8", "--disable-cuda-graph")
        assert (found.model_path, found.quantization, found.graphs_disabled) == ("m", "fp8", True)

    def test_an_unambiguous_beginning_stands_for_its_flag(self) -> None:
        found = parse("--speculative-algo", "EAGLE", "--speculative-draft", "x")
        assert found.algorithm == "EAGLE"
        assert found.speculative == {
            "--speculative-algo": "--speculative-algorithm",
            "--speculative-draft": None,
        }
        assert found.draft_model_path is None

    def test_two_names_of_one_option_are_one(self) -> None:
        assert parse("--speculative-draft-model", "d").draft_model_path == "d"
        assert parse("--speculative-draft-model-p", "d").draft_model_path == "d"

    def test_overrides_that_are_no_object_are_sglangs_to_refuse(self) -> None:
        assert parse("--json-model-override-args", '{"a": 1}').overrides == {"a": 1}
        assert parse("--json-model-override-args", "[1]").overrides == {}
        assert parse("--json-model-override-args", "{").overrides == {}

    def test_a_value_is_no_flag(self) -> None:
        assert parse("--context-length").context_length is None
        assert parse("--context-length", "many").context_length is None

    @pytest.mark.parametrize(
        ("typed", "flag", "same"),
        [
            ("--speculative-algo", "--speculative-algorithm", True),
            ("--speculative-draft-model", "--speculative-draft-model-path", True),
            ("--speculative-draft-model", "--speculative-draft-model-quantization", False),
            ("--tp-size", "--speculative-algorithm", False),
        ],
    )
    def test_same_options(self, typed: str, flag: str, same: bool) -> None:
        assert is_same_option(typed, flag) is same


def test_a_targets_sizes_are_its_language_models() -> None:
    assert KIMI.wraps_a_language_model
    assert (KIMI.hidden_size, KIMI.num_layers, KIMI.vocab_size) == (64, 8, 320)
    assert KIMI.architectures == ("KimiK25ForConditionalGeneration",)
    assert TargetSpec("t", {"hidden_size": "wide", "architectures": 3}).hidden_size is None


class TestSmallValues:
    def test_maps_and_norms_are_read_by_their_bytes(self, tmp_path: Path) -> None:
        headers = {
            "d2t": TensorHeader("I64", (3,)),
            "t2d": TensorHeader("BOOL", (4,)),
            "midlayer.hidden_norm.weight": TensorHeader("BF16", (2,)),
            "norm.weight": TensorHeader("F32", (1,)),
            "fc.weight": TensorHeader("BF16", (2, 2)),
        }
        values = {
            "d2t": b"".join(n.to_bytes(8, "little", signed=True) for n in (0, -1, 5)),
            "t2d": b"\1\0\1\1",
            "midlayer.hidden_norm.weight": b"\x80\x3f\xc0\x7f",
            "norm.weight": b"\0\0\0\x40",
        }
        write_safetensors(tmp_path / "a.safetensors", headers, values)
        found = read_small_values([tmp_path / "a.safetensors"], [])
        assert found.d2t == (0, -1, 5)
        assert found.t2d == (True, False, True, True)
        assert found.vectors["norm.weight"] == (2.0,)
        one, nan = found.vectors["layers.0.hidden_norm.weight"]
        assert one == 1.0
        assert nan != nan
        assert "fc.weight" not in found.vectors
        assert found.embedding_differs is None

    @pytest.mark.parametrize("differs", [False, True])
    def test_embeddings_are_compared_by_their_first_rows(
        self, tmp_path: Path, differs: bool
    ) -> None:
        header = TensorHeader("BF16", (20, 4))
        own = {"embed_tokens.weight": b"\1" * 160}
        targets = {"model.embed_tokens.weight": (b"\2" if differs else b"\1") * 160}
        write_safetensors(tmp_path / "d", {"embed_tokens.weight": header}, own)
        write_safetensors(tmp_path / "t", {"model.embed_tokens.weight": header}, targets)
        found = read_small_values([tmp_path / "d"], [tmp_path / "t"])
        assert found.embedding_differs is differs


def test_the_page_of_rules_is_up_to_date() -> None:
    text = (REPOSITORY / document.FILE).read_text(encoding="utf-8")
    assert text == document.page(), (
        "write it anew: python -m sglang_eagle3_patch.checkpoint.rules.document"
    )


def test_every_rule_is_of_a_subject_and_explained() -> None:
    modules = {subject.__name__ for subject in SUBJECTS}
    for rule in RULES.values():
        assert rule.answer.__module__ in modules
        assert all(rule.explanation)
        assert document.link(rule.id).endswith(rule.id.lower())
