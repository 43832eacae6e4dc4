"""Writes the golden files of a ModelOpt that still names its layer `midlayer`, as 0.41 does too.

    pip install --no-deps --target DIR nvidia-modelopt==0.42.0 transformers==4.57.1 \\
        huggingface_hub==0.36.2 tokenizers==0.22.2 \\
        omegaconf==2.4.0 antlr4-python3-runtime==4.9.3 pulp==3.3.0
    PYTHONPATH=DIR:. python -m tests.oracles.write_modelopt_0_42

From 0.41 on it norms the hidden state twice; until 0.40 the layer's own norm is an `Identity`.
Several layers it trains, but its exporter's own check rejects them.
"""

from __future__ import annotations

import importlib.metadata
import tempfile
from pathlib import Path

import modelopt.torch.speculative as mtsp
import torch
from modelopt.torch.export import export_hf_checkpoint
from modelopt.torch.speculative.eagle.default_config import default_eagle_config
from transformers import LlamaConfig, LlamaForCausalLM

from tests.oracles import golden_files as golden
from tests.oracles.write_modelopt import DRAFT, TARGET, trained_logits

NAME = "modelopt-0.42.0"
OWN = {"rope_scaling": None, "use_aux_hidden_state": True, "use_last_layernorm": True}


@torch.no_grad()
def case(folder: Path) -> golden.Case:
    """Build one draft as the trainer does, run its forward, export it as its own script does."""
    model = LlamaForCausalLM(LlamaConfig(**TARGET, dtype="float32"))
    draft = {**default_eagle_config, **DRAFT, **OWN}
    config = {"eagle_offline": True, "eagle_architecture_config": draft}
    mtsp.convert(model, mode=[("eagle", config)])
    # It allows torch no other attention than a GPU's.
    model.eagle_config._attn_implementation = "eager"
    model.num_ttt_steps = golden.STEPS
    logits = trained_logits(model)
    export_hf_checkpoint(model, export_dir=folder)
    return golden.saved_case(NAME, "plain", folder, logits)


def main() -> None:
    """Write the golden files."""
    with tempfile.TemporaryDirectory() as folder:
        cases = [case(Path(folder))]
    versions = {
        "modelopt": importlib.metadata.version("nvidia-modelopt"),
        "transformers": importlib.metadata.version("transformers"),
    }
    golden.write_cases(NAME, versions, cases)


if __name__ == "__main__":
    main()
