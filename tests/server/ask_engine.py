"""Run by a test in a process of its own: `sgl.Engine`, asked what the servers are asked.

    python ask_engine.py TARGET DRAFT OUT PROMPT …

Writes to OUT, as JSON, the list of what the engine returned.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main(target: str, draft: str, out: str, *prompts: str) -> None:
    import sglang

    engine = sglang.Engine(
        model_path=target,
        trust_remote_code=True,
        speculative_algorithm="EAGLE",
        speculative_draft_model_path=draft,
        speculative_num_steps=3,
        speculative_eagle_topk=1,
        speculative_num_draft_tokens=4,
        log_level="info",
    )
    sampling = {"temperature": 0, "max_new_tokens": 64, "ignore_eos": True}
    answers = [engine.generate(prompt, sampling) for prompt in prompts]
    Path(out).write_text(json.dumps(answers))
    engine.shutdown()


if __name__ == "__main__":  # SGLang spawns its processes, which import this module
    main(*sys.argv[1:])
