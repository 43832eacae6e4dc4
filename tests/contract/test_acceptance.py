"""A verify step is read from what the scheduler has on the host, in every release's words.

SGLang's own result object; the requests and the worker are stood in for by their few attributes,
since real ones want a server, which `tests/server/test_acceptance_recorded.py` has.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from sglang.srt.managers.utils import GenerationBatchResult
from sglang.srt.server_args import ServerArgs

from sglang_eagle3_patch.acceptance.recorder import Recorder
from sglang_eagle3_patch.acceptance.trace_reader import read_trace
from sglang_eagle3_patch.engine.patch import PatchReport, Status
from sglang_eagle3_patch.hooks import acceptance
from sglang_eagle3_patch.hooks.parts import launch_facts, verify_step
from sglang_eagle3_patch.hooks.parts.launch_facts import LaunchFacts
from sglang_eagle3_patch.hooks.parts.likely_causes import likely_causes
from sglang_eagle3_patch.hooks.parts.verify_step import VerifyReader

PREFIX = "SGLANG_EAGLE3_PATCH"


def _touched(*args: Any, **kwargs: Any) -> NoReturn:
    raise AssertionError("a device tensor was touched")


_SPECIAL = "len iter getitem bool eq lt le gt ge int float index add sub hash contains array"
DeviceTensor = type(
    "DeviceTensor",
    (),
    {
        "__getattribute__": _touched,
        "__torch_function__": classmethod(_touched),
        **{f"__{name}__": _touched for name in _SPECIAL.split()},
    },
)


class Request:
    """One request, with the counters of the release that calls its drafts `accepted_in_all`."""

    def __init__(self, rid: str, accepted_in_all: str = "spec_num_correct_drafts") -> None:
        self.rid, self._accepted_in_all = rid, accepted_in_all
        self.spec_verify_ct = 0
        self.over = self.is_retracted = False
        setattr(self, accepted_in_all, 0)

    @property
    def finished_reason(self) -> object | None:
        return object() if self.over else None

    def verify(self, accepted: int) -> None:
        self.spec_verify_ct += 1
        setattr(self, self._accepted_in_all, getattr(self, self._accepted_in_all) + accepted)


def scheduler_of(topk: int = 1, num_steps: int = 3, draft_tokens: int = 4) -> Any:
    return SimpleNamespace(
        metrics_reporter=SimpleNamespace(is_stats_logging_rank=True),
        metrics_collector=None,
        draft_worker=SimpleNamespace(
            topk=topk,
            speculative_num_steps=num_steps,
            speculative_num_draft_tokens=draft_tokens,
        ),
    )


def batch_of(*requests: Request) -> Any:
    algorithm = SimpleNamespace(is_eagle3=lambda: True, name="EAGLE3")
    return SimpleNamespace(spec_algorithm=algorithm, reqs=list(requests))


def result_of(accepted: list[int], name: str = "num_correct_drafts_per_req_cpu") -> Any:
    """SGLang's result of spec v2, all that can be a tensor on the device being one here."""
    result = GenerationBatchResult(
        logits_output=DeviceTensor(),
        next_token_ids=DeviceTensor(),
        accept_lens=DeviceTensor(),
        speculative_num_draft_tokens=4,
    )
    result.num_correct_drafts_per_req_cpu = None
    setattr(result, name, accepted)
    return result


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A process that has recorded nothing yet, and is told to trace; the trace's path."""
    path = tmp_path / "trace.jsonl"
    monkeypatch.setenv(f"{PREFIX}_TRACE", str(path))
    monkeypatch.setenv(f"{PREFIX}_OPTIONS", "trace_requests=1,alarm_steps=3")
    monkeypatch.setenv(f"{PREFIX}_ACCEPT_LOG", "step")
    monkeypatch.setattr(acceptance, "_log", None)
    monkeypatch.setattr(acceptance, "_reader", VerifyReader())
    monkeypatch.setattr(acceptance, "_trouble_told", False)
    verify_step._is_first_of_context.cache_clear()
    monkeypatch.setattr(launch_facts.facts, "acceptance_alarm", None)
    yield path
    verify_step._is_first_of_context.cache_clear()
    assert not acceptance._trouble_told
    if acceptance._log is not None and acceptance._log.trace is not None:
        acceptance._log.trace.close()


def step(scheduler: Any, batch: Any, result: Any, accepted: dict[Request, int]) -> None:
    """Have the scheduler process one verify step, in which SGLang counts `accepted`."""

    def processed(*args: Any) -> None:
        for request, count in accepted.items():
            request.verify(count)

    acceptance.around_decode_result(processed, scheduler, (batch, result), {})


def traced(path: Path) -> list[tuple[list[str], list[int], int]]:
    assert acceptance._log is not None
    assert acceptance._log.trace is not None
    acceptance._log.trace.close()
    return [
        (list(told.requests or ()), list(told.accepted), told.proposed)
        for told in read_trace([path]).steps
    ]


@pytest.mark.parametrize(
    "name",
    [
        "num_correct_drafts_per_req_cpu",
        "num_accepted_drafts_per_req_cpu",
        "accept_length_per_req_cpu",
    ],
)
def test_no_device_tensor_is_touched(log: Path, name: str) -> None:
    a, b = Request("a"), Request("b")
    for _ in range(5):
        step(scheduler_of(), batch_of(a, b), result_of([3, 0], name), {a: 3, b: 0})
    assert traced(log) == [(["a", "b"], [3, 0], 3)] * 5


def test_the_tensor_of_these_tests_is_untouchable() -> None:
    for touch in (len, bool, int, list, lambda tensor: tensor.shape, lambda tensor: tensor == 1):
        with pytest.raises(AssertionError, match="touched"):
            touch(DeviceTensor())


class TestWhoTookPart:
    def test_those_that_sglang_counted(self, log: Path) -> None:
        """Since 0.5.12 a step computed under overlap for a request that is over isn't counted."""
        running, over, retracted = Request("running"), Request("over"), Request("retracted")
        over.over = retracted.is_retracted = True
        batch = batch_of(over, running, retracted)
        step(scheduler_of(), batch, result_of([3, 2, 1]), {running: 2})
        assert traced(log) == [(["running"], [2], 3)]

    def test_a_retracted_one_that_is_counted(self, log: Path) -> None:
        """Before, SGLang counted all of them; who is over has had its answer already."""
        running, over, retracted = Request("running"), Request("over"), Request("retracted")
        over.over = retracted.is_retracted = True
        batch = batch_of(over, running, retracted)
        step(scheduler_of(), batch, result_of([3, 2, 1]), {over: 3, running: 2, retracted: 1})
        assert traced(log) == [(["running", "retracted"], [2, 1], 3)]

    def test_nobody_is_no_step(self, log: Path) -> None:
        over = Request("over")
        over.over = True
        step(scheduler_of(), batch_of(over), result_of([3]), {})
        assert acceptance._log is not None
        assert acceptance._log.recorder == Recorder()

    def test_another_rank_records(self, log: Path) -> None:
        scheduler, request = scheduler_of(), Request("a")
        scheduler.metrics_reporter.is_stats_logging_rank = False
        step(scheduler, batch_of(request), result_of([3]), {request: 3})
        assert acceptance._log is None

    @pytest.mark.parametrize(
        ("title", "records"),
        [
            ("sglang::scheduler", True),
            ("sglang::scheduler_DP1_ATTN_CP0_TP2", True),
            ("sglang::scheduler_DP1_ATTN_CP1_TP3", False),
        ],
    )
    @pytest.mark.parametrize("reporter", [True, False])
    def test_of_context_parallel_ranks_the_first_records(
        self, log: Path, monkeypatch: pytest.MonkeyPatch, title: str, records: bool, reporter: bool
    ) -> None:
        """Before 0.5.23 SGLang logs the statistics of each, `--attn-cp-size` being more than 1."""
        monkeypatch.setitem(
            sys.modules, "setproctitle", SimpleNamespace(getproctitle=lambda: title)
        )
        scheduler, request = scheduler_of(), Request("a")
        if not reporter:
            del scheduler.metrics_reporter
            scheduler.attn_tp_rank = 0
        step(scheduler, batch_of(request), result_of([3]), {request: 3})
        assert (acceptance._log is not None) == records


@pytest.mark.parametrize(
    "sum_name", ["spec_num_correct_drafts", "spec_accepted_drafts", "spec_accepted_tokens"]
)
def test_the_v1_worker_counts_before_and_past_the_last_token(log: Path, sum_name: str) -> None:
    """Its list ends a request's last step at its last token; `meta_info` doesn't."""
    scheduler, request = scheduler_of(), Request("a", sum_name)
    result = GenerationBatchResult(logits_output=DeviceTensor(), next_token_ids=DeviceTensor())
    for accepted, cut_short in [(3, 3), (0, 0), (3, 1)]:
        request.verify(accepted)
        request.over = cut_short < accepted
        result.num_correct_drafts_per_req_cpu = [cut_short]
        step(scheduler, batch_of(request), result, {})
    assert traced(log) == [(["a"], [accepted], 3) for accepted in (3, 0, 3)]


class TestProposed:
    def test_a_tree_proposes_more_than_can_be_accepted(self, log: Path) -> None:
        request, result = Request("a"), result_of([2])
        result.speculative_num_draft_tokens = 6
        step(scheduler_of(topk=2, draft_tokens=6), batch_of(request), result, {request: 2})
        assert acceptance._log is not None
        assert acceptance._log.recorder.proposed == 5
        assert traced(log) == [(["a"], [2], 3)]

    def test_steps_that_change_are_those_of_the_result(self, log: Path) -> None:
        """`--speculative-adaptive`; a step of none is no step of the alarm's, which is three."""
        scheduler, request = scheduler_of(), Request("a")
        for draft_tokens in (4, 2, 1, 1, 1):
            result = result_of([0])
            result.speculative_num_draft_tokens = draft_tokens
            scheduler.draft_worker.speculative_num_draft_tokens = 8  # what comes next, already
            step(scheduler, batch_of(request), result, {request: 0})
        assert launch_facts.facts.acceptance_alarm is None
        assert [proposed for _, _, proposed in traced(log)] == [3, 1, 0, 0, 0]

    def test_adaptive_steps_are_counted_as_they_were_drafted(self, log: Path) -> None:
        """`--speculative-adaptive` changes the number of drafts between steps, down to none."""
        both = Request("a"), Request("b")
        for tokens, counts in [(4, [3, 1]), (6, [5, 0]), (1, [0, 0])]:
            result = result_of(counts)
            result.speculative_num_draft_tokens = tokens
            accepted = dict(zip(both, counts, strict=True))
            step(scheduler_of(), batch_of(*both), result, accepted)
        assert acceptance._log is not None
        recorder = acceptance._log.recorder
        assert (recorder.proposed, recorder.accepted) == (2 * 3 + 2 * 5, 9)
        assert recorder.reached == [3, 2, 2, 1, 1]

    def test_the_v1_worker_has_changed_its_by_the_time_a_step_is_processed(self, log: Path) -> None:
        scheduler, request = scheduler_of(), Request("a")
        result = GenerationBatchResult(logits_output=DeviceTensor())
        for used_next in (4, 8, 8, 2):
            scheduler.draft_worker.speculative_num_draft_tokens = used_next
            request.verify(0)
            step(scheduler, batch_of(request), result, {})
        assert [proposed for _, _, proposed in traced(log)] == [3, 3, 7, 7]


class TestAlarm:
    def test_it_is_told_with_causes_and_as_a_fact(
        self, log: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        scheduler, request, changes = scheduler_of(), Request("a"), []
        launch_facts.when_changed(lambda: changes.append(launch_facts.facts.acceptance_alarm))
        try:
            for _ in range(10):
                step(scheduler, batch_of(request), result_of([0]), {request: 0})
            (warning,) = [r.message for r in caplog.records if r.levelname == "WARNING"]
            assert "accept len 1.00 over the last 3 verify steps. Likely causes" in warning
            assert launch_facts.facts.as_data()["acceptance_alarm"] == (
                "accept len 1.00 over the last 3 verify steps"
            )
            for _ in range(3):
                step(scheduler, batch_of(request), result_of([3]), {request: 3})
            assert "acceptance_alarm" not in launch_facts.facts.as_data()
        finally:
            launch_facts._listeners.pop()

    def test_fewer_drafts_are_no_collapse(self, log: Path) -> None:
        """`--speculative-adaptive`; sixteen blocks of three steps are enough to judge by."""
        scheduler, request = scheduler_of(), Request("a")
        for depth in [7] * 48 + [1] * 48:
            result = result_of([depth])
            result.speculative_num_draft_tokens = depth + 1
            step(scheduler, batch_of(request), result, {request: depth})
        assert acceptance._log is not None
        assert acceptance._log.alarm is not None
        assert acceptance._log.alarm.change is None

    @pytest.mark.parametrize(
        ("facts", "off", "first"),
        [
            (LaunchFacts(), {"draft-weights": Status.DISABLED}, "draft-weights: disabled"),
            (LaunchFacts(draft_weights="dummy"), {}, "random"),
            (LaunchFacts(draft_weights="all 14 tensors"), {"fc-guard": Status.FAILED}, "fc may be"),
            (LaunchFacts(draft_weights="all 14 tensors"), {}, "which layers are captured"),
            (
                LaunchFacts(
                    draft_weights="all 14 tensors",
                    captured_layers=(2, 4, 5),
                    layers_from="eagle_config",
                ),
                {},
                "other layers than [2, 4, 5], named by eagle_config",
            ),
        ],
    )
    def test_the_likeliest_cause_comes_first(
        self, facts: LaunchFacts, off: dict[str, Status], first: str
    ) -> None:
        names = ["draft-weights", "fc-guard", "aux-capture", "draft-forward"]
        reports = [
            PatchReport(name=name, status=off.get(name, Status.APPLIED), detail="", hooks=())
            for name in names
        ]
        causes = likely_causes(facts, reports, accepted_before=False)
        assert first in causes[0]
        assert causes[-1].startswith("the draft was trained for another target")
        changed = likely_causes(facts, reports, accepted_before=True)
        assert changed[1:] == causes
        assert "weights were updated" in changed[0]


def test_a_trace_names_no_requests_unless_asked(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"{PREFIX}_OPTIONS", "")
    request = Request("secret")
    step(scheduler_of(), batch_of(request), result_of([1]), {request: 1})
    traced(log)
    assert "secret" not in log.read_text()
    assert "requests" not in json.loads(log.read_text().splitlines()[1])


class TestLog:
    """Lines of the log: those of ten verify steps, the server's interval being three."""

    def lines(
        self, mode: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> list[str]:
        monkeypatch.setenv(f"{PREFIX}_ACCEPT_LOG", mode)
        scheduler, request = scheduler_of(), Request("a")
        scheduler.metrics_reporter.decode_log_interval = 3
        with caplog.at_level(logging.INFO):
            for _ in range(10):
                step(scheduler, batch_of(request), result_of([3]), {request: 3})
        return [record.message for record in caplog.records]

    def test_a_line_per_interval_of_the_server(
        self, log: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        lines = self.lines("interval", monkeypatch, caplog)
        assert len(lines) == 3
        assert all(line.startswith("Verify steps: 3, accept len: 4.00") for line in lines)

    def test_a_line_per_step(
        self, log: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        lines = self.lines("step", monkeypatch, caplog)
        assert [line.partition(",")[0] for line in lines] == [
            f"Verify step {n}" for n in range(1, 11)
        ]

    def test_off_is_none(
        self, log: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        assert self.lines("off", monkeypatch, caplog) == []
        assert len(traced(log)) == 10

    @pytest.mark.parametrize(("mode", "lines"), [("interval", 0), ("step", 10)])
    def test_the_interval_is_left_to_an_sglang_that_tells_positions(
        self,
        log: Path,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
        mode: str,
        lines: int,
    ) -> None:
        """As one does that carries our patch file; the rest is recorded all the same."""
        monkeypatch.setattr(acceptance, "tells_positions", lambda: True)
        assert len(self.lines(mode, monkeypatch, caplog)) == lines
        assert len(traced(log)) == 10


@pytest.mark.parametrize(
    ("scheduler", "interval"),
    [
        (SimpleNamespace(server_args=SimpleNamespace(decode_log_interval=7)), 7),
        (
            SimpleNamespace(  # 0.5.13 to 0.5.15
                server_args=SimpleNamespace(decode_log_interval=7),
                metrics_reporter=SimpleNamespace(),
            ),
            7,
        ),
        (SimpleNamespace(metrics_reporter=SimpleNamespace(decode_log_interval=7)), 7),
        (SimpleNamespace(), 40),
    ],
)
def test_the_interval_is_the_servers(scheduler: Any, interval: int) -> None:
    assert verify_step.decode_log_interval(scheduler) == interval


def test_it_is_the_default_of_the_release_where_it_is_not_to_be_had() -> None:
    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    assert parser.get_default("decode_log_interval") == verify_step._DECODE_LOG_INTERVAL
