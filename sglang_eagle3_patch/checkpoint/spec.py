"""`DraftSpec`: everything known about one draft checkpoint, as one value."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sglang_eagle3_patch.checkpoint import config as configs
from sglang_eagle3_patch.checkpoint.header import CheckpointUnreadable, TensorHeader, read_folder
from sglang_eagle3_patch.checkpoint.layouts import canonical_name


@dataclass(frozen=True)
class DraftSpec:
    """One draft checkpoint. `config` is as written, `tensors` are under canonical names."""

    folder: Path
    config: Mapping[str, Any]
    tensors: Mapping[str, TensorHeader]

    @classmethod
    def read(cls, folder: Path) -> DraftSpec:
        """Read `config.json` and the safetensors headers of `folder`; no weights are read.

        Raises `CheckpointUnreadable` naming the file that is missing or broken.
        """
        file = folder / "config.json"
        try:
            config = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise CheckpointUnreadable(f"{file} can't be read: {error}") from error
        if not isinstance(config, dict):
            raise CheckpointUnreadable(f"{file} holds {type(config).__name__}, no object")
        headers = read_folder(folder)
        return cls(folder, config, {canonical_name(name): headers[name] for name in headers})

    @property
    def is_eagle3(self) -> bool:
        """Whether the config is an EAGLE-3 draft's."""
        return configs.is_eagle3(self.config)

    @property
    def target_hidden_size(self) -> int | None:
        """Width of one aux hidden state, None when the config does not say."""
        layer = self.config.get("transformer_layer_config", self.config)
        size = self.config.get("target_hidden_size") or layer.get("hidden_size")
        return size if isinstance(size, int) and size > 0 else None

    @property
    def num_aux(self) -> int | None:
        """How many aux hidden states `fc` takes, None without an `fc` or when it doesn't fit."""
        fc, width = self.tensors.get("fc.weight"), self.target_hidden_size
        if fc is None or width is None or len(fc.shape) != 2 or fc.shape[1] % width:
            return None
        return fc.shape[1] // width
