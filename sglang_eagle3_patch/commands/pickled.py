"""Reads pickled weights (`*.bin`) through torch, without running what a pickle asks for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from sglang_eagle3_patch.checkpoint.conversion.source import Stored
from sglang_eagle3_patch.checkpoint.header import CheckpointUnreadable, TensorHeader
from sglang_eagle3_patch.checkpoint.json_file import refuse_lfs_pointer, regular_size

# torch's word for a dtype (`torch.bfloat16`) to safetensors'.
_DTYPES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
}


def pickled_files(folder: Path) -> list[Path]:
    """Return the files that hold a folder's pickled weights, as SGLang picks them."""
    files = sorted(folder.glob("*.bin"))
    return [file for file in files if file.name not in ("training_args.bin", "optimizer.bin")]


def pickled_tensors(folder: Path) -> dict[str, Stored]:
    """Return the tensors of a folder's `*.bin` files by name; their bytes stay on the disk.

    Raises `CheckpointUnreadable` without torch, and for files that hold anything but tensors by
    name.
    """
    found: dict[str, Stored] = {}
    for file in pickled_files(folder):
        for name, tensor in _load(file).items():
            if name in found:
                raise CheckpointUnreadable(f"{name} is in {found[name].file} and in {file}")
            dtype = _DTYPES.get(str(tensor.dtype).removeprefix("torch."))
            if dtype is None:
                raise CheckpointUnreadable(f"{file}: {name} is {tensor.dtype}, no dtype of a draft")
            header = TensorHeader(dtype, tuple(tensor.shape))
            found[name] = Stored(name, header, file, 0, _bytes_of(tensor))
    return found


def _load(file: Path) -> dict[str, Any]:
    try:
        import torch
    except ImportError as error:
        raise CheckpointUnreadable(
            f"{file} is pickled, and there is no torch in this environment to read it. "
            "Fix: run this with the python that serves"
        ) from error
    try:
        regular_size(file)
        with file.open("rb") as stream:
            refuse_lfs_pointer(file, stream.read(100))
        loaded = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except CheckpointUnreadable:
        raise
    except Exception as error:  # torch raises anything over a file it can't read
        reason = str(error).partition("\n")[0]
        raise CheckpointUnreadable(
            f"{file} can't be read as weights alone ({type(error).__name__}: {reason[:200]}). "
            "Fix: save the draft as safetensors where it was trained."
        ) from error
    if not isinstance(loaded, dict) or not all(
        isinstance(k, str) and isinstance(v, torch.Tensor) for k, v in loaded.items()
    ):
        raise CheckpointUnreadable(
            f"{file} holds other things than tensors by name. "
            "Fix: save the draft's state_dict as safetensors."
        )
    return loaded


def _bytes_of(tensor: Any) -> Callable[[], memoryview]:
    def view() -> memoryview:
        import torch

        flat = tensor.detach().contiguous().reshape(-1)
        return memoryview(flat.view(torch.uint8).numpy())

    return view
