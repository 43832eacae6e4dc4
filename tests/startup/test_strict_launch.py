"""What ends a launch before another process is started: a patch that can't be applied, an error of
the doctor's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cpu_sglang import environments, server
from tests.cpu_sglang.pair import forms
from tests.unit.doctor.cases import tensors
from tests.unit.doctor.folders import write_draft, write_target

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


def judged(place: Path, *flags: str) -> tuple[subprocess.CompletedProcess[str], set[str]]:
    """Launch a draft that lacks a tensor; return how that ended and all modules imported."""
    draft = write_draft(
        place / "draft", headers=tensors(**{"midlayer.self_attn.k_proj.weight": None})
    )
    finished = subprocess.run(
        [
            *(sys.executable, "-X", "importtime", "-m", server.OURS, *flags),
            *("--model-path", str(write_target(place / "target"))),
            *server.speculation(draft),
        ],
        env=server.process_variables(environments.ensure(), {}),
        capture_output=True,
        text=True,
        timeout=120,
    )
    lines = finished.stderr.splitlines()
    imported = {line.split("|")[-1].strip() for line in lines if line.startswith("import time:")}
    assert "sglang_eagle3_patch.preflight" in imported
    return finished, imported


def test_an_error_of_the_doctor_ends_the_launch_before_torch_is_loaded(tmp_path: Path) -> None:
    finished, imported = judged(tmp_path)
    assert finished.returncode == 1
    assert "error E3-names-missing: 1 tensor missing" in finished.stderr
    assert "--eagle3-no-preflight" in finished.stderr
    assert not {"sglang", "torch", "transformers"} & imported


def test_a_dry_run_loads_no_more(tmp_path: Path) -> None:
    finished, imported = judged(tmp_path, "--eagle3-dry-run")
    assert finished.returncode == 1
    assert "error E3-names-missing: 1 tensor missing" in finished.stdout
    assert f"-m {server.STOCK} --model-path " in finished.stdout
    assert not {"sglang", "torch", "transformers"} & imported
