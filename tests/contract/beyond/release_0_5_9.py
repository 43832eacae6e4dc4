"""What of 0.5.9 is its own: how a target is told what to capture, and how it does."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch

from sglang_eagle3_patch.hooks.parts.target_capture import captured_inputs, capturing_module
from tests.contract.beyond.world import World, loaded


class Recorder(torch.nn.Module):
    """A layer that computes nothing but its number."""

    def forward(
        self, _positions: Any, hidden: torch.Tensor, _batch: Any, residual: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return hidden + 1, torch.zeros_like(hidden)


def forward(target: Any, embedded: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run the forward of the target's own model; its last norm is mocked."""
    monkeypatch.setattr(target.model.norm, "forward", lambda *states: states)
    return target.model(None, None, None, input_embeds=embedded)


def set_capture(target: Any, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start a real `ModelRunner`, which sets what is captured."""
    start(target, world, monkeypatch)


def start(target: Any, world: World, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Start a real `ModelRunner`; return the layers set whenever it captures graphs.

    Ranks, memory and attention are mocked. So is the capture of graphs, which wants a GPU, and
    which SGLang leaves out on a CPU: where the real graph runner would capture, it notes what the
    target is set to.
    """
    from sglang.srt.model_executor import cuda_graph_runner, model_runner

    runner_class, graphs = model_runner.ModelRunner, []

    def give_memory(runner: Any, _least: float) -> None:
        runner.max_total_num_tokens, runner.req_to_token_pool = 64, SimpleNamespace(size=8)

    def give_attention(runner: Any) -> None:
        runner.attn_backend = MagicMock()
        runner.attn_backend.get_cuda_graph_seq_len_fill_value.return_value = 1

    def capture(_graph_runner: Any) -> None:
        graphs.append(tuple(captured_inputs(capturing_module(target))))

    def capture_graphs(runner: Any) -> None:
        if not world.case.launch.graphs_disabled:
            runner.server_args.cuda_graph_bs = [1]
            cuda_graph_runner.CudaGraphRunner(runner)

    loaded(target, monkeypatch)
    monkeypatch.setattr(cuda_graph_runner.CudaGraphRunner, "capture", capture)
    for name, stub in {
        "init_threads_binding": MagicMock(),
        "init_torch_distributed": MagicMock(return_value=1.0),
        "init_memory_pool": give_memory,
        "init_routed_experts_capturer": MagicMock(),
        "init_attention_backend": give_attention,
        "init_device_graphs": capture_graphs,
        "init_piecewise_cuda_graphs": MagicMock(),
        "prealloc_symmetric_memory_pool": MagicMock(),
    }.items():
        monkeypatch.setattr(runner_class, name, stub)
    runner_class(
        model_config=world.target_config(),
        mem_fraction_static=0.1,
        gpu_id=0,
        tp_rank=0,
        tp_size=1,
        moe_ep_rank=0,
        moe_ep_size=1,
        pp_rank=0,
        pp_size=1,
        nccl_port=0,
        server_args=world.resolved(),
    )
    return graphs


def embedding_and_head(target: Any) -> Any:
    """Ask the target for them as a draft worker does, amid its start."""
    return target.get_embed_and_head()
