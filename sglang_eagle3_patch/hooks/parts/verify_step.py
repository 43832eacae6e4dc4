"""What SGLang's scheduler knows on the host of one verify step, under the names of each release.

Which requests took part, and what each accepted, is what SGLang itself counts of them, so that the
sums are those of its `meta_info`. Since spec v2 a result has a list of accepted drafts, and a
request took part if SGLang's own counter of its verify steps went up: under overlap a step is also
computed for requests that have just finished or were retracted. The v1 worker ends requests inside
the step, and its list ends a request's last step at the last token; there the request's own sum
of accepted drafts, which doesn't, tells.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any

from sglang_eagle3_patch.hooks.parts.this_process import ranks, sglang_version

# Accepted drafts of each request, without the bonus token: since 0.5.12, at 0.5.11, before. From
# 0.5.16 on the last one holds something else, which is why the order matters.
_ACCEPTED = (
    "num_correct_drafts_per_req_cpu",
    "num_accepted_drafts_per_req_cpu",
    "accept_length_per_req_cpu",
)
# A request's sum of them, under the v1 worker: the same releases.
_ACCEPTED_IN_ALL = ("spec_num_correct_drafts", "spec_accepted_drafts", "spec_accepted_tokens")
_COUNTED = "_eagle3_patch_accepted"  # on a request: how much of that sum was recorded
_NEVER = sys.maxsize  # verify steps
_DECODE_LOG_INTERVAL = 40  # what `--decode-log-interval` is in every release


@dataclass(slots=True)  # frozen ones take three times as long to make
class VerifyStep:
    """One verify step of a batch; `accepted` drafts of each request, without the bonus token: a
    byte each, which are summed and counted several times as fast as a list's numbers.

    `draft_tokens` were verified for each, of which at most `depth` could be accepted: less only
    where topk > 1 makes a tree of them. `requests` are their ids, if they were asked for; `goes_on`
    says that a request of the batch is still running.
    """

    accepted: bytes
    draft_tokens: int
    depth: int
    requests: Sequence[str] | None
    goes_on: bool


def began(scheduler: Any, batch: Any) -> list[int]:
    """Return what each request's count of verify steps will be if it takes part in this one.

    Requests that are over have no such count: `_NEVER`. Empty when the batch is not EAGLE-3's, or
    another rank records.
    """
    if not batch.spec_algorithm.is_eagle3() or not _records(scheduler):
        return []
    # What `Req.finished()` says; calls add up over a large batch.
    return [
        request.spec_verify_ct + 1 if request.finished_reason is None else _NEVER
        for request in batch.reqs
    ]


class VerifyReader:
    """Reads verify steps of one process, in their order."""

    def __init__(self) -> None:
        self._draft_tokens: int | None = None  # in use by the v1 worker from the last step on

    def launch(self, scheduler: Any, batch: Any) -> dict[str, Any]:
        """Return what a trace tells of the start: SGLang's version, and the settings in use."""
        worker = _worker(scheduler)
        return {
            "sglang": sglang_version(),
            "algorithm": batch.spec_algorithm.name,
            "num_steps": worker.speculative_num_steps,
            "topk": worker.topk,
            "draft_tokens": worker.speculative_num_draft_tokens,
        }

    def read(
        self, scheduler: Any, batch: Any, result: Any, expected: Sequence[int], *, named: bool
    ) -> VerifyStep | None:
        """Return the step that was just processed; None when no request took part in it.

        `expected` is what `began` returned; `named` asks for the ids of the requests.
        """
        worker, requests = _worker(scheduler), batch.reqs
        accepted: Iterable[int]
        if getattr(result, "accept_lens", None) is None:
            accepted = _newly_accepted(requests)
        else:
            accepted = _first(result, _ACCEPTED)
            verified = [request.spec_verify_ct for request in requests]
            if verified != expected:
                took_part = [
                    count >= if_it_did for count, if_it_did in zip(verified, expected, strict=True)
                ]
                requests = list(compress(requests, took_part))
                accepted = compress(accepted, took_part)
        verified_tokens = self._verified_tokens(worker, result)
        if not requests:
            return None
        draft_tokens = verified_tokens - 1
        return VerifyStep(
            bytes(accepted),
            draft_tokens,
            draft_tokens if worker.topk == 1 else min(draft_tokens, worker.speculative_num_steps),
            [request.rid for request in requests] if named else None,
            any(request.finished_reason is None for request in batch.reqs),
        )

    def _verified_tokens(self, worker: Any, result: Any) -> int:
        """Tokens each request verified in the step, the bonus token's included.

        A result tells since 0.5.12's spec v2. Before, only the v1 worker changes it, at the end of
        a step, so that what is in use then is what the next step will have used.
        """
        told = getattr(result, "speculative_num_draft_tokens", None)
        if told is not None:
            return int(told)
        in_use = int(worker.speculative_num_draft_tokens)
        used, self._draft_tokens = self._draft_tokens or in_use, in_use
        return used


def _newly_accepted(requests: Sequence[Any]) -> Iterator[int]:
    """Drafts that each request of the v1 worker accepted since this was last asked of it."""
    name = next(name for name in _ACCEPTED_IN_ALL if hasattr(requests[0], name))
    for request in requests:
        total = getattr(request, name)
        yield total - getattr(request, _COUNTED, 0)
        setattr(request, _COUNTED, total)


def _worker(scheduler: Any) -> Any:
    return scheduler.draft_worker or scheduler.model_worker


def decode_log_interval(scheduler: Any) -> int:
    """Return the decode steps per line of SGLang's log; its default where that isn't to be had.

    The reporter has it since 0.5.16; up to 0.5.18 the scheduler's part has the server's arguments.
    """
    for name in ("metrics_reporter", "server_args"):
        interval = getattr(getattr(scheduler, name, None), "decode_log_interval", None)
        if interval is not None:
            return int(interval)
    return _DECODE_LOG_INTERVAL


def _records(scheduler: Any) -> bool:
    """Whether this is the rank whose statistics SGLang logs, the first of its replica."""
    reporter = getattr(scheduler, "metrics_reporter", None)
    if reporter is None:
        logs_statistics = scheduler.attn_tp_rank == 0
    else:
        logs_statistics = reporter.is_stats_logging_rank
    return bool(logs_statistics) and _is_first_of_context()


@functools.cache  # asked at every step, and a process keeps its rank
def _is_first_of_context() -> bool:
    """Whether no other rank of the context-parallel group records in place of this one.

    Before 0.5.23 SGLang logs the statistics of each of them. Where it keeps the rank has changed
    twice; that it writes it into the title of the process has not.
    """
    return ranks().get("ATTN_CP", 0) == 0


def _first(thing: Any, names: Sequence[str]) -> Any:
    """The first attribute of these names that is there and not None."""
    for name in names:
        if (value := getattr(thing, name, None)) is not None:
            return value
    raise AttributeError(f"{type(thing).__name__} has none of {', '.join(names)}")
