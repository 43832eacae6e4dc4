"""Rules about other variants of the layer: norms of heads, biases, states that are not used."""

from __future__ import annotations

import re
from collections.abc import Mapping

from sglang_eagle3_patch.checkpoint.config_keys import ONLY_VALUES, never_computed
from sglang_eagle3_patch.checkpoint.layouts import canonical_name
from sglang_eagle3_patch.checkpoint.rules.answers import OK, Answer, listed, mended_by, rule, wrong
from sglang_eagle3_patch.checkpoint.rules.case import Case
from sglang_eagle3_patch.checkpoint.rules.loading import plugin_load

_RETRAIN = "serve a draft that was trained without it, or use the plugin"
# Told by a rule of its own.
_LAST_NORM = "eagle_config.use_last_layernorm"


def _unbuilt(case: Case, pattern: str) -> list[str]:
    """Tensors of the file that match and that the draft has no place for, plugin included."""
    load = plugin_load(case)
    return [n for n in load.unused if re.search(pattern, canonical_name(n))] if load else []


@rule("E3-flags-head-norms", "error")
def head_norms(case: Case) -> Answer:
    """The heads of q and k were trained to be normed, as in Qwen3's layer.

    Cause: SGLang's draft classes have no `q_norm` and `k_norm` and drop them.

    Remedy: serve it with the plugin, which puts them in where the config says that the layer is
    Qwen3's.
    """
    if not case.draft.flags.qk_norm:
        return OK
    unbuilt = _unbuilt(case, r"\.self_attn\.[qk]_norm\.")
    return wrong(
        "its layer norms q and k, as Qwen3's does, and SGLang's draft class does not",
        'write "qk_norm": true into its config.json'
        if unbuilt
        else mended_by(case, "draft-forward", _RETRAIN),
        stock="degraded",
        plugin="refuses" if unbuilt else "serves",
        unbuilt=unbuilt,
    )


@rule("E3-flags-attention-bias", "error")
def attention_bias(case: Case) -> Answer:
    """Queries, keys and values were trained with a bias.

    Cause: SGLang's draft class builds q, k and v without one, whatever the config says.

    Remedy: serve it with the plugin, which puts it in where the config says `attention_bias`.
    """
    asked = case.is_llama_config and case.asked("attention_bias")
    if not (asked or case.draft.flags.qkv_bias):
        return OK
    unbuilt = _unbuilt(case, r"\.(q|k|v|o)_proj\.bias$")
    return wrong(
        "q, k and v have a bias, and SGLang's draft class builds them without",
        'write "attention_bias": true into its config.json'
        if unbuilt
        else mended_by(case, "draft-forward", _RETRAIN),
        stock="degraded",
        plugin="refuses" if unbuilt else "serves",
        unbuilt=unbuilt,
    )


@rule("E3-flags-mlp-bias", "error")
def mlp_bias(case: Case) -> Answer:
    """The MLP was trained with a bias.

    Cause: SGLang's draft class builds its MLP without one, and nothing puts it in.

    Remedy: none: serve a draft that was trained without it.
    """
    asked = case.is_llama_config and case.asked("mlp_bias")
    if not (asked or case.draft.flags.mlp_bias):
        return OK
    return wrong(
        "the MLP has a bias, which SGLang's draft class does not build",
        "serve a draft that was trained without it",
        stock="degraded",
        plugin="refuses",
    )


@rule("E3-flags-fc-bias", "error")
def fc_bias(case: Case) -> Answer:
    """`fc` has a bias, and the config does not say so.

    Cause: SGLang builds `fc` with a bias only if the config says `bias: true`, and then the
    attention's output too. Else the tensor is dropped.

    Remedy: write `bias: true`, and add `o_proj.bias` of zeros to the checkpoint.
    """
    unbuilt = _unbuilt(case, r"^fc\.bias$")
    if not unbuilt:
        return OK
    return wrong(
        "fc has a bias, and the config does not say bias: it is dropped",
        'write "bias": true into its config.json, and add o_proj.bias of zeros',
        stock="degraded",
        plugin="refuses",
        unbuilt=unbuilt,
    )


@rule("E3-flags-eagle-config", "error")
def eagle_config(case: Case) -> Answer:
    """The config asks for a variant that SGLang does not compute.

    Cause: ModelOpt's and TensorRT-LLM's flags of other draft architectures, parallel drafting among
    them. SGLang reads none of them.

    Remedy: none: serve a draft that was trained without the variant.
    """
    told = never_computed(case.draft.config)
    found = [t for t in told if t.partition(": ")[0] in ONLY_VALUES.keys() - {_LAST_NORM}]
    if not found:
        return OK
    return wrong(
        f"the config says {listed(found)}, which SGLang does not compute",
        "serve a draft that was trained without it",
        stock="degraded",
        plugin="refuses",
        flags=found,
    )


@rule("E3-flags-states-unused", "error")
def states_unused(case: Case) -> Answer:
    """The config says that no aux states are used, and the file has an `fc` over several.

    Cause: `eagle_config.use_aux_hidden_state: false`. SGLang captures nothing then and skips `fc`.

    Remedy: write true; the plugin does so in memory.
    """
    nested = case.draft.config.get("eagle_config")
    if not isinstance(nested, Mapping) or nested.get("use_aux_hidden_state", True):
        return OK
    if (case.draft.num_aux or 0) < 2:
        return OK
    return wrong(
        f"use_aux_hidden_state is false, and fc takes {case.draft.num_aux} aux states: it is "
        "skipped, accept length will be about 1",
        mended_by(case, "aux-capture", "write use_aux_hidden_state: true into its eagle_config"),
        stock="degraded",
        plugin="serves",
        num_aux=case.draft.num_aux,
    )
