"""Our launcher with a fault planted in the capture of draft graphs; `EAGLE3_FAULT` names it.
With `EAGLE3_WITHOUT_PY_SPY` the watch finds no py-spy, as where none is installed.

A CPU captures no graphs. So the worker's own `init_cuda_graphs` goes on to build the release's real
graph runner without its `__init__`, and to have it captured; what is captured in it is the fault.
The hooks are put in over both afterwards, as over the real ones. Spawned processes import this
module again, as `__mp_main__`.
"""

from __future__ import annotations

import datetime
import os
import runpy
import time
from types import ModuleType
from typing import Any

import wrapt

VARIABLE = "EAGLE3_FAULT"
WITHOUT_PY_SPY = "EAGLE3_WITHOUT_PY_SPY"
SIZES = (4, 2, 1)
SECONDS = 7.0  # that one size takes: longer than between two lines of progress
WAITS = 16.0  # for a rank that does not come, before the collective gives up


def slow(_size: int) -> None:
    """Take longer in all than a stall is told after, but not for one size."""
    time.sleep(SECONDS)


def deadlock(size: int) -> None:
    """Have the first rank wait in a collective that the second one leaves out."""
    import torch.distributed

    if size == SIZES[1] and torch.distributed.get_rank() == 0:
        from sglang.srt.distributed.parallel_state import get_tp_group

        patience = datetime.timedelta(seconds=WAITS)
        torch.distributed.monitored_barrier(get_tp_group().cpu_group, timeout=patience)


def crash(size: int) -> None:
    """Fail as a capture does."""
    if size == SIZES[1]:
        raise RuntimeError("planted: operation not permitted when stream is capturing")


FAULTS = {function.__name__: function for function in (slow, deadlock, crash)}


def plant_in_runners(module: ModuleType) -> None:
    def capture(runner: Any) -> None:
        for size in SIZES:
            runner.capture_one_shape(size, None)

    module.DecodeCudaGraphRunner.capture = capture


def plant_in_draft_runner(module: ModuleType) -> None:
    fault = FAULTS[os.environ[VARIABLE]]

    def capture_one_shape(_runner: Any, size: int, _forward: Any) -> None:
        fault(size)

    module.EAGLEDraftCudaGraphRunner.capture_one_shape = capture_one_shape


def plant_in_worker(module: ModuleType) -> None:
    stock = module.EagleDraftWorker.init_cuda_graphs

    def init_cuda_graphs(worker: Any) -> None:
        stock(worker)
        runner = object.__new__(module.EAGLEDraftCudaGraphRunner)
        runner.capture()

    module.EagleDraftWorker.init_cuda_graphs = init_cuda_graphs


def hide_py_spy(module: ModuleType) -> None:
    module._py_spy = lambda: None


if __name__ in ("__main__", "__mp_main__"):
    if os.environ.get(WITHOUT_PY_SPY):
        wrapt.register_post_import_hook(hide_py_spy, "sglang_eagle3_patch.startup.stacks")
    # Before the hooks, whose own post-import hooks come after these.
    for name, plant in (
        ("model_executor.runner.decode_cuda_graph_runner", plant_in_runners),
        ("speculative.eagle_draft_cuda_graph_runner", plant_in_draft_runner),
        ("speculative.eagle_worker_v2", plant_in_worker),
    ):
        wrapt.register_post_import_hook(plant, f"sglang.srt.{name}")
    runpy.run_module("sglang_eagle3_patch.launch_server", run_name=__name__, alter_sys=False)
