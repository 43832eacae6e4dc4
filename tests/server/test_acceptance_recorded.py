"""What is recorded of real servers is what SGLang itself counted, request by request.

Each server is asked the same: requests at once, of which one is aborted and some are retracted, a
scrape of its metrics in the middle of it, and SIGKILL at the end (`recording.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

import pytest

from sglang_eagle3_patch.acceptance import metrics
from sglang_eagle3_patch.acceptance.trace_reader import Step
from tests.cpu_sglang.pair import forms
from tests.cpu_sglang.releases import WHOLE
from tests.server.background import Outcomes
from tests.server.cases import CASES, ServerCase
from tests.server.recording import (
    ABORTED,
    KILLED,
    RECORDING,
    RETRACTING,
    WARM_UP_STEPS,
    Recording,
    beyond_what_was_asked,
    record,
)

ADAPTIVE = (
    "--speculative-adaptive",
    "--speculative-adaptive-config",
    str(Path(__file__).with_name("adaptive.json")),
)
V1, V2 = ("--disable-overlap-schedule",), {"SGLANG_ENABLE_SPEC_V2": "1"}
TREE = {"topk": 2, "draft_tokens": 6}
PREFIX = "recorded "


def recorded(
    release: str,
    arguments: Sequence[str] = (),
    variables: dict[str, str] | None = None,
    *,
    topk: int = 1,
    draft_tokens: int = 4,
) -> ServerCase:
    """A server with the weak drafter, which accepts now many drafts and now none."""
    return ServerCase(
        forms.speculators_weak,
        release,
        variables={**RECORDING, **RETRACTING, **(variables or {})},
        arguments=("--enable-metrics", *arguments),
        topk=topk,
        draft_tokens=draft_tokens,
        asks=record,
    )


# One for each release at which something changed; the matrix has the rest of what each can do. With
# topk > 1 a release that has the v1 worker uses it.
SERVERS = {
    "0.5.9 v1 tree": recorded("0.5.9", **TREE),
    "0.5.11 v2": recorded("0.5.11"),
    "0.5.12.post1 v2 adaptive": recorded("0.5.12.post1", ADAPTIVE),
    "0.5.16 v2 tree": recorded("0.5.16", **TREE),
    "0.5.23 v2 adaptive": recorded("0.5.23", ADAPTIVE),
}
if WHOLE:
    SERVERS |= {
        "0.5.9 v2": recorded("0.5.9", variables=V2),
        "0.5.11 v1 adaptive": recorded("0.5.11", (*V1, *ADAPTIVE)),
        "0.5.11 v1 tree": recorded("0.5.11", **TREE),
        "0.5.12.post1 v1 tree": recorded("0.5.12.post1", **TREE),
        "0.5.16 v2": recorded("0.5.16"),
        "0.5.23 v2 tree": recorded("0.5.23", **TREE),
    }
CASES |= {PREFIX + name: case for name, case in SERVERS.items()}


@pytest.fixture
def recording(outcomes: Outcomes, name: str) -> Recording:
    outcome = outcomes[PREFIX + name]
    assert isinstance(outcome.told, Recording), outcome.log[-4000:]
    return outcome.told


every_server = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.serves(PREFIX + name)) for name in SERVERS]
)


@every_server
def test_each_request_adds_up_to_sglangs_own_word(recording: Recording, name: str) -> None:
    told = {request for request, meta in recording.meta.items() if meta.get("spec_verify_ct")}
    # A request that is aborted while it waits, retracted, is told nothing of.
    assert told >= recording.meta.keys() - {ABORTED}
    assert len(told) >= 6
    for request in told:
        meta, steps = recording.meta[request], recording.steps_of(request)
        histogram = meta.get("spec_correct_drafts_histogram", meta.get("spec_accept_histogram"))
        accepted = [count for _, count in steps]
        ours = [accepted.count(count) for count in range(max(accepted) + 1)]
        assert (request, len(steps), ours) == (request, meta["spec_verify_ct"], histogram)


@every_server
def test_requests_were_at_once_aborted_and_retracted(recording: Recording, name: str) -> None:
    assert max(step.batch for step in recording.trace.steps) >= 4
    assert recording.steps_of(ABORTED)
    assert recording.retractions > 0
    assert recording.meta[ABORTED]["finish_reason"]["type"] == "abort"


@every_server
def test_the_steps_of_a_trace(recording: Recording, name: str) -> None:
    trace = recording.trace
    assert [step.step for step in trace.steps] == list(range(1, len(trace.steps) + 1))
    (start,) = trace.starts
    case = SERVERS[name]
    assert (start.sglang, start.algorithm) == (case.release, "EAGLE3")
    assert start.topk == case.topk
    assert "adaptive" in name or (start.num_steps, start.draft_tokens) == (3, case.draft_tokens)
    assert trace.steps[0].seconds is None
    assert all(step.seconds > 0 for step in trace.steps if step.seconds is not None)
    for step in trace.steps:
        assert step.start == start
        assert max(step.accepted) <= step.proposed
        assert step.requests is not None
        assert len(set(step.requests)) == step.batch
    # The depth of the tree, or the steps in use.
    proposed = {step.proposed for step in trace.steps}
    if "adaptive" not in name:
        assert proposed == {3}
    elif "v1" in name or case.release == "0.5.12.post1":
        assert proposed == {1, 3}
    else:
        assert proposed == {0, 1, 3}


@every_server
def test_metrics_equal_the_trace(recording: Recording, name: str) -> None:
    """After all was said, and at a step of the trace while it was being said."""
    case = SERVERS[name]
    states = sums(recording.trace.steps, case.draft_tokens - 1 if case.topk > 1 else None)
    assert without_zeros(recording.scraped) == without_zeros(states[-1])
    drafts = recording.scraped_under_load[metrics.DRAFTS.name]
    at = next(n for n, state in enumerate(states) if state[metrics.DRAFTS.name] == drafts)
    assert 0 < at < len(states) - 1
    # A step is counted into one metric after another; drafts are the first.
    for metric, value in recording.scraped_under_load.items():
        assert value in (states[at - 1].get(metric, 0), states[at].get(metric, 0)), metric


def sums(steps: Sequence[Step], nodes: int | None) -> list[Counter[str]]:
    """Our metrics after each step, by their definitions; `nodes` are a tree's, but for its root."""

    def of(step: Step) -> Counter[str]:
        if not step.proposed:
            return Counter()
        position = metrics.ACCEPTED_PER_POSITION.name
        return Counter(
            {
                metrics.DRAFTS.name: step.batch,
                metrics.DRAFT_TOKENS.name: step.batch * (nodes or step.proposed),
                metrics.ACCEPTED.name: sum(step.accepted),
                **{
                    f"{position}[{n}]": sum(count > n for count in step.accepted)
                    for n in range(step.proposed)
                },
            }
        )

    return list(accumulate(map(of, steps), initial=Counter()))


def without_zeros(found: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in found.items() if value}


@every_server
def test_metrics_carry_sglangs_own_labels(recording: Recording, name: str) -> None:
    sglangs = recording.labels["sglang:num_retracted_requests_total"]
    (of_scheduler,) = sglangs
    assert {"model_name", "tp_rank"} <= dict(of_scheduler).keys()
    ours = {metric.name for metric in metrics.METRICS}
    assert ours <= recording.labels.keys()
    for metric in ours:
        assert recording.labels[metric] == sglangs, metric


@every_server
def test_sigkill_leaves_a_readable_trace(recording: Recording, name: str) -> None:
    trace = recording.trace_after_kill
    assert trace.unreadable <= 1
    assert trace.dropped == 0
    assert any(KILLED in (step.requests or ()) for step in trace.steps)
    assert [step.step for step in trace.steps] == list(range(1, len(trace.steps) + 1))
    assert trace.steps[: len(recording.trace.steps)] == recording.trace.steps


@pytest.mark.serves("two-ranks", "0.5.9 two-ranks")
@pytest.mark.parametrize("case", ["two-ranks", "0.5.9 two-ranks"])
def test_of_tensor_parallel_ranks_one_records(outcomes: Outcomes, case: str) -> None:
    outcome = outcomes[case]
    assert outcome.trace is not None, outcome.log[-4000:]
    (first,) = (report for report in outcome.reports if report["name"] == "scheduler TP0")
    assert [start.pid for start in outcome.trace.starts] == [first["pid"]]
    assert len(outcome.trace.files) == 1


@pytest.mark.serves("two-replicas")
def test_every_replica_records_its_own(outcomes: Outcomes) -> None:
    outcome = outcomes["two-replicas"]
    assert outcome.trace is not None, outcome.log[-4000:]
    pids = {
        report["ranks"]["DP"]: report["pid"]
        for report in outcome.reports
        if report["role"] == "scheduler"
    }
    assert {start.rank: start.pid for start in outcome.trace.starts} == pids
    assert [file.name for file in outcome.trace.files] == ["trace.jsonl", "trace.dp1.jsonl"]
    assert 1 <= beyond_what_was_asked(outcome).total() <= WARM_UP_STEPS
