"""Writes the golden files of ModelOpt: the logits of its own trainer's forward.

    pip install --no-deps --target DIR nvidia-modelopt==0.47.0 transformers==5.12.1 \\
        tokenizers==0.22.2 omegaconf==2.4.0 antlr4-python3-runtime==4.9.3 pulp==3.3.0
    PYTHONPATH=DIR:. python -m tests.oracles.write_modelopt

It makes its rope as transformers did before 5.19, hence the version.

It is trained from stored states of the target, as in its offline mode, so that any can be given.
Its decoder of the MLA kind is code from a model hub, and its Megatron flow wants a GPU: neither is
here.
"""

from __future__ import annotations

import importlib.metadata
import tempfile
from pathlib import Path
from typing import Any

import modelopt.torch.speculative as mtsp
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests.oracles import golden_files as golden

NAME = "modelopt"
SIZES: dict[str, Any] = {
    "intermediate_size": golden.INTERMEDIATE,
    "num_attention_heads": golden.HEADS,
    "num_key_value_heads": golden.KV_HEADS,
    "head_dim": golden.HEAD_DIM,
    "rms_norm_eps": golden.EPS,
    "rope_theta": golden.THETA,
}
TARGET = {
    **SIZES,
    "hidden_size": golden.HIDDEN,
    "vocab_size": golden.VOCAB,
    "num_hidden_layers": 8,
    "max_position_embeddings": 512,
}
DRAFT = {
    **SIZES,
    "draft_vocab_size": golden.DRAFT_VOCAB,
    "eagle_aux_hidden_state_layer_ids": [1, 3, 4],
    "rope_scaling": {"rope_type": "default", "rope_theta": golden.THETA},
    "torch_dtype": "float32",
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": golden.THETA,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}
# By default its export writes a yarn that nothing was trained with for plain rope.
AS_TRAINED = {"eagle_export_rope_scaling": {}}
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "default export": {},
    "two-layers": {"num_hidden_layers": 2},
    "yarn": {"rope_scaling": YARN},
}


@torch.no_grad()
def case(name: str, changes: dict[str, Any], folder: Path) -> golden.Case:
    """Build one draft as the trainer does, run its forward, export it as its own script does."""
    model = mtsp.convert(
        LlamaForCausalLM(LlamaConfig(**TARGET)),
        mode={
            "algorithm": "eagle",
            "config": {
                "eagle_offline": True,
                "eagle_architecture_config": {**DRAFT, **changes},
                "eagle_ttt_steps": golden.STEPS,
                "eagle_use_torch_compile": False,
                **({} if name == "default export" else AS_TRAINED),
            },
        },
    )
    logits = trained_logits(model)
    model.get_exporter().export(folder)
    return golden.saved_case(NAME, name, folder, logits)


def trained_logits(model: Any) -> list[torch.Tensor]:
    """Return the logits of the trainer's forward over the golden inputs, one tensor a step."""
    golden.load_shared(model.eagle_module)
    model.get_input_embeddings().weight.copy_(golden.embedding())
    logits: list[torch.Tensor] = []
    model.eagle_module.lm_head.register_forward_hook(lambda module, args, out: logits.append(out))
    aux, _ = golden.padded_inputs()
    token_ids = golden.inputs()[1][None]  # the trainer shifts them itself
    model.train()
    model(
        input_ids=token_ids,
        base_model_outputs={
            "base_model_hidden_states": aux[..., : golden.HIDDEN],
            "base_model_logits": torch.randn(*token_ids.shape, golden.VOCAB),
            "aux_hidden_states": aux,
        },
    )
    # Where others shift tokens to the left in each step, it shifts states to the right.
    return [x[:, step:] for step, x in enumerate(logits)]


def main() -> None:
    """Write the golden files."""
    with tempfile.TemporaryDirectory() as folder:
        cases = [case(name, changes, Path(folder) / name) for name, changes in CASES.items()]
    versions = {
        NAME: importlib.metadata.version("nvidia-modelopt"),
        "transformers": importlib.metadata.version("transformers"),
    }
    golden.write_cases(NAME, versions, cases)


if __name__ == "__main__":
    main()
