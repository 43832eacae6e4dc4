"""Drafts on the disk with random bytes, and what a conversion made of them."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sglang_eagle3_patch.checkpoint.conversion.convert import Conversion, plan_conversion
from sglang_eagle3_patch.checkpoint.conversion.options import Options, Target
from sglang_eagle3_patch.checkpoint.conversion.source import stored_tensors
from sglang_eagle3_patch.checkpoint.header import TensorHeader
from sglang_eagle3_patch.facts.store import facts_for
from tests.unit.checkpoint import drafts

LAYERS = 8
# The target ids that the draft ids 0, 1, 2, ... stand for.
KNOWN = [draft + draft // 2 for draft in range(drafts.DRAFT_VOCAB)]
Values = Mapping[str, bytes]


def target(architecture: str = "LlamaForCausalLM", release: str = "0.5.23") -> Target:
    facts = facts_for(release)
    assert facts is not None
    return Target(architecture, LAYERS, drafts.HIDDEN, facts.targets.get(architecture))


def options(release: str = "0.5.23", **changes: Any) -> Options:
    facts = facts_for(release)
    assert facts is not None
    return Options(**{"facts": facts, "target": target(release=release), **changes})


def values_of(headers: Mapping[str, TensorHeader], seed: int = 0) -> dict[str, bytes]:
    """Return random bytes for each tensor; `d2t` skips every third target id, `t2d` agrees.

    Vectors are norms: each number of theirs lies between a half and two.
    """
    generator = random.Random(seed)
    values = {name: generator.randbytes(header.size) for name, header in headers.items()}
    for name, header in headers.items():
        if header.dtype == "BF16" and len(header.shape) == 1:
            values[name] = b"".join(bytes([byte, 0x3F]) for byte in values[name][::2])
        if name.endswith("d2t"):
            values[name] = integers(target - draft for draft, target in enumerate(KNOWN))
        if name.endswith("t2d"):
            values[name] = bytes(token in KNOWN for token in range(drafts.VOCAB))
    return values


def integers(values: Any) -> bytes:
    return b"".join(struct.pack("<q", value) for value in values)


def write(
    folder: Path,
    config: Mapping[str, Any],
    headers: Mapping[str, TensorHeader],
    values: Values | None = None,
    shards: int = 1,
) -> Path:
    """Write a draft's folder, the tensors dealt out to `shards` files."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    values = values_of(headers) if values is None else values
    weight_map = {}
    for shard in range(shards):
        file = folder / (
            "model.safetensors"
            if shards == 1
            else f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        )
        names = list(headers)[shard::shards]
        weight_map.update(dict.fromkeys(names, file.name))
        entries, at = {}, 0
        for name in names:
            end = at + headers[name].size
            entries[name] = {
                "dtype": headers[name].dtype,
                "shape": list(headers[name].shape),
                "data_offsets": [at, end],
            }
            at = end
        text = json.dumps(entries).encode()
        data = b"".join(values[name] for name in names)
        file.write_bytes(struct.pack("<Q", len(text)) + text + data)
    if shards > 1:
        index = {"metadata": {"total_size": 1}, "weight_map": weight_map}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def convert(source: Path, out: Path, wanted: Options | None = None) -> Conversion:
    conversion = plan_conversion(source, wanted or options())
    conversion.write(out, verify=True)
    return conversion


def read(folder: Path) -> dict[str, bytes]:
    return {name: b"".join(t.pieces()) for name, t in stored_tensors(folder).items()}


def config_of(folder: Path) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return config


def snapshot(folder: Path) -> dict[str, bytes]:
    """Return every file under a folder and its bytes."""
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }
