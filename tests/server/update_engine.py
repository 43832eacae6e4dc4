"""Run by a test in a process of its own: `sgl.Engine`, whose weights are updated while it runs.

    python update_engine.py TARGET DRAFT OUT PROMPT …

Writes to OUT, as JSON, what was done and what the engine answered after it, in order.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

SAMPLING = {"temperature": 0, "max_new_tokens": 64, "ignore_eos": True}


def send(engine: Any, tensors: list[tuple[str, Any]], selector: str) -> None:
    """Update weights by tensors: up to 0.5.20 both models get them, then those selected, in a
    session; the engine's own method can't select."""
    if not hasattr(engine, "begin_weight_update"):
        done, message = engine.update_weights_from_tensor(tensors)
    else:
        from sglang.srt.managers.io_struct import UpdateWeightsFromTensorReqInput

        engine.begin_weight_update(selector)
        request = UpdateWeightsFromTensorReqInput(
            serialized_named_tensors=engine._serialize_tensors_per_rank(tensors, None),
            selector=selector,
        )
        manager = engine.tokenizer_manager
        done, message = engine.loop.run_until_complete(
            manager.update_weights_from_tensor(request, None)
        )
        engine.end_weight_update()
    assert done, message


class Trainer:
    """Rank 0 of a group over gloo whose other rank is the engine's scheduler.

    Its part of each exchange runs in a thread, since the engine's waits for it.
    """

    GROUP = "weight_update_group"

    def __init__(self, engine: Any) -> None:
        from sglang.srt.utils.common import init_custom_process_group

        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self._engine, self._thread = engine, ThreadPoolExecutor(1)
        joining = self._thread.submit(
            init_custom_process_group,
            backend="gloo",
            init_method=f"tcp://127.0.0.1:{port}",
            world_size=2,
            rank=0,
            group_name=self.GROUP,
        )
        done, message = engine.init_weights_update_group(
            "127.0.0.1", port, 1, 2, self.GROUP, backend="gloo"
        )
        assert done, message
        self._group = joining.result()

    def broadcast(self, tensors: list[tuple[str, Any]], selector: str) -> tuple[bool, str]:
        """Update weights by a broadcast: up to 0.5.20 the target alone gets them, then those
        selected, in a session. Returns whether the engine took them, and what it said."""
        from sglang.srt.managers.io_struct import UpdateWeightsFromDistributedReqInput

        request = UpdateWeightsFromDistributedReqInput(
            names=[name for name, _ in tensors],
            dtypes=[str(value.dtype).removeprefix("torch.") for _, value in tensors],
            shapes=[list(value.shape) for _, value in tensors],
            group_name=self.GROUP,
        )
        in_session = hasattr(self._engine, "begin_weight_update")
        if in_session:
            request.selector = selector
            self._engine.begin_weight_update(selector)
        sending = self._thread.submit(self._send, [value for _, value in tensors])
        manager = self._engine.tokenizer_manager
        answer = self._engine.loop.run_until_complete(
            manager.update_weights_from_distributed(request, None)
        )
        sending.result()
        if in_session:
            self._engine.end_weight_update()
        return answer

    def _send(self, tensors: list[Any]) -> None:
        for tensor in tensors:
            torch.distributed.broadcast(tensor, src=0, group=self._group)


def main(target: str, draft: str, out: str, *prompts: str) -> None:
    import sglang

    engine = sglang.Engine(
        model_path=target,
        trust_remote_code=True,
        speculative_algorithm="EAGLE3",
        speculative_draft_model_path=draft,
        speculative_num_steps=3,
        speculative_eagle_topk=1,
        speculative_num_draft_tokens=4,
        log_level="info",
    )
    told: list[tuple[str, Any]] = []

    def ask(did: str) -> None:
        told.append((did, [engine.generate(prompt, SAMPLING) for prompt in prompts]))
        # Caches are flushed with the weights, and 0.5.9 dies when the last step is still running.
        time.sleep(1.5)

    ask("loaded")
    engine.update_weights_from_disk(target)
    ask("disk")
    tensors = list(load_file(Path(target) / "model.safetensors").items())
    send(engine, tensors[:100], "all")
    send(engine, tensors[100:], "all")
    ask("target")
    fc = load_file(Path(draft) / "model.safetensors")["fc.weight"]
    send(engine, [("fc.weight", torch.zeros_like(fc))], "draft")
    ask("no fc")
    send(engine, [("fc.weight", fc)], "draft")
    ask("fc again")
    trainer = Trainer(engine)
    for bucket in (tensors[:100], tensors[100:]):
        done, message = trainer.broadcast(bucket, "all")
        assert done, message
    ask("target, broadcast")
    done, message = trainer.broadcast([("fc.weight", torch.zeros_like(fc))], "draft")
    assert done, message
    ask("no fc, broadcast")
    Path(out).write_text(json.dumps(told))
    engine.shutdown()


if __name__ == "__main__":  # SGLang spawns its processes, which import this module
    main(*sys.argv[1:])
