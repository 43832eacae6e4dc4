"""Real SGLang classes in this process: one rank, gloo, the CPU. Needs the stand-in's variables."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import sglang_eagle3_patch
from tests.cpu_sglang.pair import forms

DraftFactory = Callable[..., Any]


@pytest.fixture(scope="session")
def native_draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return forms.write_form("native", tmp_path_factory.mktemp("drafts") / "native")


@pytest.fixture(scope="session")
def _rank(tmp_path_factory: pytest.TempPathFactory, native_draft: Path) -> None:
    """Make this process what a scheduler's is before it loads models."""
    from sglang.srt import runtime_context
    from sglang.srt.distributed import parallel_state
    from sglang.srt.server_args import ServerArgs

    arguments = ServerArgs(
        model_path=str(forms.TARGET),
        device="cpu",
        trust_remote_code=True,
        speculative_algorithm="EAGLE3",
        speculative_draft_model_path=str(native_draft),
        speculative_num_steps=3,
        speculative_eagle_topk=1,
        speculative_num_draft_tokens=4,
    )
    arguments.resolve_once()
    ranks = runtime_context.SpawnRanks(world_rank=0, gpu_id=0)
    runtime_context.publish(arguments, role="scheduler", ranks=ranks)
    meeting_point = tmp_path_factory.mktemp("gloo") / "meeting-point"
    parallel_state.init_distributed_environment(
        world_size=1,
        rank=0,
        local_rank=0,
        backend="gloo",
        distributed_init_method=f"file://{meeting_point}",
    )
    parallel_state.initialize_model_parallel(backend="gloo")


@pytest.fixture
def rank(_rank: None) -> None:
    """A scheduler-like process, stock."""


@pytest.fixture
def plugin(rank: None) -> Iterator[None]:
    """The plugin active in this process, and out again afterwards."""
    sglang_eagle3_patch.activate()
    yield
    sglang_eagle3_patch.deactivate()


@pytest.fixture
def make_config(tmp_path: Path) -> Callable[[dict[str, Any]], Any]:
    """Return the config object SGLang makes of a `config.json`."""

    def make(config: dict[str, Any]) -> Any:
        from sglang.srt.utils.hf_transformers_utils import get_config

        folder = tmp_path / f"config-{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config))
        return get_config(str(folder), trust_remote_code=False)

    return make


@pytest.fixture
def make_draft(rank: None, make_config: Callable[[dict[str, Any]], Any]) -> DraftFactory:
    """Return a real draft model of SGLang's, every parameter filled with 12."""

    def make(config: dict[str, Any]) -> Any:
        import torch
        from sglang.srt.models.registry import ModelRegistry

        hf_config = make_config(config)
        model_class, _ = ModelRegistry.resolve_model_cls(hf_config.architectures)
        draft = model_class(hf_config)
        with torch.no_grad():
            for parameter in draft.parameters():
                parameter.fill_(12.0)
        return draft

    return make
