"""What NVML says. The binding is a fake: this machine has no GPU and no driver."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from sglang_eagle3_patch.startup.gpus import gpu_lines


def fake_nvml(**replaced: object) -> SimpleNamespace:
    parts = {
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: 2,
        "nvmlDeviceGetHandleByIndex": lambda number: number,
        "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(
            used=70 * 2**30, total=80 * 2**30
        ),
        "nvmlDeviceGetUtilizationRates": lambda handle: SimpleNamespace(gpu=100 * handle),
        "nvmlDeviceGetPowerUsage": lambda handle: 91_400,
    }
    return SimpleNamespace(**{**parts, **replaced})


def test_one_line_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml())
    assert gpu_lines() == [
        "GPU 0: 0 % busy, 70.0 of 80.0 GiB used, 91 W",
        "GPU 1: 100 % busy, 70.0 of 80.0 GiB used, 91 W",
    ]


def test_a_gpu_that_fell_off_the_bus_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(_handle: int) -> None:
        raise RuntimeError("GPU is lost")

    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(nvmlDeviceGetMemoryInfo=lost))
    assert gpu_lines() == ["NVML: GPU is lost"]


def test_nothing_without_a_driver_or_a_binding(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_driver() -> None:
        raise OSError("libnvidia-ml.so.1: cannot open shared object file")

    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(nvmlInit=no_driver))
    assert gpu_lines() == []
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert gpu_lines() == []
