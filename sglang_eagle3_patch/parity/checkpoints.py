"""The tensors that both sides compute with: the draft's own, and those of a target."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sglang_eagle3_patch.checkpoint.header import CheckpointUnreadable
from sglang_eagle3_patch.checkpoint.spec import DraftSpec


def draft_tensors(folder: Path) -> dict[str, Any]:
    """Return all tensors of the folder's safetensors files, under the names of the files.

    Raises `CheckpointUnreadable` for a folder without any.
    """
    from safetensors.torch import load_file

    tensors: dict[str, Any] = {}
    for file in sorted(folder.glob("*.safetensors")):
        tensors.update(load_file(file))
    if not tensors:
        raise CheckpointUnreadable(f"{folder} holds no safetensors files. Fix: convert it to them.")
    return tensors


def target_tensors(folder: Path) -> tuple[Any, Any]:
    """Return a target's embedding and head `[V, H]`; the head is the embedding when they are tied.

    Raises `CheckpointUnreadable` for a target that has no embedding in safetensors files.
    """
    from safetensors import safe_open

    found: dict[str, tuple[str, Path]] = {}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118 - it is no mapping
                for wanted in ("embed_tokens.weight", "lm_head.weight"):
                    # Layers that predict ahead (MTP) have an own one, under a longer name.
                    shorter = wanted not in found or len(name) < len(found[wanted][0])
                    if name.endswith(wanted) and shorter:
                        found[wanted] = (name, file)
    if "embed_tokens.weight" not in found:
        raise CheckpointUnreadable(
            f"{folder} holds no embed_tokens.weight in safetensors files. "
            "Fix: give the folder of the target's weights, or leave --target out."
        )

    def read(wanted: str) -> Any:
        name, file = found[wanted]
        with safe_open(file, framework="pt") as opened:
            return opened.get_tensor(name).float()

    embedding = read("embed_tokens.weight")
    return embedding, read("lm_head.weight") if "lm_head.weight" in found else embedding


def random_target(spec: DraftSpec, seed: int) -> tuple[Any, Any]:
    """Return a seeded embedding and head `[V, H]`, each None where the draft has its own."""
    import torch

    vocab, hidden = spec.sizes.vocab, spec.sizes.hidden
    if vocab is None or hidden is None:
        raise CheckpointUnreadable(
            f"{spec.folder}/config.json lacks vocab_size or hidden_size. Fix: state them."
        )
    generator = torch.Generator().manual_seed(seed + 1)
    made = torch.randn(2, vocab, hidden, generator=generator) / hidden**0.5
    return None if spec.has_embedding else made[0], None if spec.has_head else made[1]
