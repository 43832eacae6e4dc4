"""The forms in which the tiny drafters exist, written to folders from the shipped weights.

One set of weights, several ways to name and describe it: that is the whole difference between a
drafter that serves and one whose every draft is rejected.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.cpu_sglang.pair.drafter import DrafterShape
from tests.cpu_sglang.pair.mla_drafter import MLAShape

ASSETS = Path(__file__).parent / "assets"
TARGET = ASSETS / "target"
SAVED_BY_SPECULATORS = ASSETS / "saved_by_speculators"
"""The second drafter as the library itself saves it: `tests/oracles/save_norm_before_residual`."""
Tensors = dict[str, Tensor]


def drafter_weights(name: str = "drafter") -> Tensors:
    """Return a trained drafter under native names (`midlayer.*`), with `d2t` and `t2d`.

    `name` is one of `train.DRAFTERS`. The draft vocabulary is the target's, so `d2t` (offsets) is
    all zeros and `t2d` all true.
    """
    tensors: Tensors = load_file(ASSETS / f"{name}.safetensors")
    vocab = DrafterShape().vocab
    tensors["d2t"] = torch.zeros(vocab, dtype=torch.int64)
    tensors["t2d"] = torch.ones(vocab, dtype=torch.bool)
    return tensors


def rename_layer(tensors: Tensors) -> Tensors:
    """Return the tensors with `midlayer.*` named `layers.0.*`, as speculators and vLLM do."""
    return {name.replace("midlayer.", "layers.0."): value for name, value in tensors.items()}


def sglang_config() -> dict[str, Any]:
    """Return the drafter's config in the form that SGLang reads."""
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        **_layer_sizes(),
        "draft_vocab_size": DrafterShape().vocab,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "rope_theta": DrafterShape().rope_theta,
        "bos_token_id": 257,
        "eos_token_id": 256,
    }


def mla_config() -> dict[str, Any]:
    """Return the config of a drafter with latent attention, as Kimi's own drafts have it.

    SGLang's rope of this attention needs yarn on a CPU.
    """
    mla, config = MLAShape(), sglang_config()
    del config["head_dim"]
    return {
        **config,
        "architectures": ["Eagle3DeepseekV2ForCausalLM"],
        "model_type": "kimi_k2",
        "num_key_value_heads": DrafterShape().heads,
        "q_lora_rank": mla.q_rank,
        "kv_lora_rank": mla.kv_rank,
        "qk_nope_head_dim": mla.nope,
        "qk_rope_head_dim": mla.rope,
        "v_head_dim": mla.value,
        "rope_scaling": {
            "type": "yarn",
            "rope_type": "yarn",
            "factor": mla.yarn.factor,
            "beta_fast": mla.yarn.beta_fast,
            "beta_slow": mla.yarn.beta_slow,
            "mscale": mla.yarn.mscale_all_dim,
            "mscale_all_dim": mla.yarn.mscale_all_dim,
            "original_max_position_embeddings": mla.yarn.original,
        },
    }


def speculators_config(norm_before_residual: bool | None) -> dict[str, Any]:
    """Return the config that speculators 0.9.0's trainer writes for such a drafter."""
    layer = {
        "attention_bias": False,
        "bos_token_id": 257,
        "eos_token_id": 256,
        "mlp_bias": False,
        "model_type": "llama",
        **_layer_sizes(),
        "rope_parameters": {"rope_theta": DrafterShape().rope_theta, "rope_type": "default"},
        "tie_word_embeddings": False,
        "use_cache": True,
    }
    config = {
        "architectures": ["Eagle3DraftModel"],
        "auto_map": {"": "config.Eagle3SpeculatorConfig"},
        "draft_vocab_size": DrafterShape().vocab,
        "dtype": "bfloat16",
        "eagle_aux_hidden_state_layer_ids": [2, 4, 5],
        "embed_requires_grad": False,
        "fc_norm": False,
        "norm_before_fc": False,
        "norm_before_residual": norm_before_residual,
        "norm_output": False,
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [
                {
                    "accept_tolerance": 0.0,
                    "proposal_type": "greedy",
                    "speculative_tokens": 3,
                    "verifier_accept_k": 1,
                }
            ],
            "verifier": {
                "architectures": ["KimiK25ForConditionalGeneration"],
                "name_or_path": "target",
            },
        },
        "speculators_model_type": "eagle3",
        "speculators_version": "0.9.0",
        "target_hidden_size": None,
        "tie_word_embeddings": False,
        "transformer_layer_config": layer,
    }
    if norm_before_residual is None:
        del config["norm_before_residual"]
    return config


def _layer_sizes() -> dict[str, Any]:
    shape = DrafterShape()
    return {
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "max_position_embeddings": 2048,
        "num_attention_heads": shape.heads,
        "num_hidden_layers": 1,
        "num_key_value_heads": shape.kv_heads,
        "rms_norm_eps": shape.norm_eps,
        "vocab_size": shape.vocab,
    }


def native() -> tuple[Tensors, dict[str, Any]]:
    """SGLang's own form: the case that always worked."""
    return drafter_weights(), sglang_config()


def founding() -> tuple[Tensors, dict[str, Any]]:
    """The checkpoint the project began with: `layers.0.*` under a config SGLang reads."""
    return rename_layer(drafter_weights()), sglang_config()


def speculators() -> tuple[Tensors, dict[str, Any]]:
    """The folder as speculators writes it, the target's embedding included."""
    return _with_embedding(rename_layer(drafter_weights())), speculators_config(False)


def speculators_norm_before_residual() -> tuple[Tensors, dict[str, Any]]:
    """What `SAVED_BY_SPECULATORS` holds, trained as speculators trains by default."""
    config = json.loads((SAVED_BY_SPECULATORS / "config.json").read_text())
    return load_file(SAVED_BY_SPECULATORS / "model.safetensors"), config


def speculators_weak() -> tuple[Tensors, dict[str, Any]]:
    """The third drafter, stopped early, as speculators writes it."""
    tensors = rename_layer(drafter_weights("drafter_weak"))
    return _with_embedding(tensors), speculators_config(True)


def founding_weak() -> tuple[Tensors, dict[str, Any]]:
    """The third drafter in the founding form, whose config says nothing of its training."""
    return rename_layer(drafter_weights("drafter_weak")), sglang_config()


def mla() -> tuple[Tensors, dict[str, Any]]:
    """The fourth drafter, with latent attention, under SGLang's own config."""
    return rename_layer(drafter_weights("mla_drafter")), mla_config()


def mla_weak() -> tuple[Tensors, dict[str, Any]]:
    """The fifth drafter, with latent attention and stopped early; its config states how the
    residual was trained, which its class does not know."""
    config = {**mla_config(), "norm_before_residual": True}
    return rename_layer(drafter_weights("mla_drafter_weak")), config


FORMS: dict[str, Callable[[], tuple[Tensors, dict[str, Any]]]] = {
    "native": native,
    "founding": founding,
    "speculators": speculators,
    "speculators-norm-before-residual": speculators_norm_before_residual,
    "speculators-weak": speculators_weak,
}


def write(folder: Path, tensors: Tensors, config: dict[str, Any]) -> Path:
    """Write one checkpoint folder and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    contiguous = {name: value.contiguous() for name, value in tensors.items()}
    save_file(contiguous, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    return folder


def write_form(form: str, folder: Path) -> Path:
    """Write the drafter in one of `FORMS` to `folder` and return it."""
    return write(folder, *FORMS[form]())


def _with_embedding(tensors: Tensors) -> Tensors:
    target = load_file(TARGET / "model.safetensors")
    embedding = target["language_model.model.embed_tokens.weight"]
    return {**tensors, "embed_tokens.weight": embedding}
