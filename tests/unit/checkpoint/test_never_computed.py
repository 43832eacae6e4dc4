"""What a config asks for and no release computes, beside the keys that real trainers write."""

from __future__ import annotations

from typing import Any

import pytest

from sglang_eagle3_patch.checkpoint.config_keys import never_computed
from tests.cpu_sglang.pair import forms

# As these tools write them beside the layer's own keys.
BOOKKEEPING: dict[str, dict[str, Any]] = {
    "ModelOpt 0.41 to 0.47": {
        "eagle_config": {
            "eagle_aux_hidden_state_layer_ids": [],
            "next_layer_regular": True,
            "parallel_draft_heads_num_layers": 1,
            "parallel_draft_step": 1,
            "use_aux_hidden_state": True,
            "use_input_layernorm_in_first_layer": True,
            "use_last_layernorm": True,
            "use_mtp_layernorm": False,
        }
    },
    "generation defaults of transformers 4": {
        "length_penalty": 1.0,
        "max_length": 20,
        "num_beams": 1,
        "num_return_sequences": 1,
        "repetition_penalty": 1.0,
        "temperature": 1.0,
        "top_k": 50,
        "typical_p": 1.0,
    },
    "SpecForge, gemma and gpt-oss": {
        "experts_per_token": 4,
        "num_local_experts": 16,
        "reuse_target_lm_head": True,
    },
    "AngelSlim, vision": {"image_token_id": 1, "vision_start_token_id": 2},
    "llama4_text": {"attention_chunk_size": 8192, "attn_scale": 0.1, "moe_layers": [0]},
    "TorchSpec": {"_torchspec_version": "0.1"},
    "a tool of tomorrow": {"created_by": "somebody", "dataset": "x"},
    "granite, phi3": {
        "embedding_multiplier": 1.0,
        "logits_scaling": 1,
        "original_max_position_embeddings": 4096,
        "residual_multiplier": 1.0,
    },
    "extras that are off": {
        "attn_dropout": 0.0,
        "attn_output_gate": False,
        "mlp_only_layers": [],
        "qk_layernorm": False,
        "sandwich_norm": False,
        "apply_residual_connection_post_layernorm": False,
        "skip_final_norm": False,
        "use_post_norm": False,
        "use_parallel_residual": False,
    },
}


@pytest.mark.parametrize("tool", BOOKKEEPING)
def test_bookkeeping_passes(tool: str) -> None:
    assert never_computed({**forms.sglang_config(), **BOOKKEEPING[tool]}) == ()


@pytest.mark.parametrize(
    "changes",
    [
        {"parallel_drafting": True},
        {"residual_scale": 0.5},
        {"use_double_norm": True},
        {"use_residual": False},
        {"use_final_layernorm": False},
        {"apply_rotary_emb": False},
        {"use_rope_scaling_factor": True},
        {"embedding_multiplier": 12.0},
        {"final_logit_softcapping": 30.0},
        {"hidden_activation": "gelu"},
        {"rotary_pct": 0.25},
        {"eagle_config": {"parallel_draft_step": 4}},
        {"eagle_config": {"extra_layers": 2}},
    ],
)
def test_what_speaks_of_structure_is_told(changes: dict[str, Any]) -> None:
    assert len(never_computed({**forms.sglang_config(), **changes})) == 1
