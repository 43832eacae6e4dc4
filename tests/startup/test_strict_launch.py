"""Strict: a patch that can't be applied ends the launch before another process is started."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.cpu_sglang import environments, server
from tests.cpu_sglang.pair import forms

# A release whose worker lost the method that fc-guard relies on, then the launcher as `python -m`.
# The variables come late, or the hook would be in before the method is lost.
LAUNCH = """
import os, runpy, sys
import sglang.srt.speculative.eagle_worker_v2 as worker
from sglang_eagle3_patch import _startup
del worker.EagleDraftWorker.init_lm_head
module, target, port, *variables = sys.argv[1:]
os.environ.update(variable.split("=") for variable in variables)
_startup.run()
sys.argv = ["launch_server", "--model-path", target, "--port", port]
runpy.run_module(module, run_name="__main__", alter_sys=False)
"""


@pytest.mark.parametrize(
    ("module", "variables"),
    [
        (server.OURS, []),
        (server.STOCK, [f"{server.VARIABLE}=1", f"{server.VARIABLE}_STRICT=1"]),
    ],
)
def test_a_lost_touch_point_ends_the_launch(module: str, variables: list[str]) -> None:
    port = str(server.free_port())
    finished = subprocess.run(
        [sys.executable, "-c", LAUNCH, module, str(forms.TARGET), port, *variables],
        env=server.process_variables(environments.ensure(), {}),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert finished.returncode == 1, finished.stderr[-4000:]
    assert (
        "fc-guard: unsupported: sglang.srt.speculative.eagle_worker_v2 has no "
        "EagleDraftWorker.init_lm_head. Fix: leave it out with SGLANG_EAGLE3_PATCH=-fc-guard."
    ) in finished.stderr
    assert "server_args=" not in finished.stdout + finished.stderr
