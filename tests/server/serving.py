"""Serves a case of the table: its draft is written, its server started, asked and stopped."""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

from sglang_eagle3_patch.acceptance.trace_reader import Trace, read_trace
from sglang_eagle3_patch.engine import selfreport
from tests.cpu_sglang import environments, server
from tests.cpu_sglang.environments import Environment
from tests.cpu_sglang.pair import forms
from tests.patches import trees
from tests.server import ray_node
from tests.server.cases import OUTLOOK, PROMPTS, TRACED, ServerCase

STATUS_DIR = f"{server.VARIABLE}_STATUS_DIR"


@dataclass(frozen=True)
class Outcome:
    """What became of a server. `served` is None when it did not start."""

    served: server.Served | None
    log: str
    at_once: server.Served | None = None  # the same prompts again, as one batch
    reports: tuple[dict[str, Any], ...] = ()  # of its processes, while it ran or before it died
    status: dict[str, Any] = field(default_factory=dict)  # what `sglang-eagle3 status` told
    exit_status: int | None = None  # of a server that ended before it was ready
    told: Any = None  # what the case's own questions gave
    trace: Trace | None = None  # of a server that writes one

    @property
    def histogram(self) -> list[int]:
        """Verify steps that accepted 0, 1, .. drafts, over all prompts."""
        assert self.served is not None, self.log[-4000:]
        return [sum(column) for column in zip_longest(*self.served.histograms, fillvalue=0)]


def draft_folder(case: ServerCase, folder: Path) -> Path:
    """Return the folder of the draft that the server of `case` below `folder` is given."""
    if isinstance(case.draft, Path):
        return case.draft
    return folder / ("draft" if case.converted is None else "converted")


def convert(case: ServerCase, environment: Environment, folder: Path) -> Path:
    """Have the command line convert the draft for the case's release."""
    out = draft_folder(case, folder)
    command = [environment.python.with_name("sglang-eagle3"), "convert", folder / "draft", out]
    finished = subprocess.run(
        [*command, "--sglang-version", case.release, "--verify", *(case.converted or ())],
        env=server.process_variables(environment, {}),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return out


def serve(case: ServerCase, folder: Path) -> Outcome:
    """Start the server of `case` below `folder`, ask it, stop it."""
    environment = environments.ensure(case.release)
    if case.tree:
        environment = trees.patched_once(environment, folder.parent / "trees")
    draft = case.draft
    if callable(draft):
        draft = forms.write(folder / "draft", *draft())
    if case.converted is not None:
        draft = convert(case, environment, folder)
    if case.engine:
        assert draft is not None
        return ask_engine(case, environment, draft, folder)
    arguments = list(case.arguments)
    if draft is not None:
        assert case.algorithm is not None
        arguments += server.speculation(
            draft, case.algorithm, topk=case.topk, draft_tokens=case.draft_tokens
        )
    elif case.algorithm is not None:
        arguments += ["--speculative-algorithm", case.algorithm]
        arguments += ["--speculative-num-draft-tokens", "4"]
    prompts = OUTLOOK.prompts[:PROMPTS]
    with contextlib.ExitStack() as stack:
        own = {k: v.replace("{folder}", str(folder)) for k, v in case.variables.items()}
        variables = {STATUS_DIR: str(folder / "status"), **own}
        if case.ray:
            environment = environments.with_ray(environment)
            node = ray_node.running(environment, folder / "ray.log")
            variables |= stack.enter_context(node)
        running = stack.enter_context(
            server.start(
                environment,
                folder / "server.log",
                arguments,
                launcher=case.launcher,
                variables=variables,
            )
        )
        try:
            running.wait_until_ready()
        except server.ServerDied as died:
            reports = tuple(selfreport.read_all(folder / "status"))
            return Outcome(None, died.log, reports=reports, exit_status=died.status)
        if case.asks is not None:
            return Outcome(None, running.log, told=case.asks(running, folder))
        served = running.generate(prompts, OUTLOOK.new_tokens)
        at_once = running.generate_at_once(prompts, OUTLOOK.new_tokens)
        running.settle()
        reports = tuple(selfreport.read_all(folder / "status"))
        status = ask_status(environment, running) if case.ask_status else {}
        trace = None
        if TRACED.items() <= case.variables.items():
            time.sleep(1)  # it is a second behind, at most
            trace = read_trace([folder / "trace.jsonl"])
        return Outcome(served, running.log, at_once, reports, status, trace=trace)


def ask_status(
    environment: Environment, running: server.Server, exit_status: int = 0
) -> dict[str, Any]:
    """Return what the command line tells of a running server."""
    command = [environment.python.with_name("sglang-eagle3"), "status", "--json"]
    finished = subprocess.run(
        [*command, "--server", f"127.0.0.1:{running.port}"],
        env=server.process_variables(environment, {}),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert finished.returncode == exit_status, finished.stdout + finished.stderr
    told: dict[str, Any] = json.loads(finished.stdout)
    return told


def ask_engine(case: ServerCase, environment: Environment, draft: Path, folder: Path) -> Outcome:
    """Have a script ask `sgl.Engine` the same prompts, with only the variables set."""
    prompts, answers = OUTLOOK.prompts[:PROMPTS], folder / "answers.json"
    script = Path(__file__).with_name("ask_engine.py")
    command = [environment.python, script, forms.TARGET, draft, answers, *prompts]
    finished = subprocess.run(
        [str(part) for part in command],
        env=server.process_variables(environment, case.variables),
        capture_output=True,
        text=True,
        timeout=server.STARTUP_SECONDS,
        cwd=folder,
    )
    log = finished.stdout + finished.stderr
    if not answers.exists():
        return Outcome(None, log)
    generations = tuple(server.read_answer(answer) for answer in json.loads(answers.read_text()))
    return Outcome(server.Served(generations, seconds=1.0), log)
