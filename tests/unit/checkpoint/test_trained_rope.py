"""Which theta a draft was trained with: by its trainer, its config and the user's own word."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sglang_eagle3_patch.checkpoint.spec import DraftSpec
from sglang_eagle3_patch.checkpoint.trained_rope import EXPORTED_YARN, NOTHING_TOLD, ToldRope
from tests.unit.checkpoint import drafts

LINEAR = {"rope_type": "linear", "factor": 2.0}
YARN = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 64}


def spec(name: str, **changes: Any) -> DraftSpec:
    _, config, headers = drafts.WRITTEN[name]
    return DraftSpec.of({**config, **changes}, headers)


@pytest.mark.parametrize(
    ("name", "changes", "trained", "otherwise"),
    [
        ("SafeAILab", {}, 1e4, None),
        ("AngelSlim", {}, 1e4, None),
        ("AngelSlim", {"architectures": [drafts.SGLANG]}, 1e4, None),
        ("TorchSpec MHA", {}, 1e6, None),
        ("TorchSpec MHA", {"rope_scaling": LINEAR}, 1e4, None),
        ("TorchSpec MHA", {"rope_scaling": {"type": "dynamic"}}, 1e4, None),
        ("TorchSpec MHA", {"rope_scaling": YARN}, 1e6, 1e4),
        ("SpecForge", {}, 1e6, 1e4),
        ("native, of the whole vocabulary", {}, 1e6, 1e4),
        ("ModelOpt", {}, 1e6, None),
        ("renamed by hand", {}, 1e6, None),
    ],
)
@pytest.mark.parametrize("form", ["rope_theta", "rope_parameters"])
def test_the_trainer_decides(
    name: str, changes: dict[str, Any], trained: float, otherwise: float | None, form: str
) -> None:
    stated = {"rope_theta": 1e6}
    if form == "rope_parameters":
        scaling = changes.get("rope_scaling", {"rope_type": "default"})
        stated = {"rope_parameters": {**scaling, **stated}, "rope_scaling": None}
    found = spec(name, **{**changes, **stated}).trained_rope
    assert (found.theta, found.otherwise, found.conflict) == (trained, otherwise, None)
    assert (found.stated, found.is_stated) == (1e6, trained == 1e6)
    assert ("10000" in found.source) is (trained == 1e4 or otherwise is not None)


@pytest.mark.parametrize("stated", [{}, {"rope_theta": 1e4}, {"rope_theta": 10000}])
@pytest.mark.parametrize("name", ["SafeAILab", "SpecForge", "AngelSlim", "TorchSpec MHA"])
def test_of_the_default_nothing_is_to_be_said(name: str, stated: dict[str, Any]) -> None:
    found = spec(name, **stated).trained_rope
    assert (found.theta, found.is_stated, found.otherwise) == (1e4, True, None)


TWO = {"rope_theta": 5e5, "rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}}


def test_of_two_thetas_none_is_believed() -> None:
    for version in (None, "4.57.1", "5.3.0"):  # the last saver's
        found = spec("SpecForge", **TWO, transformers_version=version).trained_rope
        assert found.conflict == (5e5, 1e6)
        assert spec("ModelOpt", **TWO).trained_rope.conflict == (5e5, 1e6)
    # Its trainer heeds neither.
    found = spec("AngelSlim", **TWO).trained_rope
    assert (found.theta, found.conflict) == (1e4, None)


@pytest.mark.parametrize("name", ["AngelSlim", "SpecForge", "ModelOpt"])
@pytest.mark.parametrize("stated", [TWO, {"rope_theta": 1e6}, {}])
def test_the_users_word_goes_before_all(name: str, stated: dict[str, Any]) -> None:
    found = replace(spec(name, **stated, rope_scaling=LINEAR), told_rope=ToldRope(7.0)).trained_rope
    assert (found.theta, found.rope.kind, found.is_stated) == (7.0, "linear", False)
    assert (found.conflict, found.otherwise) == (None, None)


def test_scaling_in_one_form_and_theta_in_the_other_are_one_rope() -> None:
    found = spec("ModelOpt", rope_theta=1e6, rope_parameters=LINEAR).rope
    assert (found.theta, found.kind) == (1e6, "linear")


class TestModelOptsExport:
    def rope(self, name: str = "ModelOpt", told: ToldRope = NOTHING_TOLD, **changes: Any) -> Any:
        stated = {"rope_theta": 7.0, "rope_scaling": EXPORTED_YARN, **changes}
        return replace(spec(name, **stated), told_rope=told).trained_rope

    def test_its_yarn_was_not_trained_with(self) -> None:
        trained = self.rope()
        assert (trained.unscaled, trained.rope.scaling, trained.theta) == (True, {}, 7.0)

    @pytest.mark.parametrize("length", [2048, 4096])
    def test_the_length_is_the_users(self, length: int) -> None:
        scaling = {"type": "yarn", "factor": 32, "original_max_position_embeddings": length}
        assert self.rope(rope_scaling=scaling).unscaled

    @pytest.mark.parametrize("added", [{"rope_theta": 7.0}, {"beta_fast": 32.0}])
    def test_written_anew_by_another_tool_it_is_not_certain(self, added: dict[str, float]) -> None:
        trained = self.rope(rope_scaling=None, rope_parameters={**EXPORTED_YARN, **added})
        assert (trained.unscaled, trained.perhaps_unscaled) == (False, True)

    def test_its_own_theta_is_the_one_in_the_mapping(self) -> None:
        trained = self.rope(rope_scaling={"rope_type": "llama3", "rope_theta": 9.0})
        assert (trained.theta, trained.conflict) == (9.0, None)


def test_angelslims_interleaved_mrope_reads_theta() -> None:
    mrope = {"rope_type": "default", "mrope_interleaved": True, "mrope_section": [2, 3, 3]}
    plain, interleaved = (
        spec("AngelSlim", rope_theta=5e6, **rope).trained_rope
        for rope in ({}, {"rope_scaling": mrope})
    )
    assert (plain.theta, interleaved.theta) == (1e4, 5e6)


def test_a_targets_type_tells_no_trainer() -> None:
    # It is in configs of SpecForge's for gemma3 and qwen3-vl.
    trained = spec("SpecForge", rope_theta=1e6, target_model_type="gemma3_text").trained_rope
    assert (trained.theta, trained.otherwise) == (1e6, 1e4)

    @pytest.mark.parametrize(
        ("name", "scaling", "told"),
        [
            ("ModelOpt", EXPORTED_YARN, ToldRope(scaling_as_stated=True)),
            # What was trained with a yarn states its theta along with it.
            ("ModelOpt", {**EXPORTED_YARN, "rope_theta": 7.0}, NOTHING_TOLD),
            ("ModelOpt", {**EXPORTED_YARN, "factor": 16.0}, NOTHING_TOLD),
            ("ModelOpt", {**EXPORTED_YARN, "beta_fast": 16.0}, NOTHING_TOLD),
            ("ModelOpt 0.42", EXPORTED_YARN, NOTHING_TOLD),
            ("SpecForge", EXPORTED_YARN, NOTHING_TOLD),
        ],
    )
    def test_any_other_yarn_is(self, name: str, scaling: dict[str, Any], told: ToldRope) -> None:
        trained = self.rope(name, told, rope_scaling=scaling)
        assert not trained.unscaled
        assert trained.rope.scaling["factor"] == scaling["factor"]
