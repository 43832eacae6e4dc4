"""acceptance: what was accepted at every verify step is logged, counted, traced and watched.

Why: a dead drafter changes no output; SGLang shows a windowed average and a gauge.
Where: the scheduler's processing of decode results, after SGLang itself has turned the accepted
lengths into a list on the host; the method moved to a class of its own at 0.5.13.
How: `parts/verify_step.py` reads that list and SGLang's own counters of each request; nothing on a
device is touched. One tensor-parallel rank records, the one whose statistics SGLang logs, and of
context-parallel ranks the first; each data-parallel replica records its own.
Where SGLang's decode line tells acceptance by position itself, a fork that carries our patch file
for one, the interval's line is left to it, and only that.
When it can go: when upstream shows acceptance per step and per position.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sglang_eagle3_patch import __version__
from sglang_eagle3_patch.acceptance.alarm import Alarm, Change
from sglang_eagle3_patch.acceptance.metrics import Metrics
from sglang_eagle3_patch.acceptance.recorder import Recorder, interval_line, step_line
from sglang_eagle3_patch.acceptance.trace import StepRecord, TraceWriter
from sglang_eagle3_patch.engine.patch import Hook, Patch, Risk
from sglang_eagle3_patch.hooks.parts.launch_facts import changed, facts
from sglang_eagle3_patch.hooks.parts.likely_causes import likely_causes
from sglang_eagle3_patch.hooks.parts.source_probe import source_says
from sglang_eagle3_patch.hooks.parts.this_process import ranks
from sglang_eagle3_patch.hooks.parts.verify_step import (
    VerifyReader,
    VerifyStep,
    began,
    decode_log_interval,
)
from sglang_eagle3_patch.settings import Settings

logger = logging.getLogger(__name__)

NAME = "acceptance"


class AcceptanceLog:
    """What this process has recorded, and where it goes.

    `launch` is what a trace tells of the start; `collector` SGLang's own collector of metrics, or
    None where it has none; `interval` the verify steps that a line of the log sums up.
    """

    def __init__(self, launch: Mapping[str, Any], collector: Any, interval: int) -> None:
        settings = Settings.from_environment()
        self.recorder = Recorder()
        self.told = Recorder()
        self.mode = settings.accept_log
        self.interval = interval
        if self.mode == "interval" and tells_positions():
            self.mode = "off"
        self.names_requests = bool(settings.trace and settings.trace_requests)
        self.metrics = None if collector is None else _metrics_beside(collector)
        self.alarm = Alarm(settings.alarm_steps) if settings.alarm_steps else None
        self.trace = None
        if settings.trace:
            self.trace = TraceWriter(
                Path(settings.trace),
                {"plugin": __version__, **launch},
                rank=ranks().get("DP", 0),
                longest_part=settings.trace_mb * 1_000_000,
                parts=settings.trace_files,
                on_drop=self.metrics.add_dropped if self.metrics else None,
            )
        self._last: float | None = None  # when the last step ended, unless idleness followed

    def note(self, step: VerifyStep) -> None:
        """Count one verify step, and tell it as the settings ask."""
        self.recorder.add(step.accepted, step.draft_tokens)
        if self.mode == "step":
            logger.info("%s", step_line(self.recorder, step.accepted))
        elif self.mode == "interval" and self.recorder.steps - self.told.steps >= self.interval:
            logger.info("%s", interval_line(self.recorder.since(self.told)))
            self.told = self.recorder.copy()
        if self.trace is not None:
            self._trace_step(self.trace, step)
        if self.metrics is not None:
            self.metrics.add(step.accepted, step.draft_tokens, step.depth)
        if self.alarm is not None and step.draft_tokens:
            change = self.alarm.add(sum(step.accepted), len(step.accepted), step.depth)
            if change is not None:
                self._tell_alarm(change)

    def _trace_step(self, trace: TraceWriter, step: VerifyStep) -> None:
        now = time.perf_counter()
        trace.put(
            StepRecord(
                time.time(),
                self.recorder.steps,
                step.depth,
                step.accepted,
                step.requests if self.names_requests else None,
                None if self._last is None else now - self._last,
            )
        )
        self._last = now if step.goes_on else None

    def _tell_alarm(self, change: Change) -> None:
        from sglang_eagle3_patch.hooks import PATCHES, registry

        seen = f"accept len {change.accept_length:.2f} over the last {change.steps} verify steps"
        if change.on:
            if change.before is not None:
                seen += f", {change.before:.2f} before"
            accepted_before = change.before is not None or self.recorder.accept_length > 1.2
            causes = likely_causes(facts, registry.report(PATCHES), accepted_before=accepted_before)
            numbered = "; ".join(f"({n}) {cause}" for n, cause in enumerate(causes, 1))
            logger.warning(
                "sglang-eagle3-patch: %s: speculation does next to nothing: %s. Likely causes, in "
                "order: %s. Fix: compare the draft with `sglang-eagle3 doctor` and `sglang-eagle3 "
                "parity`",
                NAME,
                seen,
                numbered,
            )
        else:
            logger.info("sglang-eagle3-patch: %s: drafts are accepted again: %s", NAME, seen)
        facts.acceptance_alarm = seen if change.on else None
        if self.metrics is not None:
            self.metrics.set_alarm(change.on)
        changed()


_log: AcceptanceLog | None = None
_reader = VerifyReader()
_trouble_told = False


def around_decode_result(
    wrapped: Callable[..., Any], scheduler: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Around `process_batch_result_decode(batch, result)`, of whichever class has it."""
    batch, result = _given(*args, **kwargs)
    before = _safely(began, scheduler, batch)
    outcome = wrapped(*args, **kwargs)
    if before:
        _safely(_note, scheduler, batch, result, before)
    return outcome


def _given(batch: Any, result: Any) -> tuple[Any, Any]:
    return batch, result


def _note(scheduler: Any, batch: Any, result: Any, before: list[int]) -> None:
    global _log
    if _log is None:
        _log = AcceptanceLog(
            _reader.launch(scheduler, batch), _collector(scheduler), decode_log_interval(scheduler)
        )
    step = _reader.read(scheduler, batch, result, before, named=_log.names_requests)
    if step is not None:
        _log.note(step)


def _collector(scheduler: Any) -> Any:
    """SGLang's collector of the scheduler's metrics; None without `--enable-metrics`."""
    return getattr(scheduler, "metrics_collector", None)


def _metrics_beside(collector: Any) -> Metrics | None:
    """Our metrics with the labels of SGLang's; without them the rest is recorded all the same."""
    kind = type(collector)
    try:
        return Metrics(
            collector.labels,
            getattr(kind, "_counter_cls", None),
            getattr(kind, "_gauge_cls", None),
        )
    except Exception as error:  # noqa: BLE001
        logger.warning("sglang-eagle3-patch: %s: no metrics: %r", NAME, error)
        return None


def _safely(function: Callable[..., Any], *args: Any) -> Any:
    """Call our own bookkeeping; its trouble is told once and never costs a request."""
    global _trouble_told
    try:
        return function(*args)
    except Exception as error:  # noqa: BLE001
        if not _trouble_told:
            _trouble_told = True
            logger.warning("sglang-eagle3-patch: %s: not recorded: %r", NAME, error)
        return None


def tells_positions() -> bool:
    """Whether SGLang's decode line, which moved, tells acceptance by position."""
    reporters = (
        "srt/managers/scheduler_components/metrics_reporter.py",
        "srt/managers/scheduler_metrics_mixin.py",
        "srt/observability/scheduler_metrics_mixin.py",
    )
    return any(source_says(file, "Decode batch", "by position") for file in reporters)


PATCH = Patch(
    name=NAME,
    title="Log, count, trace and watch accepted drafts of every verify step",
    hooks=(
        Hook(
            module="sglang.srt.managers.scheduler_components.batch_result_processor",
            attribute="SchedulerBatchResultProcessor.process_batch_result_decode",
            parameters=("batch", "result"),
            wrapper=around_decode_result,
            slot="decode results",
        ),
        Hook(
            module="sglang.srt.managers.scheduler_output_processor_mixin",
            attribute="SchedulerOutputProcessorMixin.process_batch_result_decode",
            parameters=("batch", "result"),
            wrapper=around_decode_result,
            slot="decode results",
        ),
    ),
    processes=("scheduler",),
    applies=">=0.5.9",
    reason="Acceptance is shown as a windowed average only.",
    upstream="https://github.com/sgl-project/sglang/issues/31750",
    remove_when="upstream logs acceptance per step and per position",
    risk=Risk.OBSERVABILITY,
)
