"""Checkpoint folders of nothing but headers, vocabulary maps and zeros, written without torch."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sglang_eagle3_patch.checkpoint.header import TensorHeader
from tests.unit.doctor.cases import D2T, T2D, TARGET, config, tensors

_SIZES = {"BF16": 2, "F32": 4, "I64": 8, "I8": 1, "BOOL": 1}


def write_safetensors(
    file: Path, headers: Mapping[str, TensorHeader], values: Mapping[str, bytes] | None = None
) -> None:
    """Write tensors with these headers; those without `values` are all zeros."""
    header, data = {}, b""
    for name, tensor in headers.items():
        size = _SIZES[tensor.dtype]
        for dimension in tensor.shape:
            size *= dimension
        content = (values or {}).get(name, bytes(size))
        header[name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [len(data), len(data) + len(content)],
        }
        data += content
    told = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(told)) + told + data)


def maps(d2t: tuple[int, ...] = D2T) -> dict[str, bytes]:
    return {"d2t": struct.pack(f"<{len(d2t)}q", *d2t), "t2d": bytes(T2D)}


def write_draft(
    folder: Path,
    draft_config: Mapping[str, Any] | None = None,
    headers: Mapping[str, TensorHeader] | None = None,
) -> Path:
    """Write a draft, by default the healthy one."""
    folder.mkdir(parents=True, exist_ok=True)
    stated = config() if draft_config is None else draft_config
    (folder / "config.json").write_text(json.dumps(stated))
    write_safetensors(
        folder / "model.safetensors", tensors() if headers is None else headers, maps()
    )
    return folder


def write_target(folder: Path) -> Path:
    """Write the config of the target that the healthy draft was trained for."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(TARGET.config))
    return folder
