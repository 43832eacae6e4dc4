"""Synthesises a draft and a target of Kimi-K2.5's sizes: real headers, holes for weights.

Hundreds of gigabytes by their sizes, some megabytes on the disk: what reads headers sees no
difference, and what would read weights is slow at once.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sglang_eagle3_patch.checkpoint.header import INDEX, TensorHeader

Tensors = dict[str, TensorHeader]

VOCAB, DRAFT_VOCAB, CONTEXT, EPS = 163840, 32000, 262144, 1e-5
HEADS, HEAD_DIM = 64, 128
_YARN = {
    "type": "yarn",
    "factor": 64.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 4096,
}
# How compressed-tensors packs a weight: eight values in an integer, a scale for 32 of them.
_PACKED, _GROUP = 8, 32
# 0.5 as BF16: norms of exactly 1 are taken for untrained.
_HALF = b"\x00\x3f"


@dataclass(frozen=True)
class Size:
    """What is large in the pair; the defaults are Kimi-K2.5's."""

    layers: int = 61
    experts: int = 384
    shards: int = 64
    hidden: int = 7168
    intermediate: int = 18432
    expert_intermediate: int = 2048


def write_draft(folder: Path, size: Size, *, embedding: bool = False) -> Path:
    """Write a draft with native names; with an `embedding` of its own or without.

    Its norms are 0.5 and it knows the first ids of the target, as its maps say.
    """
    hidden, wide, heads = size.hidden, 2 * size.hidden, HEADS * HEAD_DIM
    norms = _floats(
        ("norm.weight", (hidden,)),
        *((f"midlayer.{name}.weight", (hidden,)) for name in ("input_layernorm", "hidden_norm")),
        ("midlayer.post_attention_layernorm.weight", (hidden,)),
    )
    tensors = norms | _floats(
        ("fc.weight", (hidden, 3 * hidden)),
        *((f"midlayer.self_attn.{part}_proj.weight", (heads, wide)) for part in "qkv"),
        ("midlayer.self_attn.o_proj.weight", (hidden, heads)),
        *((f"midlayer.mlp.{part}_proj.weight", (size.intermediate, hidden)) for part in _GATED),
        ("midlayer.mlp.down_proj.weight", (hidden, size.intermediate)),
        ("lm_head.weight", (DRAFT_VOCAB, hidden)),
    )
    tensors |= {"d2t": TensorHeader("I64", (DRAFT_VOCAB,)), "t2d": TensorHeader("BOOL", (VOCAB,))}
    if embedding:
        tensors |= _floats(("embed_tokens.weight", (VOCAB, hidden)))
    values = dict.fromkeys(norms, _HALF * hidden) | {"t2d": b"\1" * DRAFT_VOCAB}
    folder.mkdir()
    _write_sparse(folder / "model.safetensors", tensors, values)
    (folder / "config.json").write_text(json.dumps(_draft_config(size)))
    return folder


_GATED = ("gate", "up")


def _draft_config(size: Size) -> dict[str, Any]:
    third = size.layers // 2
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": size.hidden,
        "target_hidden_size": size.hidden,
        "intermediate_size": size.intermediate,
        "num_hidden_layers": 1,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "rms_norm_eps": EPS,
        "rope_theta": 50000.0,
        "rope_scaling": _YARN,
        "max_position_embeddings": CONTEXT,
        "vocab_size": VOCAB,
        "draft_vocab_size": DRAFT_VOCAB,
        "tie_word_embeddings": False,
        "eagle_config": {
            "use_aux_hidden_state": True,
            "eagle_aux_hidden_state_layer_ids": [2, third, size.layers - 3],
        },
    }


def write_target(folder: Path, size: Size) -> Path:
    """Write a target: config, index and shards of about equally many tensors.

    The embedding lies in the last shard, where who goes through them finds it last.
    """
    tensors = target_tensors(size)
    folder.mkdir()
    weight_map: dict[str, str] = {}
    total = 0
    names = list(tensors)
    for number in range(size.shards):
        first, end = (len(names) * at // size.shards for at in (number, number + 1))
        file = f"model-{number + 1:05}-of-{size.shards:06}.safetensors"
        shard = {name: tensors[name] for name in names[first:end]}
        total += _write_sparse(folder / file, shard)
        weight_map |= dict.fromkeys(shard, file)
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    (folder / INDEX).write_text(json.dumps(index, indent=2))
    (folder / "config.json").write_text(json.dumps(_target_config(size)))
    return folder


def target_tensors(size: Size) -> Tensors:
    """Return the target's tensors: latent attention, INT4 experts, a vision tower, a projector."""
    tensors: Tensors = {}
    for number in range(27):
        block = f"vision_tower.encoder.blocks.{number}."
        for part, rows, columns in (("wqkv", 3456, 1152), ("wo", 1152, 1152)):
            tensors |= _linear(block + part, rows, columns)
        tensors |= _linear(block + "mlp.fc0", 4304, 1152) | _linear(block + "mlp.fc1", 1152, 4304)
        for norm in ("norm0", "norm1"):
            tensors |= _floats(*((f"{block}{norm}.{part}", (1152,)) for part in _AFFINE))
    tensors |= _linear("mm_projector.proj.0", 4608, 4608)
    tensors |= _linear("mm_projector.proj.2", size.hidden, 4608)
    for number in range(size.layers):
        tensors |= _decoder_layer(f"language_model.model.layers.{number}.", size, dense=number == 0)
    return tensors | _floats(
        ("language_model.model.norm.weight", (size.hidden,)),
        ("language_model.lm_head.weight", (VOCAB, size.hidden)),
        ("language_model.model.embed_tokens.weight", (VOCAB, size.hidden)),
    )


_AFFINE = ("weight", "bias")


def _linear(name: str, rows: int, columns: int) -> Tensors:
    return _floats((f"{name}.weight", (rows, columns)), (f"{name}.bias", (rows,)))


def _decoder_layer(prefix: str, size: Size, *, dense: bool) -> Tensors:
    hidden, attention, mlp = size.hidden, f"{prefix}self_attn.", f"{prefix}mlp."
    tensors = _floats(
        (f"{prefix}input_layernorm.weight", (hidden,)),
        (f"{prefix}post_attention_layernorm.weight", (hidden,)),
        (f"{attention}q_a_proj.weight", (1536, hidden)),
        (f"{attention}q_a_layernorm.weight", (1536,)),
        (f"{attention}q_b_proj.weight", (HEADS * 192, 1536)),
        (f"{attention}kv_a_proj_with_mqa.weight", (576, hidden)),
        (f"{attention}kv_a_layernorm.weight", (512,)),
        (f"{attention}kv_b_proj.weight", (HEADS * 256, 512)),
        (f"{attention}o_proj.weight", (hidden, HEADS * 128)),
    )
    if dense:
        return tensors | _mlp(mlp, hidden, size.intermediate)
    tensors |= _mlp(f"{mlp}shared_experts.", hidden, size.expert_intermediate)
    tensors |= _floats((f"{mlp}gate.weight", (size.experts, hidden)))
    tensors[f"{mlp}gate.e_score_correction_bias"] = TensorHeader("F32", (size.experts,))
    for expert in range(size.experts):
        for name, weight in _mlp(
            f"{mlp}experts.{expert}.", hidden, size.expert_intermediate
        ).items():
            rows, columns = weight.shape
            tensors[f"{name}_packed"] = TensorHeader("I32", (rows, columns // _PACKED))
            tensors[f"{name}_scale"] = TensorHeader("BF16", (rows, columns // _GROUP))
            tensors[f"{name}_shape"] = TensorHeader("I32", (2,))
    return tensors


def _mlp(prefix: str, hidden: int, intermediate: int) -> Tensors:
    return _floats(
        *((f"{prefix}{part}_proj.weight", (intermediate, hidden)) for part in _GATED),
        (f"{prefix}down_proj.weight", (hidden, intermediate)),
    )


def _target_config(size: Size) -> dict[str, Any]:
    text = {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "kimi_k2",
        "vocab_size": VOCAB,
        "hidden_size": size.hidden,
        "intermediate_size": size.intermediate,
        "moe_intermediate_size": size.expert_intermediate,
        "num_hidden_layers": size.layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "n_shared_experts": 1,
        "n_routed_experts": size.experts,
        "num_experts_per_tok": 8,
        "routed_scaling_factor": 2.827,
        "first_k_dense_replace": 1,
        "moe_layer_freq": 1,
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "hidden_act": "silu",
        "rms_norm_eps": EPS,
        "rope_theta": 50000.0,
        "rope_scaling": _YARN,
        "max_position_embeddings": CONTEXT,
        "tie_word_embeddings": False,
        "quantization_config": {
            "quant_method": "compressed-tensors",
            "format": "pack-quantized",
            "config_groups": {
                "group_0": {
                    "targets": ["Linear"],
                    "weights": {
                        "num_bits": 4,
                        "type": "int",
                        "strategy": "group",
                        "group_size": _GROUP,
                        "symmetric": True,
                    },
                }
            },
            "ignore": ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*"],
        },
    }
    return {
        "architectures": ["KimiK25ForConditionalGeneration"],
        "model_type": "kimi_k25",
        "text_config": text,
        "vision_config": {"model_type": "kimi_k25", "vt_hidden_size": 1152},
        "tie_word_embeddings": False,
    }


def _floats(*shapes: tuple[str, tuple[int, ...]]) -> Tensors:
    return {name: TensorHeader("BF16", shape) for name, shape in shapes}


def _write_sparse(file: Path, tensors: Tensors, values: Mapping[str, bytes] | None = None) -> int:
    """Write a safetensors file of holes, but for the first bytes of some tensors; returns the
    bytes of all tensors."""
    entries: dict[str, dict[str, Any]] = {}
    at = 0
    for name, tensor in tensors.items():
        place = [at, at := at + tensor.size]
        entries[name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": place}
    text = json.dumps({"__metadata__": {"format": "pt"}, **entries}, separators=(",", ":")).encode()
    with file.open("wb") as stream:
        stream.write(struct.pack("<Q", len(text)) + text)
        begin = stream.tell()
        for name, data in (values or {}).items():
            stream.seek(begin + entries[name]["data_offsets"][0])
            stream.write(data)
        stream.truncate(begin + at)
    return at
