"""Launches SGLang as its own launcher does; one signal takes the hooks out, another puts them in.

    python -m bench.hooks_in_turn [SGLang's arguments]

`multiprocessing` imports the main module in every process it spawns, so a scheduler answers too.
"""

from __future__ import annotations

import runpy
import signal
from types import FrameType

import sglang_eagle3_patch

OUT, IN = signal.SIGRTMIN + 3, signal.SIGRTMIN + 4  # used by nobody else here


def answer(number: int, _frame: FrameType | None) -> None:
    """Take the hooks of this process out, or put them in."""
    if number == IN:
        sglang_eagle3_patch.activate()
    else:
        sglang_eagle3_patch.deactivate()


if __name__ in ("__main__", "__mp_main__"):
    for asked in (OUT, IN):
        signal.signal(asked, answer)

if __name__ == "__main__":
    # `sys.modules["__main__"]` stays this module: it is what the spawned processes import.
    runpy.run_module("sglang.launch_server", run_name="__main__", alter_sys=False)
