"""What startup-watch tells of the graph runners of this release.

The classes and the hooks on them are real. What they capture is not: a CPU has no CUDA graphs. So
the functions under the hooks give way to ones that note what the watch would tell right then.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
from collections.abc import Iterator
from typing import Any, cast

import wrapt

from sglang_eagle3_patch.hooks.parts import starting
from sglang_eagle3_patch.startup.stages import Progress

SIZES = (4, 2)
# The first that a release has: of the target, of its prefill, of the draft's decoding, its extend.
RUNNERS = {
    "target": (
        "model_executor.runner.decode_cuda_graph_runner.DecodeCudaGraphRunner",
        "model_executor.cuda_graph_runner.CudaGraphRunner",
    ),
    "prefill": (
        "model_executor.runner.prefill_cuda_graph_runner.PrefillCudaGraphRunner",
        "model_executor.piecewise_cuda_graph_runner.PiecewiseCudaGraphRunner",
    ),
    "draft": ("speculative.eagle_draft_cuda_graph_runner.EAGLEDraftCudaGraphRunner",),
    "draft-extend": (
        "speculative.eagle_draft_extend_cuda_graph_runner.EAGLEDraftExtendCudaGraphRunner",
    ),
    "cpu": ("model_executor.cpu_graph_runner.CPUGraphRunner",),
}
# Another one of the target's prefill, which only some releases have, with methods of its own.
BREAKABLE = "model_executor.breakable_cuda_graph_runner.BreakableCudaGraphRunner"
WHOLE = ("capture", "_capture_all")
ONE = ("capture_one_shape", "capture_one_batch_size", "_capture_one")


def observe() -> dict[str, list[str]]:
    """Return for each kind of runner what is told while its sizes are captured, and afterwards."""
    runners = {kind: _first(paths) for kind, paths in RUNNERS.items()}
    breakable = _imported(BREAKABLE)
    if breakable is not None:
        runners["breakable"] = breakable
    return {kind: _of_runner(runner) for kind, runner in runners.items()}


def _first(paths: tuple[str, ...]) -> type:
    found = next(filter(None, map(_imported, paths)), None)
    assert found is not None, f"this release has none of {paths}"
    return found


def _imported(path: str) -> type | None:
    module, _, name = f"sglang.srt.{path}".rpartition(".")
    with contextlib.suppress(ModuleNotFoundError):
        return cast(type, getattr(importlib.import_module(module), name))
    return None


def _of_runner(owner: type) -> list[str]:
    progress, told = Progress(), []
    whole, one = (next(n for n in names if hasattr(owner, n)) for names in (WHOLE, ONE))

    def capture(runner: Any) -> None:
        for size in SIZES:
            getattr(runner, one)(size, None)

    def capture_one(_runner: Any, _size: int, *_: Any) -> None:
        told.append(progress.text())

    starting.now = starting.Start(progress, cast(Any, None))
    try:
        with (
            under_the_hook(_hooked(owner, whole), capture),
            under_the_hook(_hooked(owner, one), capture_one),
        ):
            getattr(owner.__new__(owner), whole)()
    finally:
        starting.now = None
    return [*told, progress.text()]


def _hooked(owner: type, name: str) -> Any:
    """The wrapper around a method: of the class, or of the one whose method it calls."""
    for candidate in (*owner.__mro__, *_first(RUNNERS["target"]).__mro__):
        found = inspect.getattr_static(candidate, name, None)
        if isinstance(found, wrapt.FunctionWrapper):
            return found
    raise AssertionError(f"{owner.__name__}.{name} is not hooked")


@contextlib.contextmanager
def under_the_hook(wrapper: Any, stub: Any) -> Iterator[None]:
    original = wrapper.__wrapped__
    wrapper.__wrapped__ = stub
    try:
        yield
    finally:
        wrapper.__wrapped__ = original
