"""For each rule one case that breaks just it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sglang_eagle3_patch.checkpoint.header import TensorHeader
from sglang_eagle3_patch.checkpoint.launch import LONGER_CONTEXT
from sglang_eagle3_patch.checkpoint.rules.small_values import SmallValues
from sglang_eagle3_patch.checkpoint.target import TargetSpec
from sglang_eagle3_patch.checkpoint.trained_rope import EXPORTED_YARN
from tests.unit.checkpoint import drafts
from tests.unit.doctor.cases import (
    LAUNCH,
    NORMS,
    OLDEST,
    TARGET,
    TOKENS,
    VALUES,
    Row,
    case,
    config,
    floats,
    row,
    tensors,
)

H, VOCAB, DRAFT_VOCAB = drafts.HIDDEN, drafts.VOCAB, drafts.DRAFT_VOCAB
CONVERTED_ONES = {"layers.0.hidden_norm.weight": (1.0,) * H}
# What every draft on the oldest release meets.
_OLD = "E3-engine-positions"


def eagle(**fields: Any) -> drafts.Config:
    return config(eagle_config=fields)


def speculators(version: str = "0.9.0", **changes: Any) -> drafts.Config:
    stated: dict[str, Any] = {"norm_before_residual": False, **drafts.IDS, **changes}
    return drafts.speculators(drafts.TRAINER, version, **stated)


def speculators_layer(**fields: Any) -> drafts.Config:
    written = speculators()
    nested = {**written["transformer_layer_config"], **fields}
    return {**written, "transformer_layer_config": nested}


def written() -> drafts.Headers:
    """As speculators writes them."""
    return drafts.top() | drafts.layer("layers.0.")


def target(**changes: Any) -> TargetSpec:
    return TargetSpec("org/target", {**TARGET.config, **changes})


def without_vocabulary(**changes: Any) -> drafts.Config:
    """A healthy config without `draft_vocab_size`, which a change to None can't say."""
    return {**config(**changes), "draft_vocab_size": None}


FULL_HEAD = {"lm_head.weight": floats(VOCAB, H), "d2t": None, "t2d": None}
TWO_LAYERS = drafts.layer("layers.0.") | drafts.layer(
    "layers.1.", first=False, norm="input_layernorm"
)

BROKEN: dict[str, Row] = {
    "E3-config-speculators": row("refuses", "serves", speculators(), written()),
    "E3-config-not-eagle3": row(
        "refuses",
        "refuses",
        speculators(speculators_model_type="peagle"),
        written(),
        besides="E3-config-speculators",
    ),
    "E3-config-layer-kind": row(
        "refuses",
        "refuses",
        speculators_layer(model_type="gpt_oss"),
        written(),
        besides="E3-config-speculators",
    ),
    "E3-config-architecture": row(
        "refuses", "refuses", drafts.flat("Eagle3LlamaForCausalLM", modal_type="LLM")
    ),
    "E3-config-attention": row(
        "degraded", "refuses", config(), drafts.top() | drafts.layer("midlayer.", mla=True)
    ),
    "E3-config-query-rank": row(
        "refuses",
        "refuses",
        drafts.mla(q_lora_rank=None, rope_theta=None),
        drafts.top("embed_tokens.weight") | drafts.layer("midlayer.", mla=True),
    ),
    "E3-config-model-type": row("refuses", "refuses", config(model_type=None)),
    "E3-config-activation": row("refuses", "refuses", config(hidden_act="gelu")),
    "E3-config-target-width-null": row(
        "refuses", "serves", {**config(), "target_hidden_size": None}
    ),
    "E3-config-unknown-keys": row("unknown", "refuses", config(mystery_scale=0.5)),
    "E3-files-weights": row(
        "refuses", "refuses", config(norm_before_residual=False), {}, files=("config.json",)
    ),
    "E3-files-dtypes": row(
        "degraded",
        "degraded",
        config(),
        tensors(**{"midlayer.mlp.up_proj.weight": TensorHeader("F8_E4M3", (96, H))}),
    ),
    "E3-files-quantised": row(
        "serves", "serves", config(quantization_config={"quant_method": "fp8"}), status="unknown"
    ),
    "E3-files-not-finite": row(
        "degraded",
        "degraded",
        values=replace(VALUES, vectors={**NORMS, "norm.weight": (float("nan"), 1.0)}),
    ),
    "E3-files-untrained": row(
        "degraded",
        "degraded",
        drafts.speculators(drafts.CONVERTER, "0.3.0", norm_before_residual=False, **drafts.IDS),
        written(),
        values=replace(VALUES, vectors=CONVERTED_ONES),
        besides="E3-config-speculators",
    ),
    "E3-files-values-unread": row("serves", "serves", values=None, status="unknown"),
    "E3-names-clash": row(
        "degraded",
        "refuses",
        config(),
        tensors(**{"layers.0.hidden_norm.weight": floats(H)}),
    ),
    "E3-names-dropped": row(
        "degraded",
        "serves",
        config(norm_before_residual=False),
        drafts.top() | drafts.layer("layers.0."),
        release=OLDEST,
        besides=_OLD,
    ),
    "E3-names-missing": row(
        "degraded", "refuses", config(), tensors(**{"midlayer.self_attn.k_proj.weight": None})
    ),
    "E3-names-unused": row(
        "degraded", "refuses", config(), tensors(**{"midlayer.gate.weight": floats(4)})
    ),
    "E3-names-foreign": row(
        "degraded", "refuses", config(), tensors(mask_hidden=floats(1, 1, 3 * H))
    ),
    "E3-names-later-norm": row(
        "degraded",
        "serves",
        config(num_hidden_layers=2, norm_before_residual=False),
        drafts.top("embed_tokens.weight") | TWO_LAYERS,
    ),
    "E3-names-layer-count": row("degraded", "refuses", config(num_hidden_layers=3)),
    "E3-names-several-layers": row(
        "refuses",
        "refuses",
        config(num_hidden_layers=2, norm_before_residual=False),
        drafts.top("embed_tokens.weight")
        | drafts.layer("midlayer.0.")
        | drafts.layer("midlayer.1.", first=False, norm="hidden_norm"),
        release=OLDEST,
        besides=f"{_OLD} E3-names-dropped",
    ),
    "E3-shapes-config": row("degraded", "refuses", config(intermediate_size=80)),
    "E3-shapes-fc": row("refuses", "refuses", config(num_aux_hidden_states=4)),
    "E3-shapes-fc-skipped": row(
        "degraded",
        "refuses",
        config(
            num_aux_hidden_states=1,
            eagle_config={"eagle_aux_hidden_state_layer_ids": [3]},
        ),
        tensors(**{"fc.weight": floats(H, H)}),
    ),
    "E3-shapes-eagle1": row(
        "refuses",
        "refuses",
        config(),
        tensors(
            **{
                f"midlayer.self_attn.{p}_proj.weight": floats(r, H)
                for p, r in (("q", 64), ("k", 32), ("v", 32))
            }
        ),
        besides="E3-shapes-config",
    ),
    "E3-shapes-target-width": row("refuses", "refuses", target=target(hidden_size=2 * H)),
    "E3-vocab-size-unstated": row("refuses", "serves", config(draft_vocab_size=None)),
    "E3-vocab-head-overwritten": row(
        "degraded",
        "serves",
        without_vocabulary(),
        tensors(**FULL_HEAD),
        values=SmallValues(vectors=NORMS),
    ),
    "E3-vocab-head-missing": row(
        "degraded",
        "serves",
        config(draft_vocab_size=VOCAB),
        tensors(**{**FULL_HEAD, "lm_head.weight": None}),
        values=SmallValues(vectors=NORMS),
    ),
    "E3-vocab-head-rows": row(
        "refuses", "refuses", config(), tensors(**{"lm_head.weight": floats(100, H)})
    ),
    "E3-vocab-tied": row("degraded", "serves", config(tie_word_embeddings=True)),
    "E3-vocab-larger": row(
        "degraded",
        "degraded",
        config(draft_vocab_size=VOCAB + 64),
        tensors(**{"lm_head.weight": floats(VOCAB + 64, H), "d2t": None, "t2d": None}),
        values=SmallValues(vectors=NORMS),
    ),
    "E3-vocab-map-missing": row(
        "degraded",
        "refuses",
        config(),
        tensors(d2t=None),
        values=SmallValues(vectors=NORMS),
    ),
    "E3-vocab-map-shape": row(
        "serves", "refuses", config(), tensors(d2t=TensorHeader("F32", (DRAFT_VOCAB,)))
    ),
    "E3-vocab-map-absolute": row(
        "degraded",
        "serves",
        values=replace(VALUES, d2t=TOKENS),
    ),
    "E3-vocab-map-values": row(
        "degraded", "refuses", values=SmallValues((0,) * DRAFT_VOCAB, None, NORMS)
    ),
    "E3-vocab-marks": row(
        "serves", "serves", config(), tensors(t2d=TensorHeader("BOOL", (VOCAB + 1,)))
    ),
    "E3-vocab-embedding-rows": row(
        "refuses", "refuses", config(), tensors(**{"embed_tokens.weight": floats(VOCAB + 8, H)})
    ),
    "E3-vocab-embedding-missing": row(
        "degraded",
        "refuses",
        config(target_hidden_size=2 * H),
        tensors(**{"fc.weight": floats(H, 6 * H)}),
        target=target(hidden_size=2 * H),
    ),
    "E3-vocab-embedding-overwritten": row(
        "degraded",
        "serves",
        config(embed_requires_grad=True),
        tensors(**{"embed_tokens.weight": floats(VOCAB, H)}),
    ),
    "E3-vocab-target": row(
        "unknown", "unknown", target=target(vocab_size=VOCAB + 64), status="unknown"
    ),
    "E3-flags-norm-before-residual": row("degraded", "serves", config(norm_before_residual=True)),
    "E3-flags-residual-unstated": row(
        "serves",
        "serves",
        config(),
        drafts.top() | drafts.layer("layers.0."),
        status="unknown",
    ),
    "E3-flags-norm-before-fc": row(
        "degraded",
        "serves",
        config(norm_before_fc=True),
        tensors(**{"input_norm.weight": floats(3 * H)}),
        release="0.5.16",
    ),
    "E3-flags-fc-norm": row(
        "degraded",
        "serves",
        config(fc_norm=True),
        tensors(**drafts.fc_norms("fc_norm.0", "fc_norm.1", "fc_norm.2")),
        release=OLDEST,
        besides=_OLD,
    ),
    "E3-flags-norm-output": row(
        "degraded",
        "serves",
        eagle(return_hidden_post_norm=True),
        drafts.top("embed_tokens.weight", "t2d") | drafts.layer("midlayer."),
    ),
    "E3-flags-norm-output-meaning": row("unknown", "refuses", config(norm_output=True)),
    "E3-flags-no-last-norm": row("degraded", "refuses", eagle(use_last_layernorm=False)),
    "E3-flags-double-norm": row(
        "degraded",
        "serves",
        config(eagle_config={**drafts.MODELOPT, "eagle_aux_hidden_state_layer_ids": [1, 3, 4]}),
        drafts.top("embed_tokens.weight", "t2d") | drafts.layer("layers.0."),
    ),
    "E3-flags-tensors": row(
        "degraded", "refuses", config(), tensors(**{"input_norm.weight": floats(3 * H)})
    ),
    "E3-flags-head-norms": row(
        "degraded",
        "serves",
        speculators_layer(model_type="qwen3"),
        written() | drafts.floats(**{f"layers.0.self_attn.{p}_norm.weight": (16,) for p in "qk"}),
        besides="E3-config-speculators",
    ),
    "E3-flags-attention-bias": row(
        "degraded",
        "refuses",
        config(),
        tensors(**{"midlayer.self_attn.q_proj.bias": floats(64)}),
    ),
    "E3-flags-mlp-bias": row(
        "degraded",
        "refuses",
        config(mlp_bias=True),
        tensors(**{"midlayer.mlp.down_proj.bias": floats(H)}),
    ),
    "E3-flags-fc-bias": row("degraded", "refuses", config(), tensors(**{"fc.bias": floats(H)})),
    "E3-flags-eagle-config": row("degraded", "refuses", eagle(eh_proj_before_attn=True)),
    "E3-flags-states-unused": row("degraded", "serves", eagle(use_aux_hidden_state=False)),
    "E3-layers-unreadable": row(
        "refuses", "refuses", eagle(eagle_aux_hidden_state_layer_ids="1,3,4")
    ),
    "E3-layers-place": row(
        "degraded",
        "serves",
        config(eagle_aux_hidden_state_layer_ids=[2, 3, 5], modal_type="LLM"),
    ),
    "E3-layers-captured": row(
        "degraded",
        "serves",
        # As SafeAILab writes them: inputs, under the architecture that SGLang knows.
        eagle(eagle_aux_hidden_state_layer_ids=[2, 4, 5]),
        drafts.top("embed_tokens.weight", "t2d") | drafts.layer("midlayer."),
    ),
    "E3-layers-number": row(
        "refuses",
        "refuses",
        config(
            num_aux_hidden_states=3,
            eagle_config={"eagle_aux_hidden_state_layer_ids": [1, 3]},
        ),
    ),
    "E3-layers-order": row("refuses", "refuses", eagle(eagle_aux_hidden_state_layer_ids=[1, 3, 3])),
    "E3-layers-range": row(
        "refuses", "refuses", eagle(eagle_aux_hidden_state_layer_ids=[1, 3, 40])
    ),
    "E3-layers-last": row(
        "unknown",
        "unknown",
        eagle(eagle_aux_hidden_state_layer_ids=[2, 4, 7]),
        drafts.top("embed_tokens.weight") | drafts.layer("midlayer."),
        launch=(*LAUNCH, "--eagle3-aux-layers", "3:5:8"),
        status="unknown",
    ),
    "E3-layers-graphs": row(
        "degraded",
        "serves",
        eagle(eagle_aux_hidden_state_layer_ids=[1, 2, 4]),
        release="0.5.10",
        besides=_OLD,
    ),
    "E3-rope-newer-schema": row(
        "degraded",
        "serves",
        config(rope_parameters={"rope_theta": 10000.0, "rope_type": "linear", "factor": 2.0}),
        release=OLDEST,
        besides=_OLD,
    ),
    "E3-rope-conflict": row(
        "unknown",
        "refuses",
        config(rope_theta=5e5, rope_parameters={"rope_theta": 10000.0, "rope_type": "default"}),
    ),
    "E3-rope-partial": row(
        "degraded",
        "serves",
        config(
            rope_parameters={
                "rope_theta": 10000.0,
                "rope_type": "default",
                "partial_rotary_factor": 0.25,
            }
        ),
    ),
    "E3-rope-amplitude": row(
        "degraded",
        "serves",
        config(
            rope_scaling={
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 128,
                "attention_factor": 1.0,
            }
        ),
    ),
    "E3-rope-untrained": row("degraded", "serves", config(rope_theta=1e6, modal_type="LLM")),
    "E3-rope-dynamic": row(
        "degraded", "refuses", config(rope_scaling={"rope_type": "dynamic", "factor": 4.0})
    ),
    "E3-rope-exported": row(
        "degraded",
        "serves",
        config(
            rope_scaling=EXPORTED_YARN,
            eagle_config={**drafts.MODELOPT, "eagle_aux_hidden_state_layer_ids": [1, 3, 4]},
        ),
        drafts.top("embed_tokens.weight", "t2d") | drafts.layer("layers.0."),
        besides="E3-flags-double-norm",
    ),
    "E3-rope-maybe-untrained": row("serves", "serves", config(rope_theta=1e6), status="unknown"),
    "E3-rope-mrope": row(
        "serves",
        "serves",
        config(rope_scaling={"rope_type": "default", "mrope_section": [2, 3, 3]}),
        status="unknown",
    ),
    "E3-window-unserved": row(
        "degraded",
        "refuses",
        config(layer_types=["sliding_attention"], sliding_window=256),
    ),
    "E3-window-layer-types": row("refuses", "refuses", config(layer_types=["full_attention"] * 3)),
    "E3-window-untrained": row(
        "degraded", "degraded", launch=(*LAUNCH, "--speculative-draft-window-size", "255")
    ),
    "E3-context-short": row("refuses", "refuses", target=target(max_position_embeddings=4096)),
    "E3-context-untrained": row(
        "degraded",
        "degraded",
        target=target(max_position_embeddings=4096),
        environment={LONGER_CONTEXT: "1"},
    ),
    "E3-target-class": row(
        "unknown", "unknown", target=target(architectures=["TheirOwn"]), status="unknown"
    ),
    "E3-target-capture": row(
        "refuses", "refuses", target=target(architectures=["Ernie4_5_ForCausalLM"])
    ),
    "E3-target-embedding": row(
        "refuses", "refuses", target=target(architectures=["Qwen2MoeForCausalLM"])
    ),
    "E3-target-recorded": row(
        "unknown",
        "unknown",
        config(speculators_config={"verifier": {"architectures": ["Qwen3ForCausalLM"]}}),
    ),
    "E3-target-name": row(
        "serves",
        "serves",
        config(speculators_config={"verifier": {"name_or_path": "org/other"}}),
        status="unknown",
    ),
    "E3-launch-algorithm": row("degraded", "serves", launch=("--speculative-algorithm", "NEXTN")),
    "E3-launch-no-speculation": row("unknown", "unknown", launch=("--tp-size", "2")),
    "E3-launch-flags": row("refuses", "refuses", launch=(*LAUNCH, "--speculative-magic", "1")),
    "E3-launch-quantization": row("degraded", "serves", launch=(*LAUNCH, "--quantization=fp8")),
    "E3-launch-structure": row(
        "degraded",
        "refuses",
        launch=(*LAUNCH, "--json-model-override-args", '{"num_hidden_layers": 4}'),
    ),
    "E3-launch-computation": row(
        "degraded",
        "serves",
        launch=(*LAUNCH, "--json-model-override-args", '{"rms_norm_eps": 0.1}'),
    ),
    "E3-launch-load-format": row(
        "unknown", "refuses", launch=(*LAUNCH, "--load-format", "sharded_state")
    ),
    "E3-launch-pipeline": row("refuses", "refuses", launch=(*LAUNCH, "--pp-size", "2")),
    "E3-launch-backend": row("serves", "serves", target=target(kv_lora_rank=24), status="unknown"),
    "E3-engine-positions": row("degraded", "serves", release="0.5.11"),
    "E3-engine-release": Row(
        replace(case(), engine=replace(case().engine, release="0.6.0")),
        "serves",
        "serves",
        "unknown",
    ),
}
