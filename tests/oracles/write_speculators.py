"""Writes the golden files of speculators: its own module's logits for every combination of flags.

pip install --no-deps --target DIR speculators==0.9.0 hs-connectors==0.9.0
PYTHONPATH=DIR:. python -m tests.oracles.write_speculators
"""

from __future__ import annotations

import importlib.metadata
import itertools
import os
import tempfile
from pathlib import Path
from typing import Any

import torch
from speculators.models.eagle3.core import Eagle3DraftModel
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config

from tests.oracles import golden_files as golden

LAYER: dict[str, Any] = {
    "hidden_size": golden.HIDDEN,
    "intermediate_size": golden.INTERMEDIATE,
    "num_attention_heads": golden.HEADS,
    "num_key_value_heads": golden.KV_HEADS,
    "head_dim": golden.HEAD_DIM,
    "vocab_size": golden.VOCAB,
    "num_hidden_layers": 1,
    "rms_norm_eps": golden.EPS,
    "max_position_embeddings": 512,
    "rope_parameters": {"rope_type": "default", "rope_theta": golden.THETA},
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": golden.THETA,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": golden.THETA,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
# Name, the layer's config, and what differs from no flags at all.
SPECIAL: tuple[tuple[str, type[LlamaConfig] | type[Qwen3Config], dict[str, Any]], ...] = (
    ("two-layers", LlamaConfig, {"num_hidden_layers": 2}),
    ("qk-norm", Qwen3Config, {}),
    ("yarn", LlamaConfig, {"rope_parameters": YARN}),
    ("llama3-rope", LlamaConfig, {"rope_parameters": LLAMA3}),
    ("biases", LlamaConfig, {"attention_bias": True, "mlp_bias": True}),
    (
        "window",
        LlamaConfig,
        {"layer_types": ["sliding_attention"], "sliding_window": golden.WINDOW},
    ),
)


@torch.no_grad()
def case(name: str, layer: LlamaConfig | Qwen3Config, **flags: bool) -> golden.Case:
    """Build one draft as the trainer does, run it, save it with its own `save_pretrained`."""
    weights = golden.shared_weights()
    model = Eagle3DraftModel.from_training_args(
        verifier_config=layer,
        t2d=weights["t2d"],
        d2t=weights["d2t"],
        draft_vocab_size=golden.DRAFT_VOCAB,
        verifier_name_or_path="verifier",
        ttt_steps=golden.STEPS,
        draft_attn_impl="eager",
        **flags,
    )
    golden.load_shared(model)
    logits: list[torch.Tensor] = []
    model.lm_head.register_forward_hook(lambda module, args, out: logits.append(out.clone()))
    aux, token_ids = golden.padded_inputs()
    model(aux, token_ids, torch.zeros_like(token_ids), ttt_steps=golden.STEPS)
    folder = Path("drafts") / name
    model.save_pretrained(folder)
    return golden.saved_case("speculators", name, folder, logits)


def main() -> None:
    """Write the golden files; a small random target is made for the trainer to read."""
    golden.shared_weights()
    cases = []
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # the config names the target as it was given
        target = LlamaConfig(**{**LAYER, "num_hidden_layers": 8})
        LlamaForCausalLM(target).save_pretrained("verifier")
        for residual, before_fc, output in itertools.product(
            (False, True), (None, "norm_before_fc", "fc_norm"), (False, True)
        ):
            flags = {"norm_before_residual": residual, "norm_output": output}
            if before_fc:
                flags[before_fc] = True
            name = "+".join(flag for flag, on in flags.items() if on) or "plain"
            cases.append(case(name, LlamaConfig(**LAYER), **flags))
        for name, config, changes in SPECIAL:
            flags = {"norm_before_residual": False, "norm_output": False}
            cases.append(case(name, config(**{**LAYER, **changes}), **flags))
        os.chdir(golden.FOLDER)
    versions = {name: importlib.metadata.version(name) for name in ("speculators", "transformers")}
    golden.write_cases("speculators", versions, cases)


if __name__ == "__main__":
    main()
