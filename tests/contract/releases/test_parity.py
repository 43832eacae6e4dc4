"""`sglang-eagle3 parity` on real classes of SGLang's in this process."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sglang_eagle3_patch.parity.command import run_parity
from sglang_eagle3_patch.settings import PREFIX
from tests.contract import drafts
from tests.cpu_sglang.pair import forms

pytestmark = pytest.mark.usefixtures("plugin", "_log_level")


@pytest.fixture
def _log_level() -> Iterator[None]:
    level = logging.getLogger("sglang").level
    yield
    logging.getLogger("sglang").setLevel(level)


def write_mla(folder: Path) -> Path:
    return forms.write(folder, drafts.mla_tensors(), drafts.mla_config())


@pytest.mark.parametrize("target", [None, str(forms.TARGET)])
def test_a_draft_of_speculators_is_at_parity(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], target: str | None
) -> None:
    folder = forms.write_form("speculators-norm-before-residual", tmp_path / "draft")
    assert run_parity(str(folder), target) == 0
    told = capsys.readouterr().out.splitlines()
    assert [line.partition(",")[0] for line in told[:3]] == [f"step {k}: equal" for k in range(3)]
    assert told[3] == "LlamaForCausalLMEagle3 computes what the draft was trained to compute"


def test_an_mla_draft_is_at_parity(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_parity(str(write_mla(tmp_path / "draft")), steps=4, as_json=True) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["parity"], told["draft_class"]) == (True, "Eagle3DeepseekV2ForCausalLM")
    assert len(told["steps"]) == 4
    assert told["first_difference"] is None


def test_another_residual_is_told_by_the_module_behind_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Its config says nothing of the residual, so SGLang takes the raw one.
    folder = forms.write_form("founding", tmp_path / "draft")
    assert run_parity(str(folder), flags={"norm_before_residual": False}) == 0
    capsys.readouterr()
    assert run_parity(str(folder), flags={"norm_before_residual": True}) == 1
    told = capsys.readouterr().out
    assert "step 0: DIFFERS" in told
    assert "first differs in step0.layers.0.post_attention_layernorm" in told


def test_a_difference_that_only_recurs_is_told_by_its_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = forms.write_form("native", tmp_path / "draft")
    assert run_parity(str(folder), flags={"norm_output": True}) == 1
    told = capsys.readouterr().out
    assert "step 0: equal" in told
    assert "first differs in step1.layers.0" in told


ANGELSLIM = {"modal_type": "LLM", "rope_theta": 1e6}
TWO_THETAS = {"rope_theta": 1e6, "rope_parameters": {"rope_theta": 5e4}}


@pytest.mark.parametrize(
    ("changes", "options", "status"),
    [
        (ANGELSLIM, "", 0),
        (ANGELSLIM, "rope_theta=5e4", 0),
        (TWO_THETAS, "", 2),
        (TWO_THETAS, "rope_theta=5e4", 0),
    ],
)
def test_both_sides_take_the_theta_that_was_trained_with(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, Any],
    options: str,
    status: int,
) -> None:
    monkeypatch.setenv(f"{PREFIX}_OPTIONS", options)
    tensors, config = forms.native()
    folder = forms.write(tmp_path / "draft", tensors, {**config, **changes})
    assert run_parity(str(folder)) == status


def test_what_nobody_states_has_to_be_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = forms.write_form("founding", tmp_path / "draft")
    assert run_parity(str(folder)) == 2
    told = capsys.readouterr().err
    assert "not run: " in told
    assert "norm_before_residual" in told
    assert "--flag norm_before_residual=false" in told


def test_a_refusal_of_a_patch_is_told_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tensors = drafts.add("extra.weight", 2)(forms.drafter_weights())
    folder = forms.write(tmp_path / "draft", tensors, forms.sglang_config())
    assert run_parity(str(folder)) == 2
    (line,) = (x for x in capsys.readouterr().err.splitlines() if "not run" in x)
    assert "extra.weight" in line
