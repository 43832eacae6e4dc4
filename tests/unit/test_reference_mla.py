"""The reference's MLA attention against transformers' own DeepSeek-V3."""

from __future__ import annotations

import pytest
import torch
from transformers.models.deepseek_v3.configuration_deepseek_v3 import DeepseekV3Config
from transformers.models.deepseek_v3.modeling_deepseek_v3 import (
    DeepseekV3Attention,
    DeepseekV3RotaryEmbedding,
)

from sglang_eagle3_patch.reference import ReferenceDraft
from tests.oracles import golden_files as golden
from tests.unit.checkpoint import drafts
from tests.unit.test_reference import Tensors, spec_of

MLA_SIZES = (
    "num_attention_heads",
    "num_key_value_heads",
    "q_lora_rank",
    "kv_lora_rank",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "v_head_dim",
    "max_position_embeddings",
)


@pytest.mark.parametrize("scaling", ["yarn", "default"])
def test_mla_is_deepseeks(scaling: str) -> None:
    """Step 0 against transformers' own attention, whose inputs are as wide as [e ; h]."""
    wide = 2 * drafts.HIDDEN
    rope = {"rope_type": scaling, "rope_theta": golden.THETA}
    if scaling == "yarn":
        rope |= {"factor": 4.0, "original_max_position_embeddings": 64, "mscale_all_dim": 0.7}
        rope |= {"mscale": 1.3}
    sizes = {key: drafts.mla()[key] for key in MLA_SIZES}
    config = DeepseekV3Config(hidden_size=wide, rope_parameters=rope, **sizes)
    config._attn_implementation = "eager"
    config.rms_norm_eps = golden.EPS
    torch.manual_seed(1)
    attention = DeepseekV3Attention(config, 0).float()
    # transformers gives the norms of the latents its own default epsilon, whatever the config.
    attention.q_a_layernorm.variance_epsilon = golden.EPS
    attention.kv_a_layernorm.variance_epsilon = golden.EPS
    _, raw, headers = drafts.WRITTEN["TorchSpec MLA for vLLM"]
    tensors = {name: torch.rand(header.shape) - 0.5 for name, header in headers.items()}
    tensors["d2t"] = torch.zeros(drafts.DRAFT_VOCAB, dtype=torch.int64)
    own = {k: v for k, v in attention.state_dict().items() if k != "o_proj.weight"}
    for name, value in own.items():
        value.copy_(torch.randn(value.shape) / 4 if value.ndim > 1 else torch.rand(value.shape))
        tensors[f"layers.0.self_attn.{name}"] = value
    attention.o_proj.weight = torch.nn.Parameter(tensors["layers.0.self_attn.o_proj.weight"])

    draft_config = {**raw, "rope_parameters": rope, "rms_norm_eps": golden.EPS}
    del draft_config["rope_scaling"], draft_config["rope_theta"]
    embedding = torch.randn(drafts.VOCAB, drafts.HIDDEN)
    draft = ReferenceDraft.from_spec(spec_of(draft_config, tensors), tensors, embedding)
    record: Tensors = {}
    aux, token_ids = golden.inputs()
    draft.forward(aux, token_ids, 1, record)
    x = torch.cat([record[f"step0.layers.0.{n}"] for n in ("input_layernorm", "hidden_norm")], -1)
    positions = torch.arange(golden.LENGTH)[None]
    mask = torch.full((golden.LENGTH, golden.LENGTH), -torch.inf).triu(1)[None, None]
    with torch.no_grad():
        rotary = DeepseekV3RotaryEmbedding(config)(x[None], positions)
        expected, _ = attention(x[None], position_embeddings=rotary, attention_mask=mask)
    torch.testing.assert_close(record["step0.layers.0.self_attn"], expected[0], atol=1e-5, rtol=0)


def test_mla_goes_on_for_steps() -> None:
    """A step sees its own keys: with all else equal, a second step differs by its token alone."""
    _, config, headers = drafts.WRITTEN["TorchSpec MLA"]
    config = {**config, "rope_scaling": None, "rope_theta": 1e4}
    torch.manual_seed(2)
    tensors = {name: torch.rand(header.shape) - 0.5 for name, header in headers.items()}
    draft = ReferenceDraft.from_spec(
        spec_of(config, tensors), tensors, torch.randn(drafts.VOCAB, drafts.HIDDEN)
    )
    aux, token_ids = golden.inputs()
    first = draft.forward(aux, token_ids, 2)
    token_ids[5] += 1
    second = draft.forward(aux, token_ids, 2)
    changed = [(a - b).abs().amax(-1) > 0 for a, b in zip(first, second, strict=True)]
    assert changed[0].nonzero()[0] == 4
    assert changed[1].nonzero()[0] == 3
