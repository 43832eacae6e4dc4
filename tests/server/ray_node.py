"""A Ray node on the loopback interface for a server to use, started before it.

The node gets none of the server's variables: SGLang's actors are started by the node, and what
they know of the server is what the server hands on.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil

from tests.cpu_sglang import server
from tests.cpu_sglang.environments import Environment

SCRIPT = Path(__file__).with_name("keep_ray.py")
# Ray gives each scheduler a GPU, here in name only: numbers by which CUDA finds none.
GPUS = range(98, 100)
ENDS_WITHIN = 30  # seconds


@contextlib.contextmanager
def running(environment: Environment, log_file: Path) -> Iterator[dict[str, str]]:
    """Start a node and yield the variables with which a server uses it.

    Raises RuntimeError when it does not start, or when a process of it outlives it.
    """
    variables = {
        # Ray replaces 127.0.0.1 by the machine's own address wherever it thinks of clusters.
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        # Given one, Ray makes none in the user's home.
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_DEDUP_LOGS": "0",
        "CUDA_VISIBLE_DEVICES": ",".join(map(str, GPUS)),
        # Two ranks: by the number of its GPU each finds its cores, and NCCL must not be found.
        "SGLANG_NCCL_SO_PATH": "none",
        "SGLANG_CPU_OMP_THREADS_BIND": "|".join(["0"] * GPUS.stop),
    }
    with contextlib.ExitStack() as stack:
        # Sockets lie in it, whose paths can't be long.
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="ray-"))
        log = stack.enter_context(log_file.open("wb"))
        process = subprocess.Popen(
            [str(environment.python), str(SCRIPT), folder, str(len(GPUS))],
            env=server.process_variables(environment, variables),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
            cwd=log_file.parent,
        )
        stack.callback(_end, process)
        assert process.stdout is not None
        address = process.stdout.readline().decode().strip()
        if not address:
            raise RuntimeError(f"Ray did not start:\n{log_file.read_text()[-4000:]}")
        yield {**variables, "RAY_ADDRESS": address}


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the node and all that it started. Raises RuntimeError if some of it would not end."""
    below: list[psutil.Process] = []
    with contextlib.suppress(psutil.NoSuchProcess):
        below = psutil.Process(process.pid).children(recursive=True)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.communicate(timeout=ENDS_WITHIN)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    _, left = psutil.wait_procs(below, timeout=ENDS_WITHIN)
    for survivor in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            survivor.kill()
    if left:
        raise RuntimeError(f"these outlived their Ray node: {left}")
