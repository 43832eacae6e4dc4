"""Names of draft tensors: every producer's, and the canonical ones they mean.

Canonical names are those of SGLang since 0.5.12 without their leading `model.`: `layers.N.*`,
`fc`, `fc_norm.N`, `input_norm`, `norm`, `embed_tokens`, `lm_head`, `d2t`, `t2d`. A new producer
is one more row.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Rename:
    """One rewriting of names: a pattern at the start of a name, what it becomes, who writes it."""

    pattern: re.Pattern[str]
    replacement: str
    producer: str


_PREFIX = Rename(
    re.compile(r"^(?:module\.|draft_model\.|eagle_module\.|model\.)+"),
    "",
    "prefixed dumps of trainers; NeMo Automodel",
)
RENAMES = (
    _PREFIX,
    Rename(re.compile(r"^midlayer\.(\d+)\."), r"layers.\1.", "ModelOpt, several decoder layers"),
    Rename(re.compile(r"^midlayer\."), "layers.0.", "SafeAILab, SpecForge, AngelSlim, TorchSpec"),
    Rename(re.compile(r"^aux_norm_low\."), "fc_norm.0.", "SpecForge, older"),
    Rename(re.compile(r"^aux_norm_mid\."), "fc_norm.1.", "SpecForge, older"),
    Rename(re.compile(r"^aux_norm_high\."), "fc_norm.2.", "SpecForge, older"),
)

# Written by trainers and quantisers, wanted by no drafter: masks and tables that can be computed,
# the target's own tensors that some trainers keep beside the draft's, scales of a KV cache.
NOT_WEIGHTS = re.compile(
    r"^t2d$|(^|\.)rotary_emb\.(inv_freq|cos_cached|sin_cached)$|^verifier_|(^|\.)(k|v|kv)_scale$"
)


# Every canonical name that some EAGLE-3 draft's layout has. Layers beyond the first norm their
# input with `input_layernorm` (speculators, ModelOpt) or `hidden_norm` (SGLang, TensorRT-LLM).
KNOWN = re.compile(
    r"""(?x)^(
        (embed_tokens|lm_head|norm|input_norm|fc|fc_norm\.\d+)\.weight | fc\.bias | d2t
        | layers\.\d+\.(
            (input_layernorm|hidden_norm|post_attention_layernorm)\.weight
            | self_attn\.(q|k|v|o|q_a|q_b|kv_b)_proj\.(weight|bias)
            | self_attn\.kv_a_proj_with_mqa\.(weight|bias)
            | self_attn\.(q|k|q_a_layer|kv_a_layer)_?norm\.weight
            | mlp\.(gate|up|down)_proj\.(weight|bias)
        )
        | .+\.(weight_scale(_2|_inv)?|input_scale)
    )$"""
)


def is_known(name: str) -> bool:
    """Whether a canonical name is in some layout, or is no weight at all."""
    return bool(KNOWN.match(name) or NOT_WEIGHTS.search(name))


def without_prefix(name: str) -> str:
    """Return the name without what a trainer's dump puts before it."""
    return _PREFIX.pattern.sub(_PREFIX.replacement, name)


def canonical_name(name: str) -> str:
    """Return the canonical name of a draft tensor; an unknown name comes back as it is."""
    for rename in RENAMES:
        name = rename.pattern.sub(rename.replacement, name)
    return name
