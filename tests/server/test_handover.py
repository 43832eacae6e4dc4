"""Launches that are handed over to SGLang's own code for more than a plain server.

`sglang serve` is the launcher of some cases of the table. Two nodes, which are two launchers on one
machine, SGLang's gRPC server and data-parallel attention are served with the matrix.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from sglang_eagle3_patch.engine import selfreport
from tests.cpu_sglang import environments, releases, server
from tests.cpu_sglang.pair import forms
from tests.cpu_sglang.releases import WHOLE
from tests.server.background import Outcomes
from tests.server.cases import CASES, OUTLOOK, PROMPTS, TWO_RANKS, TWO_RANKS_VARIABLES
from tests.server.recording import WARM_UP_STEPS, beyond_what_was_asked
from tests.server.serving import STATUS_DIR

SERVED_BY_SGLANG_SERVE = [name for name, case in CASES.items() if case.launcher == server.SERVE]
EXPECTED = OUTLOOK.histograms("trained", "plain", PROMPTS)
whole = pytest.mark.skipif(not WHOLE, reason="with ./launch.sh test --matrix")


def ready_schedulers(folder: Path) -> list[dict[str, Any]]:
    return [
        report
        for report in selfreport.read_all(folder / "status")
        if report["role"] == "scheduler" and report["facts"].get("ready")
    ]


@pytest.mark.serves(*SERVED_BY_SGLANG_SERVE)
@pytest.mark.parametrize("case", SERVED_BY_SGLANG_SERVE)
def test_sglang_serve_is_patched_by_the_variable(outcomes: Outcomes, case: str) -> None:
    outcome = outcomes[case]
    assert outcome.served is not None, outcome.log[-4000:]
    assert outcome.served.texts == OUTLOOK.texts[:PROMPTS]
    assert {report["role"] for report in outcome.reports} == {"main", "scheduler", "detokenizer"}


@whole
@pytest.mark.server
def test_two_nodes(tmp_path: Path) -> None:
    draft = forms.write_form("native", tmp_path / "draft")
    meeting = f"127.0.0.1:{server.free_port()}"
    arguments = [*server.speculation(draft), *TWO_RANKS, "--nnodes", "2"]
    arguments += ["--dist-init-addr", meeting, "--node-rank"]
    environment = environments.ensure(releases.DEFAULT)

    def node(rank: int) -> Any:
        folder = tmp_path / f"node-{rank}"
        return server.start(
            environment,
            folder / "server.log",
            [*arguments, str(rank)],
            launcher=server.OURS,
            variables={**TWO_RANKS_VARIABLES, STATUS_DIR: str(folder / "status")},
        )

    with node(0) as first, node(1) as second:
        first.wait_until_ready()
        served = first.generate(OUTLOOK.prompts[:PROMPTS], OUTLOOK.new_tokens)
        first.settle()
        reports = [ready_schedulers(tmp_path / f"node-{rank}") for rank in (0, 1)]
        logs = [first.log, second.log]
    assert served.histograms == EXPECTED
    assert served.texts == OUTLOOK.texts[:PROMPTS]
    assert [[report["ranks"]["TP"] for report in found] for found in reports] == [[0], [1]]
    loaded = "all 14 tensors of the draft loaded into LlamaForCausalLMEagle3"
    assert [log.count(loaded) for log in logs] == [1, 1]
    assert [log.count("Verify step 1, ") for log in logs] == [1, 0]


@whole
@pytest.mark.server
def test_the_grpc_server_is_handed_over_to(tmp_path: Path) -> None:
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    draft = forms.write_form("native", tmp_path / "draft")
    with server.start(
        environments.ensure(releases.DEFAULT),
        tmp_path / "server.log",
        [*server.speculation(draft), "--grpc-mode"],
        launcher=server.OURS,
        variables={STATUS_DIR: str(tmp_path / "status")},
    ) as running:
        deadline = time.monotonic() + server.STARTUP_SECONDS
        while not ready_schedulers(tmp_path) and time.monotonic() < deadline:
            assert running.process.poll() is None, running.log[-4000:]
            time.sleep(2)
        with grpc.insecure_channel(f"127.0.0.1:{running.port}") as channel:
            grpc.channel_ready_future(channel).result(timeout=60)
            health = health_pb2_grpc.HealthStub(channel)
            answer = health.Check(health_pb2.HealthCheckRequest(), timeout=60)
        log = running.log
    assert answer.status == health_pb2.HealthCheckResponse.SERVING
    assert "all 14 tensors of the draft loaded into LlamaForCausalLMEagle3" in log


@whole
@pytest.mark.serves(*(["attention-ranks"] if WHOLE else []))
def test_attention_ranks(outcomes: Outcomes) -> None:
    outcome = outcomes["attention-ranks"]
    assert outcome.served is not None, outcome.log[-4000:]
    assert outcome.served.histograms == EXPECTED
    assert outcome.served.texts == OUTLOOK.texts[:PROMPTS]
    assert outcome.at_once is not None
    assert sorted(outcome.at_once.histograms) == sorted(EXPECTED)
    assert outcome.trace is not None
    assert sorted(start.rank for start in outcome.trace.starts) == [0, 1]
    assert 1 <= beyond_what_was_asked(outcome).total() <= WARM_UP_STEPS
