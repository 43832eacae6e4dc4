"""Keys of draft configs that somebody knows; any other may change what the draft computes.

Some known keys switch a function that no SGLang release computes: of those only one value will do.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

# Bookkeeping: whatever they hold, the draft computes the same.
_HARMLESS = """
_attn_implementation _attn_implementation_autoset _commit_hash _name_or_path attention_dropout
attn_implementation auto_map base_model_ep_plan base_model_pp_plan base_model_tp_plan bos_token_id
chunk_size_feed_forward dtype embd_pdrop eos_token_id experts_implementation
has_no_defaults_at_init id2label initializer_range keys_to_ignore_at_inference label2id license
max_position_embeddings modelopt_state name output_attentions output_hidden_states pad_token_id
pretraining_tp problem_type resid_pdrop return_dict speculators_config tie_encoder_decoder
torch_dtype transformers_version use_bfloat16 use_cache use_return_dict add_cross_attention
bad_words_ids begin_suppress_tokens cross_attention_hidden_size decoder_start_token_id
diversity_penalty do_sample early_stopping encoder_no_repeat_ngram_size
exponential_decay_length_penalty finetuning_task forced_bos_token_id forced_eos_token_id
is_decoder is_encoder_decoder length_penalty max_length min_length no_repeat_ngram_size
num_beam_groups num_beams num_return_sequences output_scores prefix pruned_heads
remove_invalid_values repetition_penalty return_dict_in_generate sep_token_id suppress_tokens
task_specific_params temperature tf_legacy_loss tie_encoder_decoder tokenizer_class top_k top_p
torchscript typical_p image_token_id video_token_id vision_end_token_id vision_start_token_id
"""
# Of the decoder layer: llama and its kin, qwen3's, deepseek_v3's (kimi_k2's).
_LAYER = """
attention_bias bias head_dim hidden_act hidden_size intermediate_size intermediate_size_mlp
layer_types max_window_layers mlp_bias model_type num_attention_heads num_hidden_layers
num_key_value_heads partial_rotary_factor qk_norm rms_norm_eps rope_interleave rope_parameters
rope_scaling rope_theta sliding_window tie_word_embeddings use_sliding_window vocab_size
aux_loss_alpha ep_size first_k_dense_replace kv_lora_rank moe_intermediate_size moe_layer_freq
n_group n_routed_experts n_shared_experts norm_topk_prob num_experts_per_tok
num_nextn_predict_layers original_max_position_embeddings attention_chunk_size attn_scale
attn_temperature_tuning experts_per_token floor_scale interleave_moe_layer_step moe_layers
no_rope_layer_interval no_rope_layers
num_local_experts output_router_logits router_aux_loss_coef router_jitter_noise swiglu_limit
use_qk_norm q_lora_rank qk_head_dim qk_nope_head_dim qk_rope_head_dim routed_scaling_factor
scoring_func seq_aux topk_group topk_method v_head_dim
"""
# Of the draft as a whole, by whoever writes them.
_DRAFT = """
architectures draft_vocab_size eagle_aux_hidden_state_layer_ids eagle_config embed_requires_grad
fc_norm modal_type norm_before_fc norm_before_residual norm_output num_aux_hidden_states
parallel_drafting quantization_config reuse_target_lm_head speculators_model_type
speculators_version target_hidden_size target_model_type transformer_layer_config use_aux_norm
_torchspec_version
"""
_EAGLE_CONFIG = """
eagle_aux_hidden_state_layer_ids eh_proj_before_attn fc_norm layer_ids next_layer_regular
norm_before_fc norm_before_residual norm_output parallel_draft_heads_num_layers
parallel_draft_step return_hidden_post_norm use_aux_hidden_state use_aux_norm
use_input_layernorm_in_first_layer use_last_layernorm use_mtp_layernorm
"""
_ROPE = """
apply_yarn_scaling attention_factor attn_factor beta_fast beta_slow extrapolation_factor factor
high_freq_factor long_factor low_freq_factor mrope_interleaved mrope_section mscale mscale_all_dim
original_max_position_embeddings partial_rotary_factor rope_theta rope_type short_factor truncate
type
"""

# Of these, what the draft is built of: its tensors fit one value of each.
_STRUCTURE = """
fc_norm kv_lora_rank model_type norm_before_fc num_aux_hidden_states num_hidden_layers q_lora_rank
qk_nope_head_dim qk_rope_head_dim quantization_config target_hidden_size tie_word_embeddings
use_aux_norm v_head_dim vocab_size
"""
# And that over whose other value a loader is known to fail, since parameters get other shapes.
_SHAPES = """
architectures draft_vocab_size head_dim hidden_size intermediate_size num_attention_heads
num_key_value_heads
"""
# And those by which the same tensors compute something else.
_COMPUTATION = """
attention_bias bias eagle_aux_hidden_state_layer_ids eagle_config final_logit_softcapping hidden_act
layer_types mlp_bias norm_before_residual norm_output partial_rotary_factor rms_norm_eps
rope_interleave rope_parameters rope_scaling rope_theta sliding_window use_sliding_window
"""
SHAPES, COMPUTATION = frozenset(_SHAPES.split()), frozenset(_COMPUTATION.split())
STRUCTURE = SHAPES.union(_STRUCTURE.split())

_TOP = frozenset((_HARMLESS + _LAYER + _DRAFT).split())
_NESTED = {
    "transformer_layer_config": frozenset((_HARMLESS + _LAYER).split()),
    "eagle_config": frozenset(_EAGLE_CONFIG.split()),
    "rope_parameters": frozenset(_ROPE.split()),
    "rope_scaling": frozenset(_ROPE.split()),
}


# The values that mean EAGLE-3's own layer, by dotted key; SGLang reads none of these keys.
ONLY_VALUES: Mapping[str, Any] = {
    "parallel_drafting": False,
    "eagle_config.eh_proj_before_attn": False,
    "eagle_config.next_layer_regular": True,
    "eagle_config.parallel_draft_step": 1,
    "eagle_config.use_input_layernorm_in_first_layer": True,
    "eagle_config.use_last_layernorm": True,
    "eagle_config.use_mtp_layernorm": False,
}


# A name that begins with `_` is nobody's setting.
_STRUCTURAL = re.compile(
    r"^(?!_).*"
    r"(norm|residual|scal|multipl|softcap|clip|bias|proj|rope|rotary|alibi|attn|attention|window"
    r"|activation|gate|mlp|fc|layer|embed|parallel|draft|moe)"
)
# A switch for what EAGLE-3's layer has: `use_residual: false` turns it off.
_SWITCH = re.compile(
    r"^(?:use|apply|enable|has|with)_(?:(?:self|causal|final|last|rms)_?)?(?:attention|attn|fc|mlp"
    r"|norm|layernorm|residuals?|residual_connections?|rope|rotary|rotary_emb)$"
)
# A number that leaves alone what it multiplies.
_FACTOR = re.compile(r"scal|multipl")


def never_computed(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what a raw config asks for and no SGLang release computes, as `key: value`.

    That is a known key with another value than the only one that will do, and a key that nobody
    knows, whose name speaks of the layer's structure and whose value says something: of those that
    are off, as most extras are, one that switches what the layer has. No table of bookkeeping keys
    is ever whole, so that the others pass: weights are accounted for anyway.
    """
    found = []
    for dotted, only in ONLY_VALUES.items():
        value = _value(config, dotted)
        if value is not None and value != only:
            found.append(f"{dotted}: {value!r}")
    for dotted in unknown_keys(config):
        value, name = _value(config, dotted), dotted.rpartition(".")[2]
        turned_off = value is False and _SWITCH.search(name)
        neutral = type(value) in (int, float) and value == 1 and _FACTOR.search(name)
        if turned_off or (value and not neutral and _STRUCTURAL.search(name)):
            found.append(f"{dotted}: {value!r}")
    return tuple(found)


def _value(config: Mapping[str, Any], dotted: str) -> Any:
    place: Any = config
    for key in dotted.split("."):
        place = place.get(key) if isinstance(place, Mapping) else None
    return place


def unknown_keys(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the keys nobody knows, as dotted paths, sorted; one that holds null says nothing."""
    return tuple(sorted(_unknown(config, _TOP, "")))


def _unknown(config: Mapping[str, Any], known: Iterable[str], path: str) -> Iterator[str]:
    for key, value in config.items():
        if key not in known and value is not None:
            yield path + key
        elif key in _NESTED and isinstance(value, Mapping):
            yield from _unknown(value, _NESTED[key], f"{path}{key}.")
