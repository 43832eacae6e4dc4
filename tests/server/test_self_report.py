"""Each process of a server tells which patches are in it."""

from __future__ import annotations

import pytest

from tests.server.background import Outcomes

# What a process needs for its part; the rest may be in it too, or wait for modules it never loads.
WANTED = {
    "main": {"draft-config", "eagle3-mode", "self-report"},
    "scheduler": {
        "acceptance",
        "aux-capture",
        "draft-config",
        "draft-weights",
        "eagle3-mode",
        "fc-guard",
        "self-report",
        "wrapper-capture",
    },
    "detokenizer": {"self-report"},
}


@pytest.mark.serves("plugin-b", "0.5.9 plugin-b")
@pytest.mark.parametrize("case", ["plugin-b", "0.5.9 plugin-b"])
class TestEachProcess:
    def test_writes_a_report(self, outcomes: Outcomes, case: str) -> None:
        reports = {report["role"]: report for report in outcomes[case].reports}
        assert reports.keys() == WANTED.keys()
        for role, wanted in WANTED.items():
            applied = {
                patch["name"] for patch in reports[role]["patches"] if patch["status"] == "applied"
            }
            assert wanted <= applied
            assert reports[role]["state"] == "ready"
        assert len({report["pid"] for report in reports.values()}) == 3

    def test_logs_one_line(self, outcomes: Outcomes, case: str) -> None:
        for role in WANTED:
            assert outcomes[case].log.count(f"sglang-eagle3-patch: {role}: applied: ") == 1


@pytest.mark.serves("plugin-b", "0.5.9 plugin-b")
def test_kimi_capture_is_in_only_where_it_is_needed(outcomes: Outcomes) -> None:
    def of_scheduler(case: str) -> str:
        report = next(r for r in outcomes[case].reports if r["role"] == "scheduler")
        return next(p["status"] for p in report["patches"] if p["name"] == "kimi-capture")

    assert of_scheduler("plugin-b") == "not-needed"
    assert of_scheduler("0.5.9 plugin-b") == "applied"


@pytest.mark.serves("plugin-b")
def test_the_command_shows_every_process_of_a_server(outcomes: Outcomes) -> None:
    outcome = outcomes["plugin-b"]
    shown = {process["pid"]: process for process in outcome.status["processes"]}
    assert shown.keys() == {report["pid"] for report in outcome.reports}
    scheduler = next(process for process in shown.values() if process["role"] == "scheduler")
    assert scheduler["facts"]["captured_layers"] == [2, 4, 5]
    assert scheduler["facts"]["algorithm"] == "EAGLE3"
    assert scheduler["facts"]["ready"].startswith("EAGLE-3: 14/14 tensors of the draft loaded; ")


@pytest.mark.serves("two-ranks")
def test_each_rank_reports_itself(outcomes: Outcomes) -> None:
    names = {report["name"] for report in outcomes["two-ranks"].reports}
    assert names == {"main", "scheduler TP0", "scheduler TP1", "detokenizer"}


@pytest.mark.serves("two-replicas")
def test_replicas_and_their_controller_report_themselves(outcomes: Outcomes) -> None:
    names = sorted(report["name"] for report in outcomes["two-replicas"].reports)
    schedulers = ["scheduler DP0", "scheduler DP1"]
    assert names == ["data-parallel controller", "detokenizer", "main", *schedulers]


@pytest.mark.serves("two-tokenizers")
def test_tokenizer_workers_report_themselves(outcomes: Outcomes) -> None:
    names = sorted(report["name"] for report in outcomes["two-tokenizers"].reports)
    assert names == ["detokenizer", "main", "scheduler", "tokenizer worker", "tokenizer worker"]
