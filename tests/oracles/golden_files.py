"""The golden files: one set of weights and inputs, and what real trainers' modules made of them.

`shared.safetensors` holds the weights of the largest draft under canonical names, and the
inputs, all in values that bfloat16 holds exactly; `further.safetensors` an attention of the MLA
kind and a head over the target's whole vocabulary, for the drafts that have these instead.
`<library>.json` holds, for each case, the config and the tensors' names as the library wrote them;
`<library>.safetensors` its logits `[3 steps, 5 rows, Vd]`, float32. A library's older versions
are libraries of their own, named `<library>-<version>`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from sglang_eagle3_patch.checkpoint.layouts import canonical_name

FOLDER = Path(__file__).parent / "golden"
HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, HEAD_DIM = 64, 96, 4, 2, 16
VOCAB, DRAFT_VOCAB, AUX, LENGTH, STEPS = 320, 128, 3, 24, 3
ROWS = (0, 5, 11, 17, 23)
THETA, EPS, WINDOW = 50000.0, 1e-5, 4
# All of them differ, so that a mix-up shows.
MLA_SIZES = {
    "q_lora_rank": 44,
    "kv_lora_rank": 28,
    "qk_nope_head_dim": 24,
    "qk_rope_head_dim": 16,
    "v_head_dim": 20,
}
_INPUTS = ("aux", "token_ids")


@dataclass(frozen=True)
class Case:
    """One draft as a library saved it, and the logits of its `ROWS` in each step."""

    library: str
    name: str
    config: dict[str, Any]
    names: tuple[str, ...]
    logits: Tensor

    def tensors(self) -> dict[str, Tensor]:
        """Return the draft's tensors under the names the library wrote."""
        weights = weights_for(self.config)
        return {name: weights[canonical_name(name)] for name in self.names}


def inputs() -> tuple[Tensor, Tensor]:
    """Return the aux states `[T, A * H]` float32 and the tokens `[T + steps]`."""
    shared = load_file(FOLDER / "shared.safetensors")
    return shared["aux"].float(), shared["token_ids"]


def embedding() -> Tensor:
    """Return the target's embedding `[V, H]` float32, which some libraries leave out of drafts."""
    return load_file(FOLDER / "shared.safetensors")["embed_tokens.weight"].float()


def cases() -> list[Case]:
    """Return all cases of all libraries."""
    found = []
    for file in sorted(FOLDER.glob("*.json")):
        logits = load_file(file.with_suffix(".safetensors"))
        for name, case in json.loads(file.read_text())["cases"].items():
            found.append(Case(file.stem, name, case["config"], tuple(case["names"]), logits[name]))
    return found


def version(library: str) -> str:
    """Return the version of the library that computed its cases' logits."""
    versions: dict[str, str] = json.loads((FOLDER / f"{library}.json").read_text())["versions"]
    return versions[library.partition("-")[0]]


def write_cases(library: str, versions: dict[str, str], written: list[Case]) -> None:
    """Write the cases of one library."""
    table = {case.name: {"config": case.config, "names": list(case.names)} for case in written}
    text = json.dumps({"versions": versions, "cases": table}, sort_keys=True, indent=1)
    (FOLDER / f"{library}.json").write_text(text + "\n")
    logits = {case.name: case.logits.contiguous() for case in written}
    save_file(logits, FOLDER / f"{library}.safetensors")


def shared_weights() -> dict[str, Tensor]:
    """Return the weights, from the file or, the first time, anew; canonical names, bfloat16."""
    file = FOLDER / "shared.safetensors"
    if not file.is_file():
        FOLDER.mkdir(exist_ok=True)
        save_file(_make_shared(), file)
    return {name: value for name, value in load_file(file).items() if name not in _INPUTS}


def weights_for(config: dict[str, Any]) -> dict[str, Tensor]:
    """Return the weights of a draft of this config; canonical names, bfloat16."""
    file = FOLDER / "further.safetensors"
    if not file.is_file():
        save_file(_make_further(), file)
    further = load_file(file)
    whole_head = further.pop("lm_head.weight")
    weights = shared_weights() | (further if "kv_lora_rank" in config else {})
    if config.get("draft_vocab_size") == config.get("vocab_size"):
        weights["lm_head.weight"] = whole_head
    return weights


def _matrix(rows: int, columns: int) -> Tensor:
    return torch.randn(rows, columns) / columns**0.5


def _gain(size: int) -> Tensor:
    return 1 + 0.6 * (torch.rand(size) - 0.5)


def _make_further() -> dict[str, Tensor]:
    torch.manual_seed(21)
    q_rank, kv_rank, nope, rope, value = MLA_SIZES.values()
    attention = {
        "q_a_proj": _matrix(q_rank, 2 * HIDDEN),
        "q_a_layernorm": _gain(q_rank),
        "q_b_proj": _matrix(HEADS * (nope + rope), q_rank) * 1.5,
        "kv_a_proj_with_mqa": _matrix(kv_rank + rope, 2 * HIDDEN) * 1.5,
        "kv_a_layernorm": _gain(kv_rank),
        "kv_b_proj": _matrix(HEADS * (nope + value), kv_rank) * 1.5,
        "o_proj": _matrix(HIDDEN, HEADS * value) * 1.5,
    }
    further = {f"layers.0.self_attn.{name}.weight": x for name, x in attention.items()}
    further["lm_head.weight"] = _matrix(VOCAB, HIDDEN)
    return {name: value.bfloat16() for name, value in further.items()}


def _make_shared() -> dict[str, Tensor]:
    """Gains are 1 +- 0.3 and the aux blocks differ in size, so that no mix-up cancels out."""
    torch.manual_seed(20)

    shared = {
        "embed_tokens": torch.randn(VOCAB, HIDDEN),
        "fc": _matrix(HIDDEN, AUX * HIDDEN) * 3,
        "norm": _gain(HIDDEN),
        "input_norm": _gain(AUX * HIDDEN),
        "lm_head": _matrix(DRAFT_VOCAB, HIDDEN),
        **{f"fc_norm.{aux}": _gain(HIDDEN) for aux in range(AUX)},
        "layers.0.hidden_norm": _gain(HIDDEN),
    }
    biases = {}
    for layer, width in (("layers.0", 2 * HIDDEN), ("layers.1", HIDDEN)):
        sizes = {
            "self_attn.q_proj": (HEADS * HEAD_DIM, width),
            "self_attn.k_proj": (KV_HEADS * HEAD_DIM, width),
            "self_attn.v_proj": (KV_HEADS * HEAD_DIM, width),
            "self_attn.o_proj": (HIDDEN, HEADS * HEAD_DIM),
            "mlp.gate_proj": (INTERMEDIATE, HIDDEN),
            "mlp.up_proj": (INTERMEDIATE, HIDDEN),
            "mlp.down_proj": (HIDDEN, INTERMEDIATE),
        }
        for name, size in sizes.items():
            shared[f"{layer}.{name}"] = _matrix(*size) * 1.5
            biases[f"{layer}.{name}.bias"] = torch.randn(size[0]) / 2
        for norm in ("input_layernorm", "post_attention_layernorm"):
            shared[f"{layer}.{norm}"] = _gain(HIDDEN)
        for part in "qk":
            shared[f"{layer}.self_attn.{part}_norm"] = _gain(HEAD_DIM)
    targets = torch.randperm(VOCAB)[:DRAFT_VOCAB].sort().values
    scale = torch.tensor([0.5, 1.0, 3.0]).repeat_interleave(HIDDEN)
    floats = {
        **{f"{name}.weight": value for name, value in shared.items()},
        **biases,
        "aux": torch.randn(LENGTH, AUX * HIDDEN) * scale,
    }
    return {
        **{name: value.bfloat16() for name, value in floats.items()},
        "d2t": targets - torch.arange(DRAFT_VOCAB),
        "t2d": torch.zeros(VOCAB, dtype=torch.bool).index_fill(0, targets, True),
        "token_ids": torch.randint(0, VOCAB, (LENGTH + STEPS,)),
    }


def padded_inputs(rows: int = LENGTH + STEPS) -> tuple[Tensor, Tensor]:
    """Return the inputs as a trainer takes them, each with a leading batch of one.

    Row t of aux `[1, rows, A * H]` goes with token t+1 of the tokens `[1, rows]`, where rows is
    T + steps or more. Trainers shift tokens left in each step and fill up with zeros: the rows
    beyond T are there to be spoilt by that, and no row before them sees them.
    """
    aux, token_ids = inputs()
    aux = torch.cat([aux, aux.new_zeros(rows - LENGTH, aux.shape[1])])
    following = token_ids[1:]
    return aux[None], torch.cat([following, following.new_zeros(rows - len(following))])[None]


def load_shared(model: torch.nn.Module, weights: dict[str, Tensor] | None = None) -> None:
    """Load the shared weights into a trainer's draft, every parameter and buffer that it saves.

    `weights` are others, of `weights_for`.
    """
    weights = shared_weights() if weights is None else weights
    for name, value in model.state_dict().items():
        if not name.startswith("verifier_"):
            value.copy_(weights[canonical_name(name)])


def saved_case(library: str, name: str, folder: Path, logits: list[Tensor]) -> Case:
    """Return the case that a library saved to `folder`, checked to hold the loaded weights."""
    saved = load_file(folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    weights = weights_for(config)
    for tensor, value in saved.items():
        assert torch.equal(value, weights[canonical_name(tensor)].to(value.dtype)), tensor
    kept = torch.stack([step[0, list(ROWS)] for step in logits])
    return Case(library, name, config, tuple(sorted(saved)), kept)
