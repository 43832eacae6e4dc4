"""fc-guard around the real draft models. The batch is a stand-in: only mode and states matter."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sglang_eagle3_patch.errors import DraftError
from sglang_eagle3_patch.hooks import fc_guard
from tests.contract.conftest import DraftFactory
from tests.contract.drafts import mla_config
from tests.cpu_sglang.pair import forms

CONFIGS = {"llama": forms.sglang_config, "mla": mla_config}


def batch(mode: str, width: int, rows: int = 5) -> Any:
    from sglang.srt.model_executor.forward_batch_info import ForwardMode

    states = SimpleNamespace(hidden_states=torch.zeros(rows, width))
    return SimpleNamespace(
        forward_mode=ForwardMode[mode],
        spec_info=states,
        mm_input_embeds=None,
        contains_mm_inputs=lambda: False,
    )


def passes(draft: Any, mode: str, width: int, rows: int = 5) -> bool:
    """Whether the guard lets the call through; the model behind it is not run."""
    seen = []
    fc_guard.forward(
        lambda *_: seen.append(1), draft.model, (None, None, batch(mode, width, rows)), {}
    )
    return bool(seen)


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("mode", ["EXTEND", "DRAFT_EXTEND_V2", "TARGET_VERIFY", "MIXED"])
class TestStatesOfTheTarget:
    def test_one_state_is_refused(self, make_draft: DraftFactory, config: str, mode: str) -> None:
        draft = make_draft(CONFIGS[config]())
        with pytest.raises(DraftError) as refusal:
            passes(draft, mode, 128)
        for text in ("width 128", mode, "takes 384", "would be skipped", "captured layers", "Fix"):
            assert text in str(refusal.value)

    def test_another_width_is_refused(
        self, make_draft: DraftFactory, config: str, mode: str
    ) -> None:
        with pytest.raises(DraftError, match=r"width 256 .*takes 384"):
            passes(make_draft(CONFIGS[config]()), mode, 256)

    def test_all_states_pass(self, make_draft: DraftFactory, config: str, mode: str) -> None:
        assert passes(make_draft(CONFIGS[config]()), mode, 384)

    def test_a_draft_that_takes_none_is_left_alone(
        self, make_draft: DraftFactory, config: str, mode: str
    ) -> None:
        without = {"eagle_config": {"use_aux_hidden_state": False}}
        assert passes(make_draft({**CONFIGS[config](), **without}), mode, 128)


@pytest.mark.parametrize("config", CONFIGS)
def test_decode_may_recur(make_draft: DraftFactory, config: str) -> None:
    draft = make_draft(CONFIGS[config]())
    assert passes(draft, "DECODE", 128)
    assert passes(draft, "IDLE", 128)
    assert passes(draft, "EXTEND", 128, rows=0)


def test_an_fc_that_width_cannot_tell_is_refused(make_draft: DraftFactory) -> None:
    # One aux hidden state, as wide as the embedding: SGLang never runs such an fc.
    draft = make_draft({**forms.sglang_config(), "num_aux_hidden_states": 1})
    assert draft.model.fc.in_features == 128
    with pytest.raises(DraftError, match="fc would be skipped in EXTEND: it takes 128 values"):
        passes(draft, "EXTEND", 128)


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.usefixtures("plugin")
def test_the_guard_stands_before_the_real_forward(make_draft: DraftFactory, config: str) -> None:
    draft = make_draft(CONFIGS[config]())
    with pytest.raises(DraftError, match="width 128"):
        draft.model.forward(torch.zeros(5).long(), torch.arange(5), batch("EXTEND", 128))


@pytest.mark.usefixtures("rank")
def test_stock_skips_fc_in_silence(make_draft: DraftFactory) -> None:
    draft = make_draft(forms.sglang_config())
    # The first thing behind the skipped fc; how far the model itself gets does not matter here.
    reached: list[int] = []

    class Reached(Exception):
        pass

    def note(*args: Any, **kwargs: Any) -> None:
        reached.append(args[2].shape[-1])
        raise Reached

    draft.model.layers[0].forward = note
    with pytest.raises(Reached):
        draft.model.forward(torch.zeros(5).long(), torch.arange(5), batch("EXTEND", 128))
    assert reached == [128]


class TestWorkers:
    """The workers need two loaded models; what they hold is all that is looked at."""

    def worker(self, draft: Any, algorithm: str) -> Any:
        from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

        return SimpleNamespace(
            draft_runner=SimpleNamespace(model=draft),
            speculative_algorithm=SpeculativeAlgorithm.from_string(algorithm),
        )

    def test_eagle_is_refused_before_serving(self, make_draft: DraftFactory) -> None:
        worker = self.worker(make_draft(forms.sglang_config()), "EAGLE")
        with pytest.raises(DraftError, match=r"takes 384 values .*-algorithm EAGLE none are capt"):
            fc_guard.before_sharing(lambda: None, worker, (), {})

    def test_eagle3_passes(self, make_draft: DraftFactory) -> None:
        worker = self.worker(make_draft(forms.sglang_config()), "EAGLE3")
        assert fc_guard.before_sharing(lambda: "shared", worker, (), {}) == "shared"

    def test_another_draft_class_is_left_alone(self) -> None:
        worker = self.worker(torch.nn.Linear(2, 2), "EAGLE")
        assert fc_guard.before_sharing(lambda: "shared", worker, (), {}) == "shared"

    @pytest.mark.usefixtures("plugin")
    def test_the_real_method_is_wrapped(self) -> None:
        from sglang.srt.speculative.eagle_worker_v2 import EagleDraftWorker

        assert hasattr(EagleDraftWorker.init_lm_head, "__wrapped__")


def graph_runner() -> Any:
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    return SimpleNamespace(
        eagle_worker=SimpleNamespace(speculative_algorithm=SpeculativeAlgorithm.EAGLE3),
        buffers=SimpleNamespace(hidden_states=torch.zeros(8, 384)),
    )


class TestDraftExtendGraph:
    """The graph runner needs a GPU; a stand-in with its two buffers is replayed."""

    def test_states_that_would_not_be_copied_are_refused(self) -> None:
        runner = graph_runner()
        states = SimpleNamespace(spec_info=SimpleNamespace(hidden_states=torch.zeros(8, 128)))
        with pytest.raises(DraftError, match=r"width 128 can't enter .* captured for 384"):
            fc_guard.replay_draft_extend(lambda *_: None, runner, (states,), {})

    def test_an_idle_rank_is_let_through(self) -> None:
        # Data-parallel attention replays the graph on idle ranks too, with no rows of width H.
        runner = graph_runner()
        states = SimpleNamespace(spec_info=SimpleNamespace(hidden_states=torch.zeros(0, 128)))
        assert fc_guard.replay_draft_extend(lambda *_: "ran", runner, (states,), {}) == "ran"

    def test_fitting_states_are_replayed(self) -> None:
        runner = graph_runner()
        states = SimpleNamespace(spec_info=SimpleNamespace(hidden_states=torch.zeros(8, 384)))
        assert fc_guard.replay_draft_extend(lambda *_: "ran", runner, (states,), {}) == "ran"

    @pytest.mark.usefixtures("plugin")
    def test_the_real_method_is_wrapped(self) -> None:
        from sglang.srt.speculative import eagle_draft_extend_cuda_graph_runner as module

        assert hasattr(module.EAGLEDraftExtendCudaGraphRunner.execute, "__wrapped__")
