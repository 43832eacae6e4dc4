"""draft-weights after the first load: updates come in partial buckets and never raise."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sglang_eagle3_patch.errors import DraftError
from sglang_eagle3_patch.hooks import draft_weights
from tests.contract.conftest import DraftFactory
from tests.cpu_sglang.pair import forms


def draft_runner(draft: Any, **fields: Any) -> Any:
    """What the hook looks at of a draft worker's `ModelRunner`; a real one loads by itself."""
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    algorithm = SpeculativeAlgorithm.EAGLE3
    return SimpleNamespace(
        is_draft_worker=True,
        spec_algorithm=algorithm,
        model=draft,
        load_config=SimpleNamespace(load_format="dummy"),
        loader=object(),
        **fields,
    )


@pytest.mark.usefixtures("plugin")
class TestWeightUpdates:
    def loaded(self, make_draft: DraftFactory) -> Any:
        draft = make_draft(forms.sglang_config())
        draft.load_weights(iter(forms.drafter_weights().items()))
        return draft

    def test_a_partial_bucket_is_taken(self, make_draft: DraftFactory) -> None:
        draft = self.loaded(make_draft)
        draft.load_weights(iter([("fc.weight", torch.full((128, 384), 0.5))]))
        assert bool((draft.model.fc.weight == 0.5).all())

    @pytest.mark.parametrize("loaded_as", ["midlayer.", "layers.0."])
    @pytest.mark.parametrize("sent_as", ["midlayer.", "layers.0."])
    def test_a_trainer_may_name_the_layer_otherwise_than_the_file(
        self, make_draft: DraftFactory, loaded_as: str, sent_as: str
    ) -> None:
        draft = make_draft(forms.sglang_config())
        tensors = forms.drafter_weights()
        draft.load_weights(
            (name.replace("midlayer.", loaded_as), tensor) for name, tensor in tensors.items()
        )
        draft.load_weights([(f"{sent_as}self_attn.o_proj.weight", torch.full((128, 128), 0.5))])
        (taken,) = (
            value for name, value in draft.named_parameters() if name.endswith("o_proj.weight")
        )
        assert bool((taken == 0.5).all())

    def test_the_targets_bucket_is_skipped_and_told(
        self, make_draft: DraftFactory, caplog: pytest.LogCaptureFixture
    ) -> None:
        draft = self.loaded(make_draft)
        before = draft.lm_head.weight.clone()
        bucket = [
            ("language_model.model.layers.3.mlp.gate.weight", torch.ones(4, 128)),
            ("lm_head.weight", torch.ones(999, 128)),
        ]
        draft.load_weights(iter(bucket))
        assert torch.equal(draft.lm_head.weight, before)
        assert "2 tensors skipped" in caplog.text

    def test_a_target_that_shares_names_does_not_overwrite_the_draft(
        self, make_draft: DraftFactory, caplog: pytest.LogCaptureFixture
    ) -> None:
        # A llama target of the draft's own sizes; several releases send its buckets to the draft.
        draft = self.loaded(make_draft)
        before = {name: value.clone() for name, value in draft.named_parameters()}
        bucket = [
            ("model.layers.0.self_attn.o_proj.weight", torch.ones(128, 128)),
            ("model.layers.0.mlp.down_proj.weight", torch.ones(128, 256)),
            ("model.norm.weight", torch.ones(128)),
            ("lm_head.weight", torch.ones(320, 128)),
        ]
        draft.load_weights(bucket)
        draft.load_weights(iter(bucket))
        draft.load_weights(iter(reversed(bucket)))
        assert all(torch.equal(value, before[name]) for name, value in draft.named_parameters())
        # A trainer sends such buckets by the hundred, at every step.
        assert caplog.text.count("skipped that are not the draft's") == 1
        assert (
            "4 tensors skipped that are not the draft's, the first: model.layers.0.self_attn"
            in (caplog.text)
        )

    @pytest.mark.parametrize("listed", [True, False])
    def test_a_shared_name_alone_may_be_the_targets(
        self, make_draft: DraftFactory, caplog: pytest.LogCaptureFixture, listed: bool
    ) -> None:
        # Trainers cut buckets by size: a head may come by itself.
        draft = self.loaded(make_draft)
        before = draft.lm_head.weight.clone()
        bucket = [("lm_head.weight", torch.ones(320, 128))]
        draft.load_weights(bucket if listed else iter(bucket))
        assert torch.equal(draft.lm_head.weight, before)
        assert "1 tensors skipped that are not the draft's, the first: lm_head.weight" in (
            caplog.text
        )

    @pytest.mark.parametrize("listed", [True, False])
    def test_a_shared_name_is_the_drafts_beside_one_that_only_drafts_have(
        self, make_draft: DraftFactory, caplog: pytest.LogCaptureFixture, listed: bool
    ) -> None:
        draft = self.loaded(make_draft)
        bucket = [
            ("lm_head.weight", torch.full((320, 128), 0.25)),
            ("fc.weight", torch.full((128, 384), 0.5)),
        ]
        with caplog.at_level("INFO"):
            draft.load_weights(bucket if listed else iter(bucket))
        assert bool((draft.lm_head.weight == 0.25).all())
        assert bool((draft.model.fc.weight == 0.5).all())
        assert "weight update: 2 tensors taken" in caplog.text
        assert "skipped" not in caplog.text

    def test_own_tensors_that_are_not_taken_are_told_every_time(
        self, make_draft: DraftFactory, caplog: pytest.LogCaptureFixture
    ) -> None:
        draft = self.loaded(make_draft)
        stray = [("fc.weight", torch.ones(128, 384)), ("stray.weight", torch.ones(1))]
        for _ in range(2):
            draft.load_weights(stray)
            draft.load_weights([("fc.weight", torch.ones(128, 3))])
        told = "1 of the draft's own tensors are not taken (fc.weight); beside them came stray"
        assert caplog.text.count(told) == 2
        assert caplog.text.count("not taken (fc.weight [128, 3], wanted [128, 384])") == 2

    def test_an_iterator_is_not_looked_through_beforehand(self, make_draft: DraftFactory) -> None:
        draft = self.loaded(make_draft)
        held = []

        def stream() -> Any:
            for name in ("model.layers.7.norm.weight", "fc.weight", "model.norm.weight"):
                held.append(name)
                yield name, torch.full((128, 384), 0.5)
                assert held == [name]  # the one before has been let go
                held.clear()

        draft.load_weights(stream())
        assert bool((draft.model.fc.weight == 0.5).all())

    def test_the_update_after_a_dummy_load_is_no_first_load(self, make_draft: DraftFactory) -> None:
        # Dummy weights bypass load_weights; ModelRunner.load_model is what both go through.
        runner = draft_runner(make_draft(forms.sglang_config()))
        draft_weights.remember_first_load(lambda: None, runner, (), {})
        runner.model.load_weights(iter([("fc.weight", torch.full((128, 384), 0.5))]))
        assert bool((runner.model.model.fc.weight == 0.5).all())

    def test_a_deferred_load_is_still_the_first(self, make_draft: DraftFactory) -> None:
        draft = make_draft(forms.sglang_config())
        runner = draft_runner(draft, startup_weight_load=object())
        draft_weights.remember_first_load(lambda: None, runner, (), {})
        with pytest.raises(DraftError, match="missing"):
            draft.load_weights(iter([("fc.weight", torch.ones(128, 384))]))

    def test_loaders_are_put_back(self, make_draft: DraftFactory) -> None:
        fresh = make_draft(forms.sglang_config())
        before = {n: getattr(p, "weight_loader", None) for n, p in fresh.named_parameters()}
        fresh.load_weights(iter(forms.drafter_weights().items()))
        after = {n: getattr(p, "weight_loader", None) for n, p in fresh.named_parameters()}
        assert before == after
