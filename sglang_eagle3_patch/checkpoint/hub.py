"""Reads the safetensors headers of a checkpoint on the Hugging Face hub, without its weights."""

from __future__ import annotations

from sglang_eagle3_patch.checkpoint.header import TensorHeader


def hub_headers(name: str, revision: str | None) -> dict[str, TensorHeader]:
    """Return the tensors of a hub repository, by range requests.

    Raises whatever the hub's client does: what a hub sends is anybody's.
    """
    import huggingface_hub

    metadata = huggingface_hub.get_safetensors_metadata(name, revision=revision)
    return {
        str(tensor): TensorHeader(str(info.dtype), tuple(map(int, info.shape)))
        for part in metadata.files_metadata.values()
        for tensor, info in part.tensors.items()
    }
