"""Reads the `config.json` of a draft and checks the kinds of values that others rely on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sglang_eagle3_patch.checkpoint.json_file import CheckpointUnreadable, read_json_object

_WORDS = ("model_type", "hidden_act", "speculators_model_type")
_OBJECTS = ("eagle_config", "speculators_config", "rope_parameters", "rope_scaling")


def read_config(file: Path) -> dict[str, Any]:
    """Return the config in `file`.

    Raises `CheckpointUnreadable` naming the file that is missing or broken, or the field that
    holds another kind of value than it can hold.
    """
    config = read_json_object(file)
    _check(file, config, "")
    layer = config.get("transformer_layer_config")
    if isinstance(layer, Mapping):
        _check(file, layer, "transformer_layer_config.")
    return config


def _check(file: Path, config: Mapping[str, Any], path: str) -> None:
    names = config.get("architectures")
    if names is not None and not (
        isinstance(names, list) and all(isinstance(name, str) for name in names)
    ):
        raise _wrong(file, f"{path}architectures", "list of names")
    for key in _WORDS:
        if not isinstance(config.get(key), (str, type(None))):
            raise _wrong(file, path + key, "word")
    for key in _OBJECTS:
        if not isinstance(config.get(key), (Mapping, type(None))):
            raise _wrong(file, path + key, "object")


def _wrong(file: Path, field: str, kind: str) -> CheckpointUnreadable:
    return CheckpointUnreadable(f"{file}: {field} is no {kind}. Fix: correct it or fetch it again.")
