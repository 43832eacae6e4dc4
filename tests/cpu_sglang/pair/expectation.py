"""The acceptance a server must show, computed in torch: count for count, no server involved.

Greedy speculation is deterministic: the target's text is fixed, and at every verify step the
drafter proposes a chain that is compared with it. So the histogram of accepted drafts per verify
step follows from the two checkpoints alone. Older SGLang releases compute two things differently
(`Quirks`); with those modelled the prediction is exact there too.
"""

from __future__ import annotations

import json
import math
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM, PreTrainedTokenizerFast

from tests.cpu_sglang.pair import corpus
from tests.cpu_sglang.pair.drafter import Drafter
from tests.cpu_sglang.pair.mla_drafter import MLADrafter

ASSETS = Path(__file__).parent / "assets"
# Inputs of these layers are the target's three aux hidden states; EAGLE-3's default for 8 layers.
AUX_LAYERS = (2, 4, 5)
PROMPTS, NEW_TOKENS, DRAFT_STEPS = 10, 64, 3


@dataclass(frozen=True)
class Quirks:
    """What a release computes differently from a plain chain.

    positions_ahead: SGLang <= 0.5.11 adds 1 to the positions before the first draft forward.
    counted_twice: the v1 worker's draft-extend on the Triton backend (<= 0.5.12.post1) attends to
        the freshly accepted tokens twice, once from the cache and once as new.
    """

    positions_ahead: bool = False
    counted_twice: bool = False


PLAIN = Quirks()
QUIRKS = {
    "plain": PLAIN,
    "positions_ahead": Quirks(positions_ahead=True),
    "positions_ahead_counted_twice": Quirks(positions_ahead=True, counted_twice=True),
    "counted_twice": Quirks(counted_twice=True),
}


def tokenizer() -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast.from_pretrained(ASSETS / "target")


def encode(text: str) -> list[int]:
    ids: list[int] = tokenizer()(text)["input_ids"]
    return ids


def read_text_config(config_file: Path) -> DeepseekV3Config:
    """Return the config of the text model in the Kimi-K2.5 config at `config_file`."""
    text_config = json.loads(config_file.read_text())["text_config"]
    text_config.pop("torch_dtype", None)
    return DeepseekV3Config(**text_config)


def new_text_model(config_file: Path) -> nn.Module:
    """Return an untrained float32 text model of the Kimi-K2.5 config at `config_file`."""
    config = read_text_config(config_file)
    config._attn_implementation = "sdpa"
    model: nn.Module = DeepseekV3ForCausalLM(config).float()
    return model


def load_text_model(target: Path) -> nn.Module:
    """Return transformers' own model with the weights of the checkpoint folder `target`."""
    prefix = "language_model."
    tensors = {
        name.removeprefix(prefix): value.float()
        for name, value in load_file(target / "model.safetensors").items()
    }
    # from_pretrained turns the checkpoint's expert names into the fused ones of transformers 5
    with tempfile.TemporaryDirectory() as folder:
        save_file(tensors, Path(folder) / "model.safetensors", metadata={"format": "pt"})
        read_text_config(target / "config.json").save_pretrained(folder)
        loaded, report = DeepseekV3ForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="sdpa", output_loading_info=True
        )
    if report["missing_keys"] or report["unexpected_keys"]:
        raise ValueError(f"{target} does not fit transformers' model: {report}")
    return loaded.eval()  # type: ignore[no-any-return]


@dataclass
class TargetStates:
    aux: Tensor  # [B, L, 3H], inputs of AUX_LAYERS
    last: Tensor  # [B, L, H], what the target's head sees
    logits: Tensor  # [B, L, V]


@torch.no_grad()
def target_states(model: nn.Module, ids: Tensor) -> TargetStates:
    output = model.model(input_ids=ids, output_hidden_states=True, use_cache=False)
    aux = torch.cat([output.hidden_states[layer] for layer in AUX_LAYERS], -1)
    last = output.last_hidden_state
    return TargetStates(aux, last, model.lm_head(last))


@torch.no_grad()
def greedy(model: nn.Module, prompts: Tensor, new_tokens: int) -> Tensor:
    """Return prompts `[B, P]` continued greedily by exactly `new_tokens` tokens."""
    result: Tensor = model.generate(
        prompts,
        max_new_tokens=new_tokens,
        min_new_tokens=new_tokens,
        do_sample=False,
        pad_token_id=0,
    )
    return result


def load_drafter(
    weights: Path, norm_before_residual: bool, kind: type[Drafter] = Drafter
) -> Drafter:
    drafter = kind(norm_before_residual)
    drafter.load_state_dict({name: value.float() for name, value in load_file(weights).items()})
    return drafter.eval()


@torch.no_grad()
def draft_chain(
    drafter: Drafter,
    hidden: Tensor,
    tokens: Tensor,
    embedding: Tensor,
    head: Tensor,
    *,
    fresh: int,
    quirks: Quirks,
) -> list[int]:
    """Propose `DRAFT_STEPS` tokens after `tokens`, greedily, as a server's drafter does.

    `hidden` `[T, H]` enters the layer at indices 0..T-1, `tokens` `[T]` are the tokens one
    further on, `fresh` says how many of the last entries the preceding verify step accepted.
    """
    layer = drafter.midlayer

    def project(embeds: Tensor, hidden: Tensor, positions: Tensor) -> tuple[Tensor, ...]:
        x, residual = layer.enter(embeds, hidden)
        return (*layer.self_attn.qkv(x[None], positions), residual)

    count = hidden.shape[0]
    q, keys, values, residual = project(embedding[tokens], hidden, torch.arange(count))
    q, residual = q[:, :, -1:], residual[-1:]
    proposed: list[int] = []
    for step in range(DRAFT_STEPS):
        scores = q @ keys.transpose(-1, -2) * layer.self_attn.scale
        if step == 0 and quirks.counted_twice and fresh:
            scores[..., count - fresh : count] += math.log(2.0)
        attended = (scores.softmax(-1) @ values).transpose(1, 2).reshape(1, -1)
        out = layer.leave(residual, attended)
        proposed.append(int((drafter.norm(out) @ head.T).argmax()))
        if step + 1 < DRAFT_STEPS:
            position = torch.tensor([count + step + int(quirks.positions_ahead)])
            q, key, value, residual = project(embedding[proposed[-1:]], out, position)
            keys, values = torch.cat([keys, key], 2), torch.cat([values, value], 2)
    return proposed


def simulate(
    drafter: Drafter,
    states: TargetStates,
    ids: Tensor,
    embedding: Tensor,
    target_head: Tensor,
    prompt_length: int,
    *,
    quirks: Quirks = PLAIN,
    eagle_mode: bool = False,
) -> list[list[int]]:
    """Return, for each prompt, how many verify steps accepted 0, 1, .. `DRAFT_STEPS` drafts.

    `eagle_mode` is `--speculative-algorithm EAGLE`: no capture, `fc` skipped, the target's head.
    """
    head = target_head if eagle_mode else drafter.lm_head.weight
    histograms = []
    for row in range(len(ids)):
        at, fresh, done = prompt_length - 1, 0, 1  # the prefill gives the first new token
        histogram = [0] * (DRAFT_STEPS + 1)
        while done < NEW_TOKENS:
            hidden = (
                states.last[row, : at + 1] if eagle_mode else drafter.fc(states.aux[row, : at + 1])
            )
            proposed = draft_chain(
                drafter,
                hidden,
                ids[row, 1 : at + 2],
                embedding,
                head,
                fresh=fresh,
                quirks=quirks,
            )
            wanted = ids[row, at + 2 : at + 2 + DRAFT_STEPS].tolist()
            accepted = 0
            while accepted < DRAFT_STEPS and proposed[accepted] == wanted[accepted]:
                accepted += 1
            histogram[accepted] += 1
            fresh = accepted + 1
            at += fresh
            done += fresh
        histograms.append(histogram)
    return histograms


def compute(folder: Path = ASSETS) -> dict[str, Any]:
    """Compute the whole expectation for the pair in `folder`, ready for `expectation.json`."""
    torch.set_num_threads(1)
    model = load_text_model(folder / "target")
    prompts = corpus.held_out_prompts(PROMPTS)
    prompt_ids = torch.tensor([encode(prompt) for prompt in prompts])
    length = prompt_ids.shape[1]
    ids = greedy(model, prompt_ids, NEW_TOKENS + DRAFT_STEPS + 2)
    states = target_states(model, ids)
    top = states.logits[:, length - 1 : length - 1 + NEW_TOKENS].topk(2, -1).values
    decode = tokenizer().decode
    embedding = model.model.embed_tokens.weight.detach()
    head = model.lm_head.weight.detach()
    plain = load_drafter(folder / "drafter.safetensors", False)
    nbr_file = folder / "drafter_norm_before_residual.safetensors"
    weak_file = folder / "drafter_weak.safetensors"
    mla_file = folder / "mla_drafter.safetensors"
    mla_weak_file = folder / "mla_drafter_weak.safetensors"
    cases = {
        "trained": (plain, False),
        "eagle_mode": (plain, True),
        "norm_before_residual": (load_drafter(nbr_file, True), False),
        "norm_before_residual_ignored": (load_drafter(nbr_file, False), False),
        "weak": (load_drafter(weak_file, True), False),
        "weak_norm_before_residual_ignored": (load_drafter(weak_file, False), False),
        "mla": (load_drafter(mla_file, False, MLADrafter), False),
        "mla_weak": (load_drafter(mla_weak_file, True, MLADrafter), False),
        "mla_weak_norm_before_residual_ignored": (
            load_drafter(mla_weak_file, False, MLADrafter),
            False,
        ),
    }
    return {
        "aux_layers": list(AUX_LAYERS),
        "draft_steps": DRAFT_STEPS,
        "new_tokens": NEW_TOKENS,
        "smallest_logit_gap": round(float((top[..., 0] - top[..., 1]).min()), 4),
        "prompts": prompts,
        "texts": [decode(row[length : length + NEW_TOKENS]) for row in ids],
        "histograms": {
            case: {
                name: simulate(
                    drafter,
                    states,
                    ids,
                    embedding,
                    head,
                    length,
                    quirks=quirks,
                    eagle_mode=eagle_mode,
                )
                for name, quirks in QUIRKS.items()
            }
            for case, (drafter, eagle_mode) in cases.items()
        },
    }
