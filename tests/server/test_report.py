"""The report of a real server's trace, which SIGKILL ended, has SGLang's own numbers."""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path

import pytest

from sglang_eagle3_patch.acceptance.trace_reader import Trace, read_trace
from sglang_eagle3_patch.cli import main
from tests.cpu_sglang.pair import forms
from tests.cpu_sglang.releases import WHOLE
from tests.cpu_sglang.server import Server
from tests.server.background import Outcomes
from tests.server.cases import CASES, ON, OUTLOOK, TRACED, ServerCase
from tests.server.recording import KILLED, Recording
from tests.server.test_acceptance_recorded import ADAPTIVE, PREFIX, SERVERS


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(PREFIX + name, marks=pytest.mark.serves(PREFIX + name))
        for name in ("0.5.23 v2 adaptive", "0.5.23 v2 tree")
        if name in SERVERS
    ],
)
def test_a_report_of_a_real_trace_is_sglangs_own_word(
    outcomes: Outcomes, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    recording = outcomes[name].told
    assert isinstance(recording, Recording), outcomes[name].log[-4000:]
    (trace,) = recording.trace_after_kill.files
    assert main(["report", str(trace), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["total"]["steps"] == len(recording.trace_after_kill.steps)
    assert [setting["sglang"] for setting in data["provenance"]["settings"]] == ["0.5.23"]
    ranked = data["requests"]["worst"] + data["requests"]["best"]
    assert len(ranked) >= 5
    for request in ranked:
        meta = recording.meta.get(request["id"])
        if meta is None:
            assert request["id"] == KILLED  # SGLang told nothing of it
            continue
        histogram = meta["spec_correct_drafts_histogram"]
        accepted = sum(count * times for count, times in enumerate(histogram))
        assert request["steps"] == meta["spec_verify_ct"]
        assert request["accept_length"] == pytest.approx(1 + accepted / request["steps"])


def ask_alone(server: Server, folder: Path) -> Trace:
    """Ask long enough, one after the other, for each number of drafts to be timed often."""
    for prompt in OUTLOOK.prompts:
        server.generate_at_once([prompt], 230)
    time.sleep(1)  # a step is in the trace a second after it was made, at the latest
    return read_trace([folder / "trace.jsonl"])


if WHOLE:  # a minute
    CASES["adaptive alone"] = ServerCase(
        forms.speculators_weak, variables={**ON, **TRACED}, arguments=ADAPTIVE, asks=ask_alone
    )

    @pytest.mark.serves("adaptive alone")
    def test_the_cost_of_a_draft_step_is_what_an_adaptive_trace_shows(
        outcomes: Outcomes, capsys: pytest.CaptureFixture[str]
    ) -> None:
        trace = outcomes["adaptive alone"].told
        assert isinstance(trace, Trace), outcomes["adaptive alone"].log[-4000:]
        assert main(["report", *map(str, trace.files), "--json"]) == 0
        told = json.loads(capsys.readouterr().out)["speedup"]
        seconds = {
            proposed: statistics.median(
                step.seconds for step in trace.steps if step.proposed == proposed and step.seconds
            )
            for proposed in (1, 3)
        }
        draft = (seconds[3] - seconds[1]) / 2
        cost = told["cost"]
        assert cost["source"] == "measured"
        # The report's medians are off by half a percent at most.
        off = 0.005 * seconds[3]
        assert cost["draft_seconds"] == pytest.approx(draft, abs=off)
        assert cost["base_seconds"] == pytest.approx(seconds[1] - draft, abs=2 * off)
        # One layer against eight, and what every forward takes anyway.
        assert 0.02 < cost["ratio"] < 0.6
        assert [option["steps"] for option in told["options"]] == [0, 1, 2, 3]
        for option in told["options"]:
            expected = option["expected_length"] / (1 + option["steps"] * cost["ratio"])
            assert option["speedup"] == pytest.approx(expected)
        fastest = max(told["options"], key=lambda option: option["speedup"])
        assert told["choice"]["steps"] == fastest["steps"]
