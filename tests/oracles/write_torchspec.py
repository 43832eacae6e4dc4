"""Writes the golden files of TorchSpec: the logits of its own trainer's forward.

    TORCHDYNAMO_DISABLE=1 PYTHONPATH=DIR:CHECKOUT:. python -m tests.oracles.write_torchspec

It is on no package index. CHECKOUT is one of https://github.com/lightseekorg/TorchSpec. The files
here came from a transcription of what runs on a CPU, not from a checkout:
`torchspec/models/draft/deepseek_eagle.py` of commit 7adce248, `llama3_eagle.py` of 11356816,
`base.py` of f8cdd367, `torchspec/models/eagle3.py` of 1098e20c with the two lines about
`norm_output` that it got later, the writing half of `tools/convert_to_hf.py` of 0db7eac0;
beside them a `version.txt` of 0.1.0, which published drafts of its state. DIR has
transformers 4.57.1, of the age of its configs. Its modules are compiled where they are defined;
dynamo is off so that no compiler is needed.
"""

from __future__ import annotations

import importlib.metadata
import tempfile
from pathlib import Path
from typing import Any

import torch
from tools.convert_to_hf import _get_torchspec_version, _save_without_vocab_pruning
from torchspec.models.draft.deepseek_eagle import Eagle3DeepseekV2ForCausalLM
from torchspec.models.draft.llama3_eagle import LlamaForCausalLMEagle3
from torchspec.models.eagle3 import Eagle3Model, compute_lazy_target_padded

from tests.oracles import golden_files as golden

NAME = "torchspec"
SIZES: dict[str, Any] = {
    "hidden_size": golden.HIDDEN,
    "intermediate_size": golden.INTERMEDIATE,
    "num_hidden_layers": 1,
    "num_attention_heads": golden.HEADS,
    "hidden_act": "silu",
    "rms_norm_eps": golden.EPS,
    "vocab_size": golden.VOCAB,
    "draft_vocab_size": golden.VOCAB,
    "max_position_embeddings": 512,
    "rope_theta": golden.THETA,
    "pad_token_id": 0,
}
# Its `configs/draft_models/kimi_k3_eagle3_mla.json`, smaller; the ids are outputs of layers.
MLA: dict[str, Any] = {
    **SIZES,
    **golden.MLA_SIZES,
    "architectures": ["Eagle3DeepseekV2ForCausalLM"],
    "model_type": "kimi_k2",
    "num_key_value_heads": golden.HEADS,
    "mla_use_nope": True,
    "eagle_config": {
        "eagle_aux_hidden_state_layer_ids": [1, 3, 4],
        "use_aux_hidden_state": True,
        "use_input_layernorm_in_first_layer": True,
        "use_last_layernorm": True,
        "use_mtp_layernorm": False,
    },
    "rope_scaling": {
        "type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        "beta_fast": 32,
        "beta_slow": 1,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
    },
}
# Its `configs/draft_models/kimi_k25_eagle3.json`, smaller.
MHA: dict[str, Any] = {
    **SIZES,
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    "num_key_value_heads": golden.KV_HEADS,
    "head_dim": golden.HEAD_DIM,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "rope_scaling": None,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "use_cache": True,
    "use_sliding_window": False,
}
AMPLIFIED = {**MLA["rope_scaling"], "mscale": 0.7, "mscale_all_dim": 1.3}
# As a yarn, since SGLang knows no other rope for this class on a CPU.
PLAIN = {**MLA["rope_scaling"], "factor": 1.0}
OWN_NORMS = {"fc_norm": True, "norm_output": True}
# By name: the config, and whether it is exported for vLLM.
CASES: dict[str, tuple[dict[str, Any], bool]] = {
    "MLA, yarn": (MLA, False),
    "MLA, yarn, for vLLM": (MLA, True),
    "MLA, plain rope": ({**MLA, "rope_scaling": PLAIN}, False),
    "MLA, yarn with mscale": ({**MLA, "rope_scaling": AMPLIFIED}, False),
    "MLA, fc_norm, norm_output": ({**MLA, **OWN_NORMS}, False),
    # The exporter refuses a vocabulary that was trained with; this is what it would write.
    "MLA, own vocabulary": ({**MLA, "draft_vocab_size": golden.DRAFT_VOCAB}, False),
    "plain": (MHA, False),
    "yarn": ({**MHA, "rope_scaling": AMPLIFIED}, False),
    "fc_norm, norm_output": ({**MHA, **OWN_NORMS}, False),
}


@torch.no_grad()
def case(name: str, config: dict[str, Any], for_vllm: bool, folder: Path) -> golden.Case:
    """Build one draft, run the trainer's forward over it, write it with its exporter."""
    kinds = {"kimi_k2": Eagle3DeepseekV2ForCausalLM, "llama": LlamaForCausalLMEagle3}
    kind = kinds[config["model_type"]]
    model = kind(kind.config_class.from_dict(config))
    golden.load_shared(model, golden.weights_for(config))
    logits: list[torch.Tensor] = []
    # Norm and head are inside its loss, which returns but the loss.
    model.midlayer.register_forward_hook(
        lambda module, args, outputs: logits.append(model.compute_logits(outputs[0]))
    )
    aux, token_ids = golden.padded_inputs()
    states, head = torch.randn(*token_ids.shape, golden.HIDDEN), model.lm_head.weight
    Eagle3Model(model, length=golden.STEPS)(
        input_ids=token_ids,
        attention_mask=torch.ones_like(token_ids),
        target=compute_lazy_target_padded(states, head, golden.STEPS),
        loss_mask=torch.ones_like(token_ids),
        hidden_states=aux,
    )
    folder.mkdir()
    _save_without_vocab_pruning(model, folder, config, config["draft_vocab_size"], for_vllm)
    return golden.saved_case(NAME, name, folder, logits)


def main() -> None:
    """Write the golden files."""
    with tempfile.TemporaryDirectory() as folder:
        cases = [case(name, *given, Path(folder) / name) for name, given in CASES.items()]
    transformers = importlib.metadata.version("transformers")
    golden.write_cases(NAME, {NAME: _get_torchspec_version(), "transformers": transformers}, cases)


if __name__ == "__main__":
    main()
