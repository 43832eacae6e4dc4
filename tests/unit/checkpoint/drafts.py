"""Headers and configs of small drafts as each producer writes them; no weights.

Names and keys are those of `checkpoint/producers.py`'s sources: the trainers' own savers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sglang_eagle3_patch.checkpoint.header import TensorHeader
from sglang_eagle3_patch.checkpoint.trained_rope import EXPORTED_YARN

HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, HEAD_DIM = 64, 96, 4, 2, 16
VOCAB, DRAFT_VOCAB, AUX = 320, 128, 3
Q_LORA, KV_LORA, NOPE, ROPE, VALUE = 44, 24, 32, 8, 20

Headers = dict[str, TensorHeader]
Config = dict[str, Any]


def floats(**shapes: tuple[int, ...]) -> Headers:
    return {name: TensorHeader("BF16", shape) for name, shape in shapes.items()}


def layer(prefix: str, first: bool = True, mla: bool = False, norm: str = "") -> Headers:
    """Return one decoder layer; a later one is of width H, its norm is called `norm`."""
    width = 2 * HIDDEN if first else HIDDEN
    norms = ["input_layernorm", "hidden_norm"] if first else [norm]
    shapes: dict[str, tuple[int, ...]] = {
        f"{name}.weight": (HIDDEN,) for name in (*norms, "post_attention_layernorm")
    }
    attention: Mapping[str, tuple[int, ...]] = {
        "q_proj": (HEADS * HEAD_DIM, width),
        "k_proj": (KV_HEADS * HEAD_DIM, width),
        "v_proj": (KV_HEADS * HEAD_DIM, width),
        "o_proj": (HIDDEN, HEADS * HEAD_DIM),
    }
    if mla:
        attention = {
            "q_a_proj": (Q_LORA, width),
            "q_a_layernorm": (Q_LORA,),
            "q_b_proj": (HEADS * (NOPE + ROPE), Q_LORA),
            "kv_a_proj_with_mqa": (KV_LORA + ROPE, width),
            "kv_a_layernorm": (KV_LORA,),
            "kv_b_proj": (HEADS * (NOPE + VALUE), KV_LORA),
            "o_proj": (HIDDEN, HEADS * VALUE),
        }
    shapes |= {f"self_attn.{name}.weight": shape for name, shape in attention.items()}
    shapes |= {
        "mlp.gate_proj.weight": (INTERMEDIATE, HIDDEN),
        "mlp.up_proj.weight": (INTERMEDIATE, HIDDEN),
        "mlp.down_proj.weight": (HIDDEN, INTERMEDIATE),
    }
    return floats(**{prefix + name: shape for name, shape in shapes.items()})


def top(*without: str) -> Headers:
    """Return the top-level tensors, `without` some."""
    tensors = floats(
        **{
            "embed_tokens.weight": (VOCAB, HIDDEN),
            "fc.weight": (HIDDEN, AUX * HIDDEN),
            "norm.weight": (HIDDEN,),
            "lm_head.weight": (DRAFT_VOCAB, HIDDEN),
        }
    )
    tensors["d2t"] = TensorHeader("I64", (DRAFT_VOCAB,))
    tensors["t2d"] = TensorHeader("BOOL", (VOCAB,))
    return {name: header for name, header in tensors.items() if name not in without}


def fc_norms(*names: str) -> Headers:
    return floats(**{f"{name}.weight": (HIDDEN,) for name in names})


def prefixed(prefix: str, tensors: Headers, bare: tuple[str, ...] = ()) -> Headers:
    return {name if name in bare else prefix + name: header for name, header in tensors.items()}


def flat(architecture: str, **changes: Any) -> Config:
    """Return a config with the layer's fields at the top; a change to None drops the key."""
    config = {
        "architectures": [architecture],
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
        "vocab_size": VOCAB,
        "draft_vocab_size": DRAFT_VOCAB,
        "tie_word_embeddings": False,
        **changes,
    }
    return {key: value for key, value in config.items() if value is not None}


def mla(**changes: Any) -> Config:
    return flat(
        "Eagle3DeepseekV2ForCausalLM",
        **{
            "model_type": "kimi_k2",
            "head_dim": None,
            "q_lora_rank": Q_LORA,
            "kv_lora_rank": KV_LORA,
            "qk_nope_head_dim": NOPE,
            "qk_rope_head_dim": ROPE,
            "v_head_dim": VALUE,
            "num_key_value_heads": HEADS,
            "rope_theta": 50000.0,
            "rope_scaling": {"type": "yarn", "factor": 64.0},
            **changes,
        },
    )


def speculators(architecture: str, version: str, **changes: Any) -> Config:
    nested = flat("", rope_theta=10000.0)
    del nested["architectures"], nested["draft_vocab_size"]
    return {
        "architectures": [architecture],
        "speculators_model_type": "eagle3",
        "speculators_version": version,
        "draft_vocab_size": DRAFT_VOCAB,
        "target_hidden_size": None,
        "transformer_layer_config": nested,
        "speculators_config": {"algorithm": "eagle3"},
        **changes,
    }


WHOLE_VOCABULARY = top("embed_tokens.weight", "d2t", "t2d", "lm_head.weight") | floats(
    **{"lm_head.weight": (VOCAB, HIDDEN)}
)
EAGLE_CONFIG = {"eagle_aux_hidden_state_layer_ids": [1, 3, 4], "use_aux_hidden_state": True}
MODELOPT = {
    **EAGLE_CONFIG,
    "use_last_layernorm": True,
    "use_input_layernorm_in_first_layer": True,
    "use_mtp_layernorm": False,
    "next_layer_regular": True,
    "parallel_draft_step": 1,
}
TRAINER = "Eagle3DraftModel"
CONVERTER = "Eagle3Speculator"
SGLANG = "LlamaForCausalLMEagle3"
IDS = {"eagle_aux_hidden_state_layer_ids": [2, 4, 5]}

# What is written, by whom: the name `producers` has for them, the config, the headers.
WRITTEN: dict[str, tuple[str, Config, Headers]] = {
    "SafeAILab": (
        "SafeAILab",
        flat("LlamaForCausalLM"),
        top("embed_tokens.weight") | layer("midlayer."),
    ),
    "SpecForge": (
        "SpecForge",
        flat(SGLANG, eagle_config=EAGLE_CONFIG, fc_norm=True, norm_output=True),
        top("embed_tokens.weight")
        | layer("midlayer.")
        | fc_norms("fc_norm.0", "fc_norm.1", "fc_norm.2"),
    ),
    "SpecForge with aux norms": (
        "SpecForge",
        flat(SGLANG, use_aux_norm=True),
        top() | layer("midlayer.") | fc_norms("aux_norm_low", "aux_norm_mid", "aux_norm_high"),
    ),
    "AngelSlim": (
        "AngelSlim",
        flat(
            "Eagle3LlamaForCausalLM",
            target_model_type="qwen3",
            modal_type="LLM",
            tie_word_embeddings=True,
        ),
        top("embed_tokens.weight") | layer("midlayer."),
    ),
    "speculators 0.3 trainer": (
        "speculators trainer before 0.5",
        speculators(
            TRAINER, "0.3.0", norm_before_residual=True, eagle_aux_hidden_state_layer_ids=None
        ),
        top() | layer("layers.0."),
    ),
    "speculators 0.9 trainer, two layers": (
        "speculators trainer",
        speculators(TRAINER, "0.9.0", norm_before_residual=True, norm_before_fc=True, **IDS),
        top()
        | layer("layers.0.")
        | layer("layers.1.", first=False, norm="input_layernorm")
        | floats(**{"input_norm.weight": (AUX * HIDDEN,)}),
    ),
    "speculators 0.3 converter": (
        "speculators converter 0.2 to 0.4",
        speculators(CONVERTER, "0.3.0", norm_before_residual=False),
        top() | layer("layers.0."),
    ),
    "speculators 0.9 converter": (
        "speculators converter",
        speculators(CONVERTER, "0.9.0", norm_before_residual=False),
        top() | layer("layers.0."),
    ),
    "ModelOpt": (
        "ModelOpt",
        flat(SGLANG, eagle_config=MODELOPT),
        top("embed_tokens.weight", "t2d") | layer("layers.0."),
    ),
    "ModelOpt, default export": (
        "ModelOpt",
        flat(SGLANG, eagle_config=MODELOPT, rope_scaling=EXPORTED_YARN),
        top("embed_tokens.weight", "t2d") | layer("layers.0."),
    ),
    "ModelOpt 0.42": (
        "ModelOpt 0.41 or 0.42",
        flat(SGLANG, eagle_config=MODELOPT),
        top("embed_tokens.weight", "t2d") | layer("midlayer."),
    ),
    "ModelOpt 0.42, of the whole vocabulary": (
        "ModelOpt 0.41 or 0.42",
        flat(SGLANG, eagle_config=MODELOPT, draft_vocab_size=VOCAB, bos_token_id=1),
        WHOLE_VOCABULARY | layer("midlayer."),
    ),
    "ModelOpt Megatron": (
        "ModelOpt Megatron",
        {**flat(SGLANG, eagle_config=MODELOPT, draft_vocab_size=VOCAB), "bos_token_id": None},
        WHOLE_VOCABULARY | layer("midlayer."),
    ),
    "ModelOpt Megatron, two layers": (
        "ModelOpt Megatron, several layers",
        flat("LlamaForCausalLMEagle3Deep", num_hidden_layers=2),
        top("embed_tokens.weight", "t2d", "d2t")
        | layer("midlayer.0.")
        | layer("midlayer.1.", first=False, norm="hidden_norm"),
    ),
    "TorchSpec MLA": (
        "TorchSpec",
        mla(draft_vocab_size=None),
        WHOLE_VOCABULARY | layer("midlayer.", mla=True),
    ),
    "TorchSpec MLA for vLLM": (
        "TorchSpec, exported for vLLM",
        mla(),
        top("embed_tokens.weight") | layer("layers.0.", mla=True),
    ),
    "TorchSpec MHA": (
        "TorchSpec",
        flat(SGLANG, norm_output=True, _torchspec_version="0.1.0"),
        top("embed_tokens.weight", "d2t", "t2d") | layer("midlayer."),
    ),
    "native, of the whole vocabulary": (
        "SafeAILab, SpecForge, AngelSlim or TorchSpec",
        flat(SGLANG, draft_vocab_size=VOCAB),
        WHOLE_VOCABULARY | layer("midlayer."),
    ),
    "NeMo Automodel": (
        "NeMo Automodel",
        flat("LlamaEagle3DraftModel", num_hidden_layers=36, norm_output=True),
        prefixed("model.", top() | layer("layers.0."), bare=("lm_head.weight", "d2t", "t2d")),
    ),
    "a trainer's dump": (
        "a trainer's own dump",
        flat(SGLANG),
        prefixed("module.draft_model.", top() | layer("layers.0.")),
    ),
    "SpecForge's dump": (
        "SpecForge",
        flat(SGLANG),
        prefixed("module.draft_model.", top() | layer("midlayer.")),
    ),
    "renamed by hand": ("unknown", flat(SGLANG), top() | layer("layers.0.")),
}
