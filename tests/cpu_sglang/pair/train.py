"""Train the tiny pair and write `assets/`: about five minutes on one core, fixed seeds.

    ./launch.sh run -- python -m tests.cpu_sglang.pair.train [--out FOLDER] [--only DRAFTER …]

The target is a Kimi-K2.5-shaped model (MLA, mixture of experts, eight layers; its small vision
tower has no weights). Five drafters learn from its greedy text: a plain one, one with
`norm_before_residual`, which is what speculators' trainers do by default, and one of that kind
that is stopped early: a good drafter hides small errors of a server, a weak one shows each in its
histogram. Two more have latent attention (MLA), a plain one and a weak one of the other kind.
With `--only` the target in the folder is kept and the named drafters are trained anew.
Weights are rounded to bfloat16 before anything is measured, so that the shipped files stay under
7 MB and the expectation belongs to exactly what is shipped. The schedule counts steps and never
looks at the clock; equality to the last bit on another processor is not promised, which is why
the expectation is written beside the weights it was computed from.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

from tests.cpu_sglang.pair import corpus, expectation
from tests.cpu_sglang.pair.drafter import Drafter
from tests.cpu_sglang.pair.mla_drafter import MLADrafter

ASSETS = Path(__file__).parent / "assets"
TARGET_STEPS = 260
SEQUENCES, PROMPT, GENERATED = 256, 24, 136
DRAFT_DEPTH, DEPTH_WEIGHT = 3, 0.9


class Recipe(NamedTuple):
    """How one drafter is trained."""

    kind: type[Drafter]
    norm_before_residual: bool
    steps: int


# By file name.
DRAFTERS = {
    "drafter": Recipe(Drafter, False, 120),
    "drafter_norm_before_residual": Recipe(Drafter, True, 120),
    "drafter_weak": Recipe(Drafter, True, 30),
    "mla_drafter": Recipe(MLADrafter, False, 120),
    "mla_drafter_weak": Recipe(MLADrafter, True, 30),
}


def fit(
    what: str,
    parameters: Iterable[nn.Parameter],
    steps: int,
    floor: float,
    loss: Callable[[], Tensor],
) -> None:
    """Minimise `loss` by AdamW with a cosine from 3e-3 down to `floor` of it."""
    parameters = list(parameters)
    optimizer = torch.optim.AdamW(parameters, betas=(0.9, 0.95), weight_decay=0.01)
    started = time.monotonic()
    for step in range(steps):
        cosine = 0.5 * (1 + math.cos(math.pi * step / steps))
        warmup = min(1.0, (step + 1) / 30)
        optimizer.param_groups[0]["lr"] = 3e-3 * warmup * (cosine * (1 - floor) + floor)
        value = loss()
        optimizer.zero_grad()
        value.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        if step % 40 == 0 or step == steps - 1:
            elapsed = time.monotonic() - started
            print(f"{what}: step {step}, loss {value.item():.3f}, {elapsed:.0f} s", flush=True)


def train_target(config_file: Path) -> nn.Module:
    """Return the trained text model, its weights rounded to bfloat16 but held in float32."""
    torch.manual_seed(0)
    model = expectation.new_text_model(config_file)
    ids = torch.tensor(expectation.encode(corpus.text(12000, seed=1)))
    generator = torch.Generator().manual_seed(0)
    batch, length = 16, 128

    def loss() -> Tensor:
        starts = torch.randint(0, len(ids) - length - 1, (batch,), generator=generator)
        rows = torch.stack([ids[start : start + length + 1] for start in starts])
        logits = model(input_ids=rows[:, :-1], use_cache=False).logits
        return functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())

    fit("target", model.parameters(), TARGET_STEPS, 0.05, loss)
    round_to_bfloat16(model)
    return model.eval()


def make_training_data(model: nn.Module) -> tuple[Tensor, Tensor, Tensor]:
    """Return ids `[S, L]`, aux hidden states `[S, L, 3H]`, target probabilities `[S, L, V]`.

    Three quarters of the sequences are the target's own greedy text, the rest is corpus.
    """
    ids = torch.tensor(expectation.encode(corpus.text(4000, seed=2)))
    generator = torch.Generator().manual_seed(5)
    starts = torch.randint(0, len(ids) - PROMPT - GENERATED, (SEQUENCES,), generator=generator)
    own = SEQUENCES * 3 // 4
    with torch.no_grad():
        prompts = torch.stack([ids[start : start + PROMPT] for start in starts[:own]])
        generated = expectation.greedy(model, prompts, GENERATED)
        rest = torch.stack([ids[start : start + PROMPT + GENERATED] for start in starts[own:]])
        rows = torch.cat([generated, rest])
        aux, probabilities = [], []
        for first in range(0, SEQUENCES, 32):
            states = expectation.target_states(model, rows[first : first + 32])
            aux.append(states.aux)
            probabilities.append(states.logits.softmax(-1))
    return rows, torch.cat(aux), torch.cat(probabilities)


def train_drafter(
    name: str, model: nn.Module, rows: Tensor, aux: Tensor, probabilities: Tensor
) -> dict[str, Tensor]:
    """Return the state dict of the drafter `name`, trained, in bfloat16, under native names."""
    recipe = DRAFTERS[name]
    torch.manual_seed(1)
    drafter = recipe.kind(recipe.norm_before_residual)
    drafter.lm_head.weight.data.copy_(model.lm_head.weight.data)
    for parameter_name, parameter in drafter.named_parameters():
        if parameter.dim() == 2 and "lm_head" not in parameter_name:
            nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5)
    embedding = model.model.embed_tokens.weight.detach()
    generator = torch.Generator().manual_seed(1)
    length = rows.shape[1] - DRAFT_DEPTH

    def loss() -> Tensor:
        picked = torch.randint(0, SEQUENCES, (16,), generator=generator)
        outputs = drafter(aux[picked][:, :length], rows[picked], embedding, DRAFT_DEPTH)
        total = torch.zeros(())
        for depth, logits in enumerate(outputs):
            wanted = probabilities[picked][:, 1 + depth : 1 + depth + length]
            log_probabilities = logits[:, : wanted.shape[1]].log_softmax(-1)
            total = total - DEPTH_WEIGHT**depth * (wanted * log_probabilities).sum(-1).mean()
        return total

    fit(name, drafter.parameters(), recipe.steps, 0.03, loss)
    return {key: value.detach().bfloat16() for key, value in drafter.state_dict().items()}


def round_to_bfloat16(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.data = parameter.data.bfloat16().float()


def save_target(model: nn.Module, out: Path) -> None:
    """Write the text model under the names of a Kimi-K2.5 checkpoint, in bfloat16.

    transformers fuses experts in memory; its own `save_pretrained` gives the checkpoint's names.
    """
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        tensors = load_file(Path(folder) / "model.safetensors")
    renamed = {f"language_model.{name}": value.bfloat16() for name, value in tensors.items()}
    save_file(renamed, out / "model.safetensors", metadata={"format": "pt"})


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the tiny pair.")
    parser.add_argument("--out", type=Path, default=ASSETS, metavar="FOLDER")
    parser.add_argument("--only", nargs="+", choices=DRAFTERS, metavar="DRAFTER")
    arguments = parser.parse_args()
    out: Path = arguments.out
    torch.set_num_threads(1)  # two threads spin on each other's barriers on a busy machine
    started = time.monotonic()
    (out / "target").mkdir(parents=True, exist_ok=True)
    if arguments.only:
        model = expectation.load_text_model(out / "target")
    else:
        model = train_target(ASSETS / "target" / "config.json")
        save_target(model, out / "target")
    data = make_training_data(model)
    for name in arguments.only or DRAFTERS:
        weights = train_drafter(name, model, *data)
        save_file(weights, out / f"{name}.safetensors", metadata={"format": "pt"})
    report = expectation.compute(out)
    (out / "expectation.json").write_text(json.dumps(report, indent=1) + "\n")
    print(f"done in {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
