"""Writes the golden files of SpecForge: the logits of its own trainer's forward.

    pip install --no-deps --target DIR specforge==0.2.0
    TORCHDYNAMO_DISABLE=1 PYTHONPATH=DIR:. python -m tests.oracles.write_specforge

Its modules are compiled where they are defined; dynamo is off so that no compiler is needed.
"""

from __future__ import annotations

import importlib.metadata
import tempfile
from pathlib import Path
from typing import Any

import torch
from specforge.algorithms.eagle3.model import OnlineEagle3Model
from specforge.modeling.draft.llama3_eagle import LlamaForCausalLMEagle3
from transformers import LlamaConfig

from tests.oracles import golden_files as golden

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "hidden_size": golden.HIDDEN,
    "intermediate_size": golden.INTERMEDIATE,
    "num_attention_heads": golden.HEADS,
    "num_key_value_heads": golden.KV_HEADS,
    "head_dim": golden.HEAD_DIM,
    "vocab_size": golden.VOCAB,
    "draft_vocab_size": golden.DRAFT_VOCAB,
    "num_hidden_layers": 1,
    "rms_norm_eps": golden.EPS,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": golden.THETA},
    "eagle_config": {
        "eagle_aux_hidden_state_layer_ids": [1, 3, 4],
        "use_aux_hidden_state": True,
    },
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": golden.THETA,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": 0.7,
    "mscale_all_dim": 1.3,
}
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "norm_output": {"norm_output": True},
    "no-norm_output": {"norm_output": False},
    "fc_norm": {"fc_norm": True},
    "yarn": {"rope_parameters": YARN},
}


class Recording(OnlineEagle3Model):
    """SpecForge's trainer, its loss (a Triton kernel) left out."""

    def _acc_and_loss(self, *, logits: torch.Tensor, **rest: Any) -> tuple[torch.Tensor, ...]:
        self.logits: list[torch.Tensor] = [*getattr(self, "logits", []), logits]
        return (torch.zeros(()),) * 7


@torch.no_grad()
def case(name: str, changes: dict[str, Any], folder: Path) -> golden.Case:
    """Build one draft, run the trainer's forward over it, save it with its `save_pretrained`."""
    model = LlamaForCausalLMEagle3(LlamaConfig(**{**CONFIG, **changes}))
    golden.load_shared(model)
    aux, token_ids = golden.padded_inputs()
    trainer = Recording(model, length=golden.STEPS)
    trainer(
        input_ids=token_ids,
        attention_mask=torch.ones_like(token_ids),
        target=torch.randn(*token_ids.shape, golden.VOCAB),
        loss_mask=torch.ones_like(token_ids)[..., None],
        hidden_states=aux,
    )
    model.save_pretrained(folder)
    return golden.saved_case("specforge", name, folder, trainer.logits)


def main() -> None:
    """Write the golden files."""
    with tempfile.TemporaryDirectory() as folder:
        cases = [case(name, changes, Path(folder) / name) for name, changes in CASES.items()]
    versions = {name: importlib.metadata.version(name) for name in ("specforge", "transformers")}
    golden.write_cases("specforge", versions, cases)


if __name__ == "__main__":
    main()
