"""Writes the golden files of the installed speculators: its own module's logits.

    pip install --no-deps --target DIR speculators==0.9.0 hs-connectors==0.9.0
    PYTHONPATH=DIR:. python -m tests.oracles.write_speculators

0.9.0 writes every combination of flags, 0.7.0 and 0.5.0 (alone in DIR: neither needs
hs-connectors) those of `OLDER`.
"""

from __future__ import annotations

import importlib.metadata
import itertools
import os
import tempfile
from collections.abc import Collection, Iterator
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
NAME = "speculators"
VERSION = importlib.metadata.version(NAME)
FLAGS = ("norm_before_residual", "norm_output", "norm_before_fc", "fc_norm")
# The flags of the drafts of older versions: 0.5.0 has the first and the third alone.
OLDER: dict[str, tuple[tuple[str, ...], ...]] = {
    "0.5.0": (
        (),
        ("norm_before_residual",),
        ("norm_before_residual", "norm_before_fc"),
    ),
    "0.7.0": (
        ("norm_before_residual",),
        ("norm_before_residual", "norm_before_fc"),
        ("norm_before_residual", "fc_norm"),
        ("norm_before_residual", "norm_output", "norm_before_fc"),
    ),
}
# The attention and the rows of its inputs. A CPU computes flex attention, the trainer's default,
# in whole blocks of rows. 0.5.0 has no other, and 0.7.0's eager one is no oracle: from the second
# step on it adds 0 and 1 to the scores where its mask means 0 and -inf, so that a row sees the
# step's keys of all rows.
ATTENTION, ROWS = (
    ("simple_flex_attention", 128) if VERSION in OLDER else ("eager", golden.LENGTH + golden.STEPS)
)
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


def every_combination() -> Iterator[tuple[str, ...]]:
    """Yield the flags that are on; the two norms of the fc's input exclude each other."""
    for on in itertools.product(("", FLAGS[0]), ("", FLAGS[1]), ("", *FLAGS[2:])):
        yield tuple(flag for flag in on if flag)


@torch.no_grad()
def case(
    library: str, name: str, layer: LlamaConfig | Qwen3Config, flags: Collection[str] = ()
) -> golden.Case:
    """Build one draft as the trainer does, run it, save it with its own `save_pretrained`."""
    weights = golden.shared_weights()
    model = Eagle3DraftModel.from_training_args(
        verifier_config=layer,
        t2d=weights["t2d"],
        d2t=weights["d2t"],
        draft_vocab_size=golden.DRAFT_VOCAB,
        verifier_name_or_path="verifier",
        ttt_steps=golden.STEPS,
        draft_attn_impl=ATTENTION,
        **{flag: flag in flags for flag in FLAGS},
    )
    golden.load_shared(model)
    logits: list[torch.Tensor] = []
    model.lm_head.register_forward_hook(lambda module, args, out: logits.append(out.clone()))
    aux, token_ids = golden.padded_inputs(ROWS)
    if VERSION == "0.5.0":  # where going on with the text's own tokens is an option
        model(aux, token_ids, ttt_steps=golden.STEPS, use_off_policy_tokens=True)
    else:
        model(aux, token_ids, torch.zeros_like(token_ids), ttt_steps=golden.STEPS)
    folder = Path("drafts") / name
    model.save_pretrained(folder)
    return golden.saved_case(library, name, folder, logits)


def main() -> None:
    """Write the golden files; a small random target is made for the trainer to read."""
    golden.shared_weights()
    library = f"{NAME}-{VERSION}" if VERSION in OLDER else NAME
    cases = []
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # the config names the target as it was given
        target = LlamaConfig(**{**LAYER, "num_hidden_layers": 8})
        LlamaForCausalLM(target).save_pretrained("verifier")
        for flags in OLDER.get(VERSION) or every_combination():
            cases.append(case(library, "+".join(flags) or "plain", LlamaConfig(**LAYER), flags))
        for name, config, changes in () if VERSION in OLDER else SPECIAL:
            cases.append(case(library, name, config(**{**LAYER, **changes})))
        os.chdir(golden.FOLDER)
    versions = {name: importlib.metadata.version(name) for name in (NAME, "transformers")}
    golden.write_cases(library, versions, cases)


if __name__ == "__main__":
    main()
