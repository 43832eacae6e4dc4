"""acceptance: what was accepted at every verify step is logged.

Why: a dead drafter changes no output; SGLang shows a windowed average and a gauge.
Where: the scheduler's processing of decode results, after SGLang itself has turned the accepted
lengths into a list on the host; the method moved to a class of its own at 0.5.13.
How: that list is read, under the name the release gives it. No tensor is touched: no device sync,
nothing inside graphs. One tensor-parallel rank records, the one whose statistics SGLang logs. The
v1 worker's list ends the last step of a request at the request's last token.
When it can go: when upstream shows acceptance per step and per position.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from sglang_eagle3_patch.acceptance.recorder import Recorder, interval_line, step_line
from sglang_eagle3_patch.engine.patch import Hook, Patch, Risk
from sglang_eagle3_patch.hooks.parts.source_probe import source_says
from sglang_eagle3_patch.settings import Settings

logger = logging.getLogger(__name__)

NAME = "acceptance"
# Accepted drafts per request, without the bonus token: since 0.5.12, at 0.5.11, before. From 0.5.16
# on the last one holds something else, which is why the order matters.
_ACCEPTED = (
    "num_correct_drafts_per_req_cpu",
    "num_accepted_drafts_per_req_cpu",
    "accept_length_per_req_cpu",
)
_INTERVAL = 40  # verify steps; SGLang's own --decode-log-interval default


class AcceptanceLog:
    """The recorder of this process and what it last told."""

    def __init__(self) -> None:
        self.recorder = Recorder()
        self.told = Recorder()
        self.mode = Settings.from_environment().accept_log

    def note(self, accepted: list[int], proposed_each: int) -> None:
        """Count one verify step and log it as the settings ask."""
        self.recorder.add(accepted, proposed_each)
        if self.mode == "step":
            logger.info("%s", step_line(self.recorder, accepted))
        elif self.mode == "interval" and self.recorder.steps - self.told.steps >= _INTERVAL:
            logger.info("%s", interval_line(self.recorder.since(self.told)))
            self.told = self.recorder.copy()


_log: AcceptanceLog | None = None
_trouble_told = False


def around_decode_result(
    wrapped: Callable[..., Any], scheduler: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Around `process_batch_result_decode(batch, result)`, of whichever class has it."""
    given = dict(zip(("batch", "result"), args, strict=False)) | kwargs
    running = _safely(_running_requests, scheduler, given["batch"])
    outcome = wrapped(*args, **kwargs)
    if running:
        _safely(_note, scheduler, given["result"], running)
    return outcome


def _running_requests(scheduler: Any, batch: Any) -> list[bool]:
    """Which requests of the batch are still running before the step is processed; [] when the
    batch is not EAGLE-3's or another rank records. Under overlap a step is also computed for
    those just finished."""
    if not batch.spec_algorithm.is_eagle3() or not _logs_statistics(scheduler):
        return []
    return [not (request.is_retracted or request.finished()) for request in batch.reqs]


def _note(scheduler: Any, result: Any, running: list[bool]) -> None:
    global _log
    if _log is None:
        _log = AcceptanceLog()
    counts = next(
        counts for name in _ACCEPTED if (counts := getattr(result, name, None)) is not None
    )
    finishes_while_verifying = not hasattr(result, "accept_lens") or result.accept_lens is None
    accepted = [
        count
        for count, is_running in zip(counts, running, strict=True)
        # The v1 worker ends requests inside the step itself, so all of them took part in it.
        if is_running or finishes_while_verifying
    ]
    if accepted:
        _log.note(accepted, _draft_tokens(scheduler, result) - 1)


def _logs_statistics(scheduler: Any) -> bool:
    reporter = getattr(scheduler, "metrics_reporter", None)
    if reporter is not None:
        return bool(reporter.is_stats_logging_rank)
    return bool(scheduler.attn_tp_rank == 0)


def _draft_tokens(scheduler: Any, result: Any) -> int:
    """Tokens each request verifies in a step, the bonus token's included."""
    told = getattr(result, "speculative_num_draft_tokens", None)
    return int(scheduler.server_args.speculative_num_draft_tokens if told is None else told)


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


def tells_positions(_processor_class: Any) -> bool:
    """Whether SGLang's decode line, which moved, tells acceptance by position."""
    reporters = (
        "srt/managers/scheduler_components/metrics_reporter.py",
        "srt/managers/scheduler_metrics_mixin.py",
        "srt/observability/scheduler_metrics_mixin.py",
    )
    return any(source_says(file, "Decode batch", "by position") for file in reporters)


PATCH = Patch(
    name=NAME,
    title="Log accepted drafts of every verify step",
    hooks=(
        Hook(
            module="sglang.srt.managers.scheduler_components.batch_result_processor",
            attribute="SchedulerBatchResultProcessor.process_batch_result_decode",
            parameters=("batch", "result"),
            wrapper=around_decode_result,
            slot="decode results",
            fixed_when=tells_positions,
        ),
        Hook(
            module="sglang.srt.managers.scheduler_output_processor_mixin",
            attribute="SchedulerOutputProcessorMixin.process_batch_result_decode",
            parameters=("batch", "result"),
            wrapper=around_decode_result,
            slot="decode results",
            fixed_when=tells_positions,
        ),
    ),
    processes=("scheduler",),
    applies=">=0.5.9",
    reason="Acceptance is shown as a windowed average only.",
    upstream="https://github.com/sgl-project/sglang/issues/31750",
    remove_when="upstream logs acceptance per step and per position",
    risk=Risk.OBSERVABILITY,
    patch_files=(
        "patches/sglang/0.5.9/0007-Spec-Log-the-accept-rate-of-each-draft-position.patch",
        "patches/sglang/0.5.23/0006-Spec-Log-the-accept-rate-of-each-draft-position.patch",
    ),
)
