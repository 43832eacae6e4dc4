"""Which tensors a draft must have to be computed, and which it may have besides."""

from __future__ import annotations

from collections.abc import Collection

from sglang_eagle3_patch.checkpoint.flags import DraftFlags
from sglang_eagle3_patch.checkpoint.layouts import NOT_WEIGHTS
from sglang_eagle3_patch.checkpoint.spec import DraftSpec

_MHA = ("q_proj", "k_proj", "v_proj")
_MLA = ("kv_a_proj_with_mqa", "kv_a_layernorm", "kv_b_proj")
_LOW_RANK_Q = ("q_a_proj", "q_a_layernorm", "q_b_proj")


def required_names(spec: DraftSpec, flags: DraftFlags) -> frozenset[str]:
    """Return the canonical names without which the draft's forward is not defined.

    Embedding and head are among them, though the target may lend them. Layers beyond the first
    are named with `input_layernorm`.
    """
    modules = {"embed_tokens", "fc", "lm_head", "layers.0.hidden_norm"}
    if flags.norm_before_head or flags.norm_output:
        modules.add("norm")
    if flags.norm_before_fc:
        modules.add("input_norm")
    if flags.fc_norm:
        modules |= {f"fc_norm.{aux}" for aux in range(spec.num_aux or 0)}
    for number in spec.layer_numbers:
        layer = f"layers.{number}."
        attention: tuple[str, ...] = _MHA
        if spec.attention == "mla":
            low_rank = layer + "self_attn.q_a_proj.weight" in spec.tensors
            attention = _MLA + (_LOW_RANK_Q if low_rank else ("q_proj",))
        modules |= {layer + f"self_attn.{part}" for part in (*attention, "o_proj")}
        modules |= {layer + f"mlp.{part}_proj" for part in ("gate", "up", "down")}
        modules |= {layer + "input_layernorm", layer + "post_attention_layernorm"}
    return frozenset(f"{module}.weight" for module in modules)


def unused_names(names: Collection[str], required: Collection[str]) -> tuple[str, ...]:
    """Return the weights among canonical `names` that no forward with `required` has a use for.

    Linears may have biases, the heads of MHA norms, and a draft a `norm` that it skips.
    """
    usable = {*required, "d2t", "norm.weight", "fc.bias"}
    for name in required:
        if "_proj" in name:
            usable.add(name.removesuffix("weight") + "bias")
        if name.endswith(".k_proj.weight"):
            usable |= {name.replace(".k_proj.", f".{part}_norm.") for part in "qk"}
    return tuple(sorted(n for n in names if n not in usable and not NOT_WEIGHTS.search(n)))
