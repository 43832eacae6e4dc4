"""The stand-in loads nowhere but in the project's own environments, and never beside a GPU."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType

import pytest
import torch
from pytest_mock import MockerFixture

# No GPU is at hand where these tests run: torch's own answers are replaced by those of one.
PRETEND_GPU = """
import torch
torch.cuda.is_available = lambda: True
torch.cuda.get_device_name = lambda *args: "Test GPU 9000"
torch.cuda.current_device = lambda: 3
"""


def python(code: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120
    )


@pytest.mark.parametrize("value", [None, "", "cuda"])
def test_import_is_refused_without_a_route(
    standin_environment: dict[str, str], value: str | None
) -> None:
    environment = dict(standin_environment)
    if value is not None:
        environment["EAGLE3_CPU_STANDIN"] = value
    result = python("import sgl_kernel", environment)
    assert result.returncode == 1
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith(f"ImportError: EAGLE3_CPU_STANDIN={value or ''!r}: ")
    assert "./launch.sh run" in last


def test_nothing_is_hooked_without_the_variable(standin_environment: dict[str, str]) -> None:
    result = python("import sys; print('cpu_standin' in sys.modules)", standin_environment)
    assert (result.returncode, result.stdout.strip()) == (0, "False")


@pytest.mark.parametrize("route", ["cpu", "triton"])
def test_the_variable_starts_hooks_without_importing_torch(
    standin_environment: dict[str, str], route: str
) -> None:
    code = "import sys; print('cpu_standin' in sys.modules, 'torch' in sys.modules)"
    result = python(code, standin_environment | {"EAGLE3_CPU_STANDIN": route})
    assert (result.returncode, result.stdout.strip()) == (0, "True False"), result.stderr


def test_import_is_refused_where_torch_can_use_a_gpu(standin_environment: dict[str, str]) -> None:
    code = f"{PRETEND_GPU}\nimport sgl_kernel"
    result = python(code, standin_environment | {"EAGLE3_CPU_STANDIN": "cpu"})
    assert result.returncode == 1
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith("RuntimeError: ")
    assert "Test GPU 9000 (cuda:3)" in last
    assert "CUDA_VISIBLE_DEVICES=" in last


def test_the_gpu_guard_passes_where_there_is_none(
    sgl_kernel: ModuleType, mocker: MockerFixture
) -> None:
    mocker.patch("torch.cuda.is_available", return_value=False)
    sgl_kernel.guard.refuse_gpu_machine()


def test_an_op_refuses_a_tensor_on_another_device(sgl_kernel: ModuleType) -> None:
    """The `meta` device stands for any device that isn't the CPU."""
    with pytest.raises(RuntimeError, match="fill_bonus_tokens_cpu: bonus_tokens on meta"):
        sgl_kernel.fill_bonus_tokens_cpu(
            torch.zeros(4, dtype=torch.int32),
            torch.ones(1, dtype=torch.int32),
            bonus_tokens=torch.zeros(1, dtype=torch.int32, device="meta"),
            accept_stride=4,
        )


def test_every_op_is_guarded(sgl_kernel: ModuleType) -> None:
    ops = [getattr(sgl_kernel, name) for name in sgl_kernel.__all__]
    ops += [
        sgl_kernel.attention.decode_attention_cpu,
        sgl_kernel.attention.extend_attention_cpu,
    ]
    elsewhere = torch.zeros(1, device="meta")
    for op in ops:
        count = op.__wrapped__.__code__.co_argcount
        with pytest.raises(RuntimeError, match=f"{op.__name__}: .* on meta"):
            op(*[elsewhere] * count)


def test_registered_ops_meet_the_same_refusal(sgl_kernel: ModuleType) -> None:
    elsewhere = torch.zeros(1, device="meta")
    scales = (1.0, 1.0) if sgl_kernel.registration.with_kv_scales() else ()
    with pytest.raises(RuntimeError, match="decode_attention_cpu: query on meta"):
        torch.ops.sgl_kernel.decode_attention_cpu(
            *[elsewhere] * 3, *scales, *[elsewhere] * 8, 1.0, 0.0, False, 0, None, None
        )
