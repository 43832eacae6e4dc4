"""Run by a test in a process of its own: `sgl.Engine`, whose weights are updated while it runs.

    python update_engine.py TARGET DRAFT OUT PROMPT …

Writes to OUT, as JSON, what was done and what the engine answered after it, in order.
"""

from __future__ import annotations

import json
import sys
import time
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
    Path(out).write_text(json.dumps(told))
    engine.shutdown()


if __name__ == "__main__":  # SGLang spawns its processes, which import this module
    main(*sys.argv[1:])
