"""Whole drafts of both classes, and the ways in which tests damage them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Tensors = dict[str, torch.Tensor]


def prefixed(prefix: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {f"{prefix}{name}": value for name, value in tensors.items()}


def mla_config() -> dict[str, Any]:
    """A small config of the MLA draft class; all sizes differ, so that a mix-up shows."""
    return {
        "architectures": ["Eagle3DeepseekV2ForCausalLM"],
        "model_type": "deepseek_v3",
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "q_lora_rank": 44,
        "kv_lora_rank": 24,
        "qk_nope_head_dim": 32,
        "qk_rope_head_dim": 16,
        "v_head_dim": 20,
        "hidden_act": "silu",
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6,
        "vocab_size": 320,
        "draft_vocab_size": 320,
        "tie_word_embeddings": False,
        "rope_theta": 10000.0,
        "rope_scaling": {
            "type": "yarn",
            "rope_type": "yarn",
            "factor": 2.0,
            "beta_fast": 32,
            "beta_slow": 1,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "original_max_position_embeddings": 1024,
        },
    }


def mla_tensors() -> Tensors:
    shapes = {
        "fc.weight": (128, 384),
        "norm.weight": (128,),
        "lm_head.weight": (320, 128),
        "layers.0.input_layernorm.weight": (128,),
        "layers.0.hidden_norm.weight": (128,),
        "layers.0.post_attention_layernorm.weight": (128,),
        "layers.0.self_attn.q_a_proj.weight": (44, 256),
        "layers.0.self_attn.q_a_layernorm.weight": (44,),
        "layers.0.self_attn.q_b_proj.weight": (4 * (32 + 16), 44),
        "layers.0.self_attn.kv_a_proj_with_mqa.weight": (24 + 16, 256),
        "layers.0.self_attn.kv_a_layernorm.weight": (24,),
        "layers.0.self_attn.kv_b_proj.weight": (4 * (32 + 20), 24),
        "layers.0.self_attn.o_proj.weight": (128, 4 * 20),
        "layers.0.mlp.gate_proj.weight": (256, 128),
        "layers.0.mlp.up_proj.weight": (256, 128),
        "layers.0.mlp.down_proj.weight": (128, 256),
    }
    generator = torch.Generator().manual_seed(3)
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def unfilled(draft: Any) -> list[str]:
    """Parameters (but the target-shared embedding) in which the filling of 12 still stands."""
    return [
        name
        for name, parameter in draft.named_parameters()
        if "embed_tokens" not in name and bool((parameter == 12.0).any())
    ]


def rename_one(tensors: Tensors) -> Tensors:
    tensors["midlayer.self_attn.query.weight"] = tensors.pop("midlayer.self_attn.q_proj.weight")
    return tensors


def drop(name: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {key: value for key, value in tensors.items() if key != name}


def add(name: str, *shape: int) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {**tensors, name: torch.ones(*shape)}
