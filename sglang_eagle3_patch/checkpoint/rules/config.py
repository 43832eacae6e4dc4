"""Rules about how the config is written, and which draft class it leads to."""

from __future__ import annotations

from collections.abc import Mapping

from sglang_eagle3_patch.checkpoint.config import (
    EAGLE3_ARCHITECTURES,
    ConfigNotUnderstood,
    from_speculators,
    is_speculators,
)
from sglang_eagle3_patch.checkpoint.config_keys import never_computed
from sglang_eagle3_patch.checkpoint.producers import UNKNOWN
from sglang_eagle3_patch.checkpoint.rules.answers import (
    OK,
    Answer,
    listed,
    mended_by,
    rule,
    unknown,
    wrong,
)
from sglang_eagle3_patch.checkpoint.rules.case import MLA_ARCHITECTURE, Case

_CONVERT = "rewrite the checkpoint in SGLang's form: sglang-eagle3 convert"


@rule("E3-config-speculators", "error")
def speculators_form(case: Case) -> Answer:
    """The config is in the form of the speculators library.

    Cause: speculators nests the decoder layer's config and names no top-level `model_type`; no
    SGLang release reads that, transformers raises over it.

    Remedy: serve it with the plugin, which translates the config in memory, or convert it.
    """
    if not is_speculators(case.draft.config):
        return OK
    return wrong(
        "the config is in speculators' form, which SGLang does not read",
        mended_by(case, "draft-config", _CONVERT),
        stock="refuses",
        plugin="serves",
        version=case.draft.config.get("speculators_version"),
    )


@rule("E3-config-not-eagle3", "error")
def another_algorithm(case: Case) -> Answer:
    """A speculators draft of another algorithm than EAGLE-3.

    Cause: speculators also trains P-EAGLE, DFlash, MTP and other drafts; the config says which.
    None of them is computed by SGLang's EAGLE-3 draft classes.

    Remedy: give an EAGLE-3 draft, or serve this one with the algorithm it was trained for.
    """
    kind = case.draft.config.get("speculators_model_type")
    if not is_speculators(case.draft.config) or kind == "eagle3":
        return OK
    return wrong(
        f"speculators_model_type is {kind!r}: no EAGLE-3 draft",
        "give a draft that was trained as eagle3",
        stock="refuses",
        plugin="refuses",
        speculators_model_type=kind,
    )


@rule("E3-config-layer-kind", "error")
def layer_kind(case: Case) -> Answer:
    """A speculators config whose decoder layer can't be translated.

    Cause: SGLang's draft class is a llama layer, with Qwen3's norms of q and k if the plugin puts
    them in. Layers of other families compute something else.

    Remedy: train or convert the draft with a llama layer.
    """
    config = case.draft.config
    if not is_speculators(config) or config["speculators_model_type"] != "eagle3":
        return OK
    layer = config["transformer_layer_config"]
    if isinstance(layer, Mapping) and layer.get("model_type") == "qwen3":
        layer = {**layer, "model_type": "llama"}
    try:
        from_speculators({**config, "transformer_layer_config": layer})
    except ConfigNotUnderstood as problem:
        return wrong(str(problem), "train it with a llama layer", stock="refuses", plugin="refuses")
    return OK


@rule("E3-config-architecture", "error")
def architecture(case: Case) -> Answer:
    """The config names no EAGLE-3 draft class of this release.

    Cause: SGLang goes by `architectures`. Trainers write names of their own (`LlamaForCausalLM`,
    `Eagle3LlamaForCausalLM`, `LlamaEagle3DraftModel`), and the class with latent attention
    (`Eagle3DeepseekV2ForCausalLM`) came with 0.5.12. Where the installed SGLang may have a class of
    that name, a fork's or a plugin's, it can't be told what comes of it.

    Remedy: name the class that computes the draft, LlamaForCausalLMEagle3 for plain attention; a
    draft with latent attention wants 0.5.12 or newer.
    """
    if is_speculators(case.draft.config) or case.architecture:
        return OK
    stated = case.draft.config.get("architectures") or []
    own = [name for name in stated if name in case.perhaps_known]
    if own:
        return unknown(
            f"{own[0]} is no draft class that is known of {case.release}, and the installed SGLang "
            "may have it",
            "start the server, and look whether drafts are accepted: the plugin mends "
            f"{' and '.join(sorted(case.engine.drafts))} alone",
            architectures=stated,
            known=sorted(case.engine.drafts),
        )
    named_mla = isinstance(stated, list) and MLA_ARCHITECTURE in stated
    mla = named_mla or case.draft.attention == "mla"
    if mla and MLA_ARCHITECTURE not in case.engine.drafts:
        remedy = "serve it with SGLang 0.5.12 or newer"
    else:
        wanted = MLA_ARCHITECTURE if mla else EAGLE3_ARCHITECTURES[0]
        remedy = f'write "architectures": ["{wanted}"] into its config.json'
        if case.draft.producer is not UNKNOWN:
            # Under another architecture nothing would tell any more who trained it, and how.
            remedy = _CONVERT
    return wrong(
        f"architectures is {stated}, none of them an EAGLE-3 draft class of {case.release}",
        remedy,
        stock="refuses",
        plugin="refuses",
        architectures=stated,
        known=sorted(case.engine.drafts),
    )


@rule("E3-config-attention", "error")
def attention(case: Case) -> Answer:
    """The draft class has another kind of attention than the tensors.

    Cause: a draft with latent attention (MLA) under the llama class, or the other way round: every
    attention tensor is dropped by name.

    Remedy: name the class of the tensors' kind in `architectures`.
    """
    if case.attention_fits:
        return OK
    wanted = MLA_ARCHITECTURE if case.draft.attention == "mla" else EAGLE3_ARCHITECTURES[0]
    return wrong(
        f"{case.architecture} over tensors of {case.draft.attention} attention: all of its "
        "attention is dropped",
        f'write "architectures": ["{wanted}"] into its config.json',
        stock="degraded",
        plugin="refuses",
        architecture=case.architecture,
        attention=case.draft.attention,
    )


@rule("E3-config-query-rank", "error")
def query_rank(case: Case) -> Answer:
    """A draft with latent attention whose query has full rank.

    Cause: SGLang's class for drafts with latent attention wants `q_lora_rank` and raises without.

    Remedy: none: train the draft with a low-rank query.
    """
    if not case.is_mla_class or (case.plugin_config or {}).get("q_lora_rank"):
        return OK
    return wrong(
        "the config states no q_lora_rank, without which SGLang builds no MLA draft",
        "train the draft with a low-rank query",
        stock="refuses",
        plugin="refuses",
    )


@rule("E3-config-model-type", "error")
def model_type(case: Case) -> Answer:
    """The config has no `model_type`.

    Cause: transformers finds the config's class by it and raises without; version 4 may take a
    word in the folder's path for it instead.

    Remedy: write the model type of the layer, llama for plain drafts.
    """
    if is_speculators(case.draft.config) or case.draft.config.get("model_type"):
        return OK
    return wrong(
        "the config states no model_type",
        'write "model_type": "llama" into its config.json',
        stock="refuses",
        plugin="refuses",
    )


@rule("E3-config-activation", "error")
def activation(case: Case) -> Answer:
    """The MLP's activation is not silu.

    Cause: SGLang's draft classes know silu alone and raise over any other, which drafts for Gemma
    targets may have.

    Remedy: none: train the draft with silu.
    """
    name = case.draft.activation
    if name in (None, "silu"):
        return OK
    return wrong(
        f"hidden_act is {name!r}, and SGLang's draft classes compute silu alone",
        "train the draft with silu",
        stock="refuses",
        plugin="refuses",
        hidden_act=name,
    )


@rule("E3-config-target-width-null", "error")
def target_width_null(case: Case) -> Answer:
    """`target_hidden_size` is null.

    Cause: speculators always writes the key. SGLang's llama draft class takes its mere presence
    for a width and multiplies null.

    Remedy: drop the key; the plugin does so in memory.
    """
    config = case.stock_config or {}
    if config.get("target_hidden_size", "") is not None or case.is_mla_class:
        return OK
    return wrong(
        "target_hidden_size is null, which SGLang multiplies",
        mended_by(case, "embed-head", "drop target_hidden_size from its config.json"),
        stock="refuses",
        plugin="serves",
    )


@rule("E3-config-unknown-keys", "error")
def unknown_keys(case: Case) -> Answer:
    """The config has keys that nobody knows.

    Cause: a new trainer, or a key of another architecture. SGLang passes over what it does not
    know, though the draft may have been trained by it.

    Remedy: ask the draft's trainer what the keys mean; drop those that mean nothing to the draft.
    """
    keys = [key for key in case.draft.unknown_keys if _says_something(case, key)]
    if not keys:
        return OK
    return wrong(
        f"the config has keys that nobody knows: {listed(keys)}",
        "drop them from its config.json if they mean nothing to the draft",
        stock="unknown",
        plugin="refuses",
        keys=keys,
    )


def _says_something(case: Case, key: str) -> bool:
    """Whether the plugin refuses an unknown key: null, false and the like say nothing."""
    return any(told.startswith(f"{key}: ") for told in never_computed(case.draft.config))
