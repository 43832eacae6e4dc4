"""Small random drafts of both classes with any flags on, and how far logits are from each other.

Norm weights are far from 1, rope's base is not the default and the aux states differ from one
another, so that a piece left out or taken for another shows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sglang_eagle3_patch.checkpoint.spec import DraftSpec
from sglang_eagle3_patch.parity.sglang_draft import SglangDraft
from sglang_eagle3_patch.reference import ReferenceDraft
from tests.contract.drafts import mla_config, mla_tensors
from tests.cpu_sglang.pair import forms

HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, HEAD_DIM, AUX, VOCAB = 64, 96, 4, 2, 16, 3, 160
ROWS, STEPS = 24, 3


def llama_config(**fields: Any) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "num_hidden_layers": 1,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 512,
        "rope_theta": 50000.0,
        "vocab_size": VOCAB,
        "draft_vocab_size": VOCAB,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "norm_before_residual": False,
        "norm_output": False,
        "_torchspec_version": "0.1.0",  # to whom norm_output is what recurs
        **fields,
    }


def tensors_for(config: Mapping[str, Any], seed: int = 0) -> forms.Tensors:
    """Return random weights for a config, later layers' norms named as trainers name them."""
    if "kv_lora_rank" in config:
        shapes = {name: tuple(value.shape) for name, value in mla_tensors().items()}
    else:
        shapes = _llama_shapes(config)
    width, (_, columns) = config["hidden_size"], shapes["fc.weight"]
    shapes["embed_tokens.weight"] = (config["vocab_size"], width)
    if config.get("norm_before_fc"):
        shapes["input_norm.weight"] = (columns,)
    if config.get("fc_norm"):
        shapes |= {f"fc_norm.{i}.weight": (columns // AUX,) for i in range(AUX)}
    generator = torch.Generator().manual_seed(seed)

    def weight(shape: tuple[int, ...]) -> Tensor:
        noise = torch.randn(shape, generator=generator)
        return 1 + 0.3 * noise if len(shape) == 1 else noise / math.sqrt(shape[-1])

    return {
        name: 0.5 * torch.randn(shape, generator=generator)
        if name.endswith(".bias")
        else weight(shape)
        for name, shape in shapes.items()
    }


def _llama_shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    q_rows, kv_rows = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (HIDDEN, AUX * HIDDEN),
        "norm.weight": (HIDDEN,),
        "lm_head.weight": (config["draft_vocab_size"] or VOCAB, HIDDEN),
        "layers.0.hidden_norm.weight": (HIDDEN,),
    }
    for number in range(config["num_hidden_layers"]):
        width = HIDDEN if number else 2 * HIDDEN
        layer = {
            "input_layernorm.weight": (HIDDEN,),
            "post_attention_layernorm.weight": (HIDDEN,),
            "self_attn.q_proj.weight": (q_rows, width),
            "self_attn.k_proj.weight": (kv_rows, width),
            "self_attn.v_proj.weight": (kv_rows, width),
            "self_attn.o_proj.weight": (HIDDEN, q_rows),
            "mlp.gate_proj.weight": (INTERMEDIATE, HIDDEN),
            "mlp.up_proj.weight": (INTERMEDIATE, HIDDEN),
            "mlp.down_proj.weight": (HIDDEN, INTERMEDIATE),
        }
        if config.get("attention_bias"):
            rows = {"q": q_rows, "k": kv_rows, "v": kv_rows, "o": HIDDEN}
            layer |= {f"self_attn.{part}_proj.bias": (size,) for part, size in rows.items()}
        if config.get("qk_norm"):
            layer |= {f"self_attn.{part}_norm.weight": (HEAD_DIM,) for part in "qk"}
        shapes |= {f"layers.{number}.{name}": shape for name, shape in layer.items()}
    return shapes


def deepseek_config(**fields: Any) -> dict[str, Any]:
    return {**mla_config(), "norm_before_residual": False, "norm_output": False, **fields}


def inputs(config: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    """Return aux hidden states `[ROWS, A * H]` of differing size, and token ids."""
    generator = torch.Generator().manual_seed(7)
    aux = torch.randn(ROWS, AUX, config["hidden_size"], generator=generator)
    aux = aux * torch.tensor([0.5, 1.0, 3.0])[:, None]
    ids = torch.randint(0, config["vocab_size"], (ROWS + STEPS,), generator=generator)
    return aux.flatten(1), ids


def served(folder: Path, tensors: forms.Tensors, config: Mapping[str, Any]) -> list[Tensor]:
    """Return the logits of SGLang's own class for the checkpoint, written to `folder`."""
    forms.write(folder, tensors, dict(config))
    draft = SglangDraft(folder).load(tensors)
    return draft.forward(*inputs(config), STEPS)


def trained(tensors: forms.Tensors, config: Mapping[str, Any], folder: Path) -> list[Tensor]:
    """Return the logits of the plain torch reference for the same checkpoint."""
    spec = DraftSpec.read(forms.write(folder, tensors, dict(config)))
    return ReferenceDraft.from_spec(spec, tensors).forward(*inputs(config), STEPS)


def difference(ours: list[Tensor], reference: list[Tensor]) -> float:
    """Return the largest difference of any logit in any step, in the scale of the logits."""
    pairs = zip(ours, reference, strict=True)
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in pairs)


def agreement(ours: list[Tensor], reference: list[Tensor]) -> float:
    """Return the smallest share of rows, in any step, whose best token is the same."""
    pairs = zip(ours, reference, strict=True)
    return min(float((a.argmax(-1) == b.argmax(-1)).float().mean()) for a, b in pairs)
