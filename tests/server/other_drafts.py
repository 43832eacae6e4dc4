"""Drafts of other speculation for the tiny target, none of them trained: they are there to be
served the same with and without the plugin."""

from __future__ import annotations

import json
from typing import Any

import torch
from safetensors.torch import load_file

from tests.cpu_sglang.pair import forms
from tests.cpu_sglang.pair.drafter import DrafterShape

SHAPE = DrafterShape()


def standalone() -> tuple[forms.Tensors, dict[str, Any]]:
    """A llama of its own: the target's embedding and head around a layer that adds nothing.

    What the head makes of a bare embedding is right often enough to be accepted now and then.
    """
    target = load_file(forms.TARGET / "model.safetensors")
    layer = _layer()
    for name in ("self_attn.o_proj.weight", "mlp.down_proj.weight"):
        layer[name].zero_()
    tensors = {
        "model.embed_tokens.weight": target["language_model.model.embed_tokens.weight"],
        "model.norm.weight": target["language_model.model.norm.weight"],
        "lm_head.weight": target["language_model.lm_head.weight"],
        **{f"model.layers.0.{name}": value for name, value in layer.items()},
    }
    config = {**forms.sglang_config(), "architectures": ["LlamaForCausalLM"]}
    del config["draft_vocab_size"]
    return tensors, config


def deepseek_mtp() -> tuple[forms.Tensors, dict[str, Any]]:
    """The multi-token prediction layer of a DeepSeek checkpoint, one past the target's layers.

    The target's last layer once more, after a projection that passes the embedding on.
    """
    target = load_file(forms.TARGET / "model.safetensors")
    config = json.loads((forms.TARGET / "config.json").read_text())["text_config"]
    last = f"language_model.model.layers.{config['num_hidden_layers'] - 1}."
    layer = {name.removeprefix(last): value for name, value in target.items() if last in name}
    ones = torch.ones(SHAPE.hidden)
    layer |= {
        "eh_proj.weight": torch.cat([torch.eye(SHAPE.hidden), torch.zeros(2 * [SHAPE.hidden])], 1),
        "enorm.weight": ones,
        "hnorm.weight": ones.clone(),
        "shared_head.norm.weight": target["language_model.model.norm.weight"],
    }
    past_the_last = f"model.layers.{config['num_hidden_layers']}."
    tensors = {past_the_last + name: value for name, value in layer.items()}
    return tensors, {**config, "num_nextn_predict_layers": 1}


def dflash() -> tuple[forms.Tensors, dict[str, Any]]:
    """A DFlash draft of one random layer: it has an `fc` over aux hidden states, too."""
    layer = _layer()
    layer["self_attn.q_norm.weight"] = torch.ones(SHAPE.head_dim)
    layer["self_attn.k_norm.weight"] = torch.ones(SHAPE.head_dim)
    tensors = {
        "fc.weight": _random(SHAPE.hidden, 2 * SHAPE.hidden),
        "hidden_norm.weight": torch.ones(SHAPE.hidden),
        "norm.weight": torch.ones(SHAPE.hidden),
        **{f"layers.0.{name}": value for name, value in layer.items()},
    }
    config = {
        **forms.sglang_config(),
        "architectures": ["DFlashDraftModel"],
        "block_size": 4,
        "num_target_layers": 8,
        "dflash_config": {"target_layer_ids": [2, 5], "mask_token_id": SHAPE.vocab - 1},
    }
    del config["draft_vocab_size"]
    return tensors, config


def _layer() -> forms.Tensors:
    """The tensors of a llama decoder layer of the drafter's sizes, norms at one."""
    heads, kv_heads = SHAPE.heads * SHAPE.head_dim, SHAPE.kv_heads * SHAPE.head_dim
    return {
        "input_layernorm.weight": torch.ones(SHAPE.hidden),
        "post_attention_layernorm.weight": torch.ones(SHAPE.hidden),
        "self_attn.q_proj.weight": _random(heads, SHAPE.hidden),
        "self_attn.k_proj.weight": _random(kv_heads, SHAPE.hidden),
        "self_attn.v_proj.weight": _random(kv_heads, SHAPE.hidden),
        "self_attn.o_proj.weight": _random(SHAPE.hidden, heads),
        "mlp.gate_proj.weight": _random(SHAPE.intermediate, SHAPE.hidden),
        "mlp.up_proj.weight": _random(SHAPE.intermediate, SHAPE.hidden),
        "mlp.down_proj.weight": _random(SHAPE.hidden, SHAPE.intermediate),
    }


def _random(rows: int, columns: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rows * columns)
    return torch.randn(rows, columns, generator=generator) / 12
