"""Finds the local folder of a checkpoint that SGLang has been given as a path or a hub id."""

from __future__ import annotations

from pathlib import Path


def local_folder(name_or_path: str, revision: str | None = None) -> Path | None:
    """Return the folder that holds the checkpoint's `config.json`, or None when it isn't local.

    Nothing is downloaded: a hub id is looked up in the cache that `huggingface_hub` uses.
    """
    folder = Path(name_or_path)
    try:
        if folder.is_dir():
            return folder
    except (OSError, ValueError):  # too long for a path, or with a null byte: no folder
        return None
    import huggingface_hub
    from huggingface_hub.errors import HFValidationError

    try:
        cached = huggingface_hub.try_to_load_from_cache(
            name_or_path, "config.json", revision=revision
        )
    except HFValidationError:
        return None
    return Path(cached).parent if isinstance(cached, str) else None
