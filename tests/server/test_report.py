"""The report of a real server's trace, which SIGKILL ended, has SGLang's own numbers."""

from __future__ import annotations

import json

import pytest

from sglang_eagle3_patch.cli import main
from tests.server.conftest import Outcomes
from tests.server.recording import KILLED, Recording
from tests.server.test_acceptance_recorded import PREFIX


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(PREFIX + name, marks=pytest.mark.serves(PREFIX + name))
        for name in ("0.5.23 v2 adaptive", "0.5.23 v2 tree")
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
