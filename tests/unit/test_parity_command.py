"""`sglang-eagle3 parity` as far as it goes without SGLang: arguments, refusals, the comparison."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pytest
import torch

from sglang_eagle3_patch.parity import command
from sglang_eagle3_patch.parity.checkpoints import draft_tensors, target_tensors
from sglang_eagle3_patch.parity.compare import compare_steps, first_apart, random_inputs
from tests.cpu_sglang.pair import forms


def run(*words: str) -> int:
    parser = argparse.ArgumentParser()
    command.add_parser(parser.add_subparsers())
    arguments = parser.parse_args(["parity", *words])
    status: int = arguments.run(arguments)
    return status


def complaint(capsys: pytest.CaptureFixture[str]) -> str:
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    return lines[0]


def test_without_sglang_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "sglang", None)
    assert run(str(forms.write_form("native", tmp_path / "native"))) == 2
    assert "not run: there is no SGLang in this environment" in complaint(capsys)


@pytest.mark.parametrize("missing", ["draft", "target"])
def test_a_folder_that_is_not_there_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], missing: str
) -> None:
    draft = forms.write_form("native", tmp_path / "native")
    words = ["nowhere"] if missing == "draft" else [str(draft), "--target", "nowhere"]
    assert run(*words) == 2
    assert "not run: nowhere is not local. Fix: download it" in complaint(capsys)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--flag", "norm_before_residual"], "is not one of norm_before_residual, "),
        (["--flag", "window=true"], "'window=true' is not one of"),
        (["--flag", "fc_norm=1"], "with =true or =false"),
        (["--steps", "0"], "0 is no number of steps"),
    ],
)
def test_arguments_that_mean_nothing_are_refused(
    capsys: pytest.CaptureFixture[str], words: list[str], told: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        run("draft", *words)
    assert ended.value.code == 2
    assert told in capsys.readouterr().err


class TestComparison:
    def test_equal_logits_agree(self) -> None:
        logits = torch.randn(4, 9)
        (step,) = compare_steps([logits * (1 + 1e-6)], [logits])
        assert step.agrees
        assert 0 < step.delta < 1e-5

    def test_the_difference_is_in_units_of_the_scale(self) -> None:
        (step,) = compare_steps([torch.tensor([[0.0, 9.0]])], [torch.tensor([[0.0, 10.0]])])
        assert (step.delta, step.scale, step.top1) == (pytest.approx(0.1), 10.0, 1.0)
        assert not step.agrees

    def test_another_token_on_top_is_no_agreement(self) -> None:
        theirs = torch.tensor([[10.0, 10.0 - 1e-5], [0.0, 1.0]])
        (step,) = compare_steps([theirs + torch.tensor([[0.0, 2e-5], [0.0, 0.0]])], [theirs])
        assert step.delta < 1e-5
        assert step.top1 == 0.5
        assert not step.agrees

    def test_what_is_no_number_is_no_agreement(self) -> None:
        (step,) = compare_steps([torch.full((2, 3), float("nan"))], [torch.ones(2, 3)])
        assert not step.agrees

    def test_the_first_value_that_differs_is_named_in_the_references_order(self) -> None:
        theirs = {"fc": torch.ones(2), "own": torch.ones(2), "norm": torch.ones(2)}
        mine = {"norm": torch.zeros(2), "fc": torch.ones(2)}
        assert first_apart(mine, theirs) == "norm"
        assert first_apart({"fc": torch.zeros(2), **mine}, theirs) == "norm"
        assert first_apart({**mine, "fc": torch.full((2,), float("nan"))}, theirs) == "fc"
        assert first_apart({"fc": torch.ones(2)}, theirs) is None

    def test_inputs_depend_on_the_seed_alone(self) -> None:
        first, again, other = (random_inputs(6, 9, 3, seed) for seed in (1, 1, 2))
        assert torch.equal(first[0], again[0])
        assert torch.equal(first[1], again[1])
        assert not torch.equal(first[0], other[0])
        assert len(first[1]) == len(first[0]) + 3


class TestCheckpoints:
    def test_a_draft_is_read_under_its_own_names(self, tmp_path: Path) -> None:
        folder = forms.write_form("founding", tmp_path / "draft")
        assert "layers.0.self_attn.q_proj.weight" in draft_tensors(folder)

    def test_a_folder_without_weights_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="holds no safetensors files"):
            draft_tensors(tmp_path)

    def test_a_target_gives_embedding_and_head(self) -> None:
        embedding, head = target_tensors(forms.TARGET)
        assert embedding.shape == head.shape == (320, 128)
        assert not torch.equal(embedding, head)

    def test_the_embedding_of_a_layer_that_predicts_ahead_is_not_taken(
        self, tmp_path: Path
    ) -> None:
        tensors = {
            "model.layers.61.embed_tokens.weight": torch.zeros(4, 2),
            "model.embed_tokens.weight": torch.ones(4, 2),
            "model.layers.61.shared_head.norm.weight": torch.ones(2),
        }
        embedding, head = target_tensors(forms.write(tmp_path / "target", tensors, {}))
        assert bool((embedding == 1).all())
        assert torch.equal(embedding, head)  # without a head of its own it is tied

    def test_a_target_without_an_embedding_is_refused(self, tmp_path: Path) -> None:
        folder = forms.write(tmp_path / "target", {"lm_head.weight": torch.ones(4, 2)}, {})
        with pytest.raises(ValueError, match=r"holds no embed_tokens.weight .*leave --target out"):
            target_tensors(folder)
