"""Fills the server arguments a CPU needs, where the user gave none.

A value counts as the user's when it differs from the field's default; a default typed out on the
command line (`--dtype auto`) looks the same as one left alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import wrapt

from cpu_standin.route import Route

# Of the CPU backends only these verify draft trees.
ATTENTION_BACKEND = {"cpu": "intel_amx", "triton": "triton"}


def fields_for(route: Route) -> dict[str, Any]:
    """Return field name and value of everything a CPU server needs on `route`."""
    return {
        "device": "cpu",
        "attention_backend": ATTENTION_BACKEND[route],
        # Older releases know no graph runner for a CPU and end with KeyError: 'cpu'.
        "disable_cuda_graph": True,
        # The cache would else take a share of the host's memory.
        "max_total_tokens": 4096,
        # "auto" turns a float32 checkpoint into float16, and then near-ties decide the text.
        "dtype": "float32",
        # There is nothing to warm up, and it would be the first request in every count.
        "skip_server_warmup": True,
    }


def declared_defaults(arguments: type) -> dict[str, Any]:
    """Return the default of each field of a dataclass or msgspec struct."""
    if dataclasses.is_dataclass(arguments):
        return {field.name: field.default for field in dataclasses.fields(arguments)}
    import msgspec

    return {field.name: field.default for field in msgspec.structs.fields(arguments)}


def fill(server_args: Any, route: Route) -> None:
    """Assign the CPU's values to the fields of `server_args` that stand at their default."""
    defaults = declared_defaults(type(server_args))
    for name, value in fields_for(route).items():
        if getattr(server_args, name) == defaults[name]:
            setattr(server_args, name, value)


def register(route: Route) -> None:
    def fill_then_resolve(
        wrapped: Callable[..., Any], server_args: Any, args: Any, kwargs: Any
    ) -> Any:
        if not getattr(server_args, "_resolution_finished", False):
            fill(server_args, route)
        return wrapped(*args, **kwargs)

    @wrapt.when_imported("sglang.srt.server_args")
    def _(module: Any) -> None:
        # Newer releases resolve in a step of their own, which `launch_server`, `serve` and
        # `Engine` all take and during which fields are sealed; older ones while constructing.
        late = hasattr(module.ServerArgs, "resolve_once")
        step = "resolve_once" if late else "__post_init__"
        wrapt.wrap_function_wrapper(module, f"ServerArgs.{step}", fill_then_resolve)
