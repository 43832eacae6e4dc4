"""Keeps the stand-in out of any run that could take it for the real kernels."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch

Op = TypeVar("Op", bound=Callable[..., Any])


def refuse_gpu_machine() -> None:
    """Raise RuntimeError, naming the device, when torch can use a GPU here."""
    if torch.cuda.is_available():
        raise RuntimeError(
            f"the CPU stand-in for sgl-kernel was imported where torch can use "
            f"{torch.cuda.get_device_name()} (cuda:{torch.cuda.current_device()}). Set "
            "CUDA_VISIBLE_DEVICES= (empty) to run the CPU tests here, or take the stand-in off "
            "PYTHONPATH to serve on the GPU with the real sgl-kernel."
        )


def cpu_op(op: Op) -> Op:
    """Wrap `op` to raise RuntimeError, naming argument and device, for a tensor not on the CPU."""

    @functools.wraps(op)
    def checked(*args: Any, **kwargs: Any) -> Any:
        for value in (*args, *kwargs.values()):
            if isinstance(value, torch.Tensor) and value.device.type != "cpu":
                _refuse_device(op, args, kwargs)
        return op(*args, **kwargs)

    return cast(Op, checked)


def _refuse_device(op: Callable[..., Any], args: Any, kwargs: Any) -> None:
    bound = inspect.signature(op).bind(*args, **kwargs).arguments
    misplaced = [
        f"{name} on {value.device}"
        for name, value in bound.items()
        if isinstance(value, torch.Tensor) and value.device.type != "cpu"
    ]
    raise RuntimeError(
        f"sgl_kernel.{op.__name__}: {', '.join(misplaced)}. This is the CPU stand-in; serve on "
        "that device with the real sgl-kernel, or start the server with --device cpu."
    )


def require(condition: bool, op: str, problem: str) -> None:
    """Raise ValueError for arguments that break the op's contract: a caller's mistake."""
    if not condition:
        raise ValueError(f"sgl_kernel.{op}: {problem}")
