"""What the stand-in sets and wraps in SGLang, on classes of the two shapes SGLang has had."""

from __future__ import annotations

import importlib.metadata
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from pytest_mock import MockerFixture


@dataclass
class DataclassArgs:
    """The fields in question, with the defaults of SGLang 0.5.9."""

    model_path: str
    device: str | None = None
    attention_backend: str | None = None
    disable_cuda_graph: bool = False
    max_total_tokens: int | None = None
    dtype: str = "auto"
    skip_server_warmup: bool = False
    disable_overlap_schedule: bool = False


def struct_args(model_path: str, **given: Any) -> Any:
    """The same as a msgspec struct, which SGLang's record is from 0.5.20 on."""
    msgspec = pytest.importorskip("msgspec")
    fields = [("model_path", str)]
    fields += [
        (name, Any, field.default)
        for name, field in DataclassArgs.__dataclass_fields__.items()
        if name != "model_path"
    ]
    return msgspec.defstruct("StructArgs", fields)(model_path, **given)


@pytest.mark.parametrize("make", [DataclassArgs, struct_args])
@pytest.mark.parametrize(("route", "backend"), [("cpu", "intel_amx"), ("triton", "triton")])
def test_a_bare_command_line_gets_everything_a_cpu_needs(
    standin: SimpleNamespace, make: Any, route: str, backend: str
) -> None:
    arguments = make("target")
    standin.server_defaults.fill(arguments, route)
    assert {name: getattr(arguments, name) for name in DataclassArgs.__dataclass_fields__} == {
        "model_path": "target",
        "device": "cpu",
        "attention_backend": backend,
        "disable_cuda_graph": True,
        "max_total_tokens": 4096,
        "dtype": "float32",
        "skip_server_warmup": True,
        "disable_overlap_schedule": False,
    }


@pytest.mark.parametrize("make", [DataclassArgs, struct_args])
def test_what_the_user_gives_stays(standin: SimpleNamespace, make: Any) -> None:
    given = {
        "attention_backend": "torch_native",
        "dtype": "bfloat16",
        "max_total_tokens": 512,
    }
    arguments = make("target", **given)
    standin.server_defaults.fill(arguments, "cpu")
    assert {name: getattr(arguments, name) for name in given} == given
    assert arguments.device == "cpu"


@pytest.mark.parametrize(
    ("version", "release", "scales"),
    [
        ("0.5.9", (0, 5, 9), False),
        ("0.5.12.post1", (0, 5, 12), False),
        ("0.5.19", (0, 5, 19), False),
        ("0.5.20", (0, 5, 20), True),
        ("0.5.23", (0, 5, 23), True),
        ("0.6.0rc1", (0, 6, 0), True),
    ],
)
def test_the_release_decides_the_schema_of_the_attention_ops(
    standin: SimpleNamespace,
    mocker: MockerFixture,
    version: str,
    release: tuple[int, int, int],
    scales: bool,
) -> None:
    mocker.patch("importlib.metadata.version", return_value=version)
    assert standin.route.sglang_release() == release
    assert standin.sgl_kernel.registration.with_kv_scales() is scales


def test_without_sglang_the_newest_schema_is_taken(
    standin: SimpleNamespace, mocker: MockerFixture
) -> None:
    mocker.patch(
        "importlib.metadata.version", side_effect=importlib.metadata.PackageNotFoundError("sglang")
    )
    assert standin.sgl_kernel.registration.with_kv_scales() is True
