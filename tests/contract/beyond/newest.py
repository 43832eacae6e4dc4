"""What of 0.5.23 is its own: how a target is told what to capture, and how it does."""

from __future__ import annotations

from typing import Any
from unittest.mock import MagicMock

import pytest
import torch

from tests.contract.beyond.world import World, loaded


class Recorder(torch.nn.Module):
    """A layer that computes nothing but its number, and hands over its input when asked to."""

    def forward(self, _positions: Any, hidden: Any, _batch: Any, *, capture_output: Any) -> Any:
        if capture_output is not None:
            capture_output(hidden)
        return hidden + 1


def forward(target: Any, embedded: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run the forward of the target's own model; its residual is mocked."""
    from sglang.srt.models import llama

    monkeypatch.setattr(llama.residual_batch, "start", lambda _batch: None)
    monkeypatch.setattr(llama.residual_batch, "final_norm", lambda hidden, _batch, _norm: hidden)
    return target.model(None, None, None, input_embeds=embedded)


def set_capture(target: Any, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a real `ModelRunner` set what is captured, as at its start; no backend is built."""
    from sglang.srt.model_executor import model_runner
    from sglang.srt.model_executor.model_runner_components import spec_aux_hidden_state
    from sglang.srt.runtime_context import get_spec
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    runner = object.__new__(model_runner.ModelRunner)
    runner.spec_algorithm, runner.is_draft_worker = SpeculativeAlgorithm.EAGLE3, False
    runner.server_args = world.resolved()
    loaded(target, monkeypatch)
    runner.load_model()
    runner.kv_index_translator = MagicMock()
    with get_spec().override(speculative_draft_model_path=str(world.draft)):
        runner.spec_aux_config = spec_aux_hidden_state.resolve_spec_aux_hidden_state_config(
            server_args=runner.server_args,
            model_config=world.target_config(),
            spec_algorithm=runner.spec_algorithm,
            is_draft_worker=False,
        )
    monkeypatch.setattr(model_runner, "resolve_attention_backend_strs", MagicMock())
    monkeypatch.setattr(model_runner, "build_attention_backends", MagicMock())
    runner.init_attention_backends()


def embedding_and_head(target: Any) -> Any:
    """Ask the target for them as a draft worker does."""
    from sglang.srt.speculative.pp_draft_embedding import resolve_target_embed_and_head

    return resolve_target_embed_and_head(target)
