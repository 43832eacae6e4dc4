"""What NVML says of the GPUs of this node, where its Python binding is installed."""

from __future__ import annotations

import importlib
from typing import Any


def gpu_lines() -> list[str]:
    """Return one line for each GPU: busy or not, memory, power; [] without NVML."""
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
    except Exception:  # noqa: BLE001 - no binding, no driver, no permission
        return []
    try:
        return [_line(nvml, number) for number in range(nvml.nvmlDeviceGetCount())]
    except Exception as error:  # noqa: BLE001 - a GPU that fell off the bus is worth a line
        return [f"NVML: {error}"]
    finally:
        nvml.nvmlShutdown()


def _line(nvml: Any, number: int) -> str:
    handle = nvml.nvmlDeviceGetHandleByIndex(number)
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    busy = nvml.nvmlDeviceGetUtilizationRates(handle).gpu
    watts = nvml.nvmlDeviceGetPowerUsage(handle) / 1000
    used, total = memory.used / 2**30, memory.total / 2**30
    return f"GPU {number}: {busy} % busy, {used:.1f} of {total:.1f} GiB used, {watts:.0f} W"
