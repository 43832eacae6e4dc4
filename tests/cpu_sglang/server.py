"""A real SGLang server on the CPU: start, wait until ready, generate, stop.

Each server is the leader of its own process group, so that stopping it stops its schedulers too
and nobody else's. Its output goes to a file, which is kept when something fails.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import random
import re
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cpu_sglang.environments import Environment
from tests.cpu_sglang.pair.forms import TARGET
from tests.cpu_sglang.pair.outlook import without_trailing_zeros

STARTUP_SECONDS = 300
STOCK = "sglang.launch_server"
OURS = "sglang_eagle3_patch.launch_server"
SERVE = "sglang serve"
VARIABLE = "SGLANG_EAGLE3_PATCH"
_PR_SET_PDEATHSIG = 1
_prctl = ctypes.CDLL(None).prctl  # looked up here: a forked child of threads may not import
_PORTS = range(20000, 30000)


class ServerDied(RuntimeError):
    """The server ended before it was ready; `log` is all it said."""

    def __init__(self, log: str, status: int | None) -> None:
        self.log, self.status = log, status
        super().__init__(f"exit status {status}; the log ends:\n{log[-4000:]}")


@dataclass(frozen=True)
class Generation:
    """One answer, with SGLang's own word on speculation."""

    text: str
    tokens: int
    verify_steps: int
    histogram: tuple[int, ...]
    proposed: int


@dataclass(frozen=True)
class Served:
    """What one server made of a list of prompts, asked one after the other."""

    generations: tuple[Generation, ...]
    seconds: float

    @property
    def texts(self) -> list[str]:
        return [generation.text for generation in self.generations]

    @property
    def histograms(self) -> list[list[int]]:
        """Verify steps that accepted 0, 1, .. drafts, up to the most accepted, for each prompt."""
        return [list(generation.histogram) for generation in self.generations]

    @property
    def tokens_per_second(self) -> float:
        return sum(generation.tokens for generation in self.generations) / self.seconds

    @property
    def accept_length(self) -> float | None:
        """Tokens per verify step as SGLang reports it, bonus included; None without speculation."""
        steps = sum(generation.verify_steps for generation in self.generations)
        return sum(g.tokens for g in self.generations) / steps if steps else None

    @property
    def accept_rate(self) -> float | None:
        """Accepted / proposed drafts; None without speculation."""
        proposed = sum(generation.proposed for generation in self.generations)
        if not proposed:
            return None
        return sum(n * count for h in self.histograms for n, count in enumerate(h)) / proposed


@dataclass
class Server:
    """A running server."""

    process: subprocess.Popen[bytes]
    port: int
    log_file: Path

    @property
    def log(self) -> str:
        return self.log_file.read_text(encoding="utf-8", errors="replace")

    def wait_until_ready(self) -> None:
        """Return once the server answers. Raises `ServerDied` when it ends or takes too long."""
        deadline = time.monotonic() + STARTUP_SECONDS
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise ServerDied(self.log, self.process.returncode)
            health = f"http://127.0.0.1:{self.port}/health"
            with contextlib.suppress(OSError), urllib.request.urlopen(health, timeout=5):
                return
            time.sleep(0.2)
        raise ServerDied(self.log, None)

    def post(self, path: str, body: Any, timeout: float = 300) -> Any:
        """POST JSON and return the JSON answer."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            text = answer.read().decode()
        return json.loads(text) if text.startswith(("{", "[")) else text

    def generate(self, prompts: Sequence[str], new_tokens: int) -> Served:
        """Continue each prompt greedily by exactly `new_tokens` tokens, one after the other."""
        self._ask(prompts[0], 4)  # the first request compiles and warms up
        started = time.monotonic()
        answers = tuple(self._ask(prompt, new_tokens) for prompt in prompts)
        return Served(answers, time.monotonic() - started)

    def generate_at_once(self, prompts: Sequence[str], new_tokens: int) -> Served:
        """Continue all prompts greedily as one batch, by exactly `new_tokens` tokens each."""
        started = time.monotonic()
        sampling = {"temperature": 0, "max_new_tokens": new_tokens, "ignore_eos": True}
        body = {"text": list(prompts), "sampling_params": sampling}
        answers = tuple(read_answer(answer) for answer in self.post("/generate", body))
        return Served(answers, time.monotonic() - started)

    def _ask(self, prompt: str, new_tokens: int) -> Generation:
        sampling = {"temperature": 0, "max_new_tokens": new_tokens, "ignore_eos": True}
        answer = self.post("/generate", {"text": prompt, "sampling_params": sampling})
        return read_answer(answer)

    def settle(self) -> None:
        """Return once nothing more is logged: an answer leaves before its last step is told."""
        size = -1
        while size != (size := self.log_file.stat().st_size):
            time.sleep(0.5)

    def stop(self) -> None:
        """End the server and every process it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


_running: dict[int, Server] = {}


def read_answer(answer: Mapping[str, Any]) -> Generation:
    """Return what one answer of SGLang's says, whichever release wrote it."""
    meta = answer["meta_info"]
    # The field was renamed at 0.5.12, and so were the counts.
    histogram = meta.get("spec_correct_drafts_histogram", meta.get("spec_accept_histogram"))
    proposed = meta.get("spec_num_proposed_drafts", meta.get("spec_draft_token_num"))
    return Generation(
        text=answer["text"],
        tokens=meta["completion_tokens"],
        verify_steps=meta.get("spec_verify_ct") or 0,
        histogram=tuple(without_trailing_zeros(histogram or [])),
        proposed=proposed or 0,
    )


def speculation(
    draft: Path | None,
    algorithm: str = "EAGLE3",
    *,
    steps: int = 3,
    topk: int = 1,
    draft_tokens: int = 4,
) -> list[str]:
    """Return the launch arguments that turn speculation on; [] without a draft."""
    if draft is None:
        return []
    return [
        *("--speculative-algorithm", algorithm),
        *("--speculative-draft-model-path", str(draft)),
        *("--speculative-num-steps", str(steps)),
        *("--speculative-eagle-topk", str(topk)),
        *("--speculative-num-draft-tokens", str(draft_tokens)),
    ]


@contextlib.contextmanager
def start(
    environment: Environment,
    log_file: Path,
    arguments: Sequence[str] = (),
    *,
    launcher: str = STOCK,
    variables: Mapping[str, str] | None = None,
    target: Path = TARGET,
) -> Iterator[Server]:
    """Start a server for `target`; it may not be ready yet. Stopped on leaving, whatever happens.

    `variables` are put on top of the environment's; our own are never inherited.
    """
    port = free_port()
    module = ("-m", launcher)
    if launcher == SERVE:
        module = (str(environment.python.with_name("sglang")), "serve")
    command = [
        *(str(environment.python), *module),
        *("--model-path", str(target), "--trust-remote-code"),
        *("--host", "127.0.0.1", "--port", str(port)),
        *arguments,
    ]
    log_file.parent.mkdir(parents=True, exist_ok=True)
    with log_file.open("wb") as log:
        process = subprocess.Popen(
            command,
            env=process_variables(environment, variables or {}),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_die_with_parent,
            cwd=log_file.parent,
        )
    server = Server(process, port, log_file)
    _running[process.pid] = server
    try:
        yield server
    finally:
        server.stop()
        del _running[process.pid]


def stop_all() -> None:
    """End every server that runs, so that threads that wait for one go on."""
    for server in list(_running.values()):
        server.stop()


def process_variables(environment: Environment, variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a process: the environment's, and of ours only those given."""
    whole = environment.process_environment()
    return {k: v for k, v in whole.items() if not k.startswith(VARIABLE)} | dict(variables)


def _die_with_parent() -> None:
    """Have the kernel end this process when whoever started it is gone, killed included."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def telling_lines(log: str) -> list[str]:
    """Return the lines of a server's log by which one could notice that its draft is unwell."""
    telling = (
        r"midlayer|layers\.0|\bfc\b|hidden.state|unexpected|unused|uninitiali|missing|mismatch"
    )
    return [line for line in log.splitlines() if re.search(telling, line) and not _is_noise(line)]


def _is_noise(line: str) -> bool:
    """Whether a line says the same of every server: its arguments, imports, tokenizer."""
    noise = ("server_args=", "Ignore import error", "Tokenizer for")
    return any(word in line for word in noise)


def free_port() -> int:
    """Return a port of the loopback interface that nobody listens on.

    Below the range that the kernel gives to clients, and low enough for what SGLang adds to it
    (0.5.11 adds more than 20,000 for a port of its own).
    """
    for port in random.sample(_PORTS, 100):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise RuntimeError(f"no free port found among {_PORTS}")
