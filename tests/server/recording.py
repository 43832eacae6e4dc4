"""Asks a server all that a recorder can get wrong, and keeps SGLang's own word beside ours.

Several requests at once, of which one is aborted and others are retracted (`RETRACTING`); a scrape
of `/metrics` while they run and one after; then the server is killed in the middle of another.
"""

from __future__ import annotations

import contextlib
import re
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from sglang_eagle3_patch.acceptance import metrics
from sglang_eagle3_patch.acceptance.trace_reader import Step, Trace, read_trace
from sglang_eagle3_patch.engine import selfreport
from tests.cpu_sglang.pair.outlook import Outlook
from tests.cpu_sglang.server import VARIABLE, Server
from tests.server.serving import Outcome

TRACE = "trace.jsonl"
STATUS = "status"
RECORDING = {
    VARIABLE: "1",
    f"{VARIABLE}_TRACE": f"{{folder}}/{TRACE}",
    f"{VARIABLE}_OPTIONS": "trace_requests=1",
}
# SGLang's own switch: every so many forwards a request is retracted, as if memory had run out.
RETRACTING = {"SGLANG_TEST_RETRACT": "1", "SGLANG_TEST_RETRACT_INTERVAL": "9"}
NEW_TOKENS = 40
WARM_UP_STEPS = 3  # at most, of the request before what is asked one by one
ABORTED, KILLED = "aborted", "killed"
_LONG = 600
Labels = frozenset[tuple[str, str]]


@dataclass(frozen=True)
class Recording:
    """What one server said of the same requests in three ways."""

    meta: dict[str, dict[str, Any]]  # SGLang's `meta_info` by request
    trace: Trace  # of everything before the kill
    trace_after_kill: Trace
    scraped_under_load: dict[str, float]
    scraped: dict[str, float]
    labels: dict[str, set[Labels]]  # of every metric of the server, SGLang's too
    retractions: int
    reports: list[dict[str, Any]] = field(default_factory=list)

    def steps_of(self, request: str) -> list[tuple[Step, int]]:
        """The verify steps that a request took part in, and what it accepted in each."""
        return [
            (step, accepted)
            for step in self.trace.steps
            for name, accepted in zip(step.requests or (), step.accepted, strict=True)
            if name == request
        ]


def record(server: Server, folder: Path) -> Recording:
    """Ask the server everything, kill it, and return what was said."""
    prompts = Outlook.shipped().prompts
    names = [f"request-{number}" for number in range(len(prompts[:6]))]
    with ThreadPoolExecutor(len(names) + 1) as pool:
        answers = [
            pool.submit(ask, server, prompt, name, NEW_TOKENS)
            for prompt, name in zip(prompts, names, strict=False)
        ]
        aborted = pool.submit(ask, server, prompts[0], ABORTED, _LONG)
        wait_until(folder, lambda trace: _took_part(trace, ABORTED) > 3)
        under_load = scrape(server)
        server.post("/abort_request", {"rid": ABORTED})
        meta = {name: answer.result() for name, answer in zip(names, answers, strict=True)}
        if (told := aborted.result()) is not None:
            meta[ABORTED] = told
    server.settle()
    time.sleep(1)  # a step is in the trace a second after it was made, at the latest
    trace, scraped, labels = read_trace([folder / TRACE]), scrape(server), scrape_labels(server)
    reports = selfreport.read_all(folder / STATUS)
    with ThreadPoolExecutor(1) as pool:
        cut_off = pool.submit(ask, server, prompts[1], KILLED, _LONG)
        wait_until(folder, lambda trace: _took_part(trace, KILLED) > 3)
        server.stop()  # by SIGKILL
        cut_off.result()
    return Recording(
        meta=meta,
        trace=trace,
        trace_after_kill=read_trace([folder / TRACE]),
        scraped_under_load=under_load,
        scraped=scraped,
        labels=labels,
        retractions=sum(map(int, re.findall(r"#retracted_reqs: (\d+)", server.log))),
        reports=reports,
    )


def ask(server: Server, prompt: str, name: str, new_tokens: int) -> dict[str, Any] | None:
    """Return the `meta_info` of one greedy answer; None where the server gave none."""
    sampling = {"temperature": 0, "max_new_tokens": new_tokens, "ignore_eos": True}
    body = {"text": prompt, "rid": name, "sampling_params": sampling}
    with contextlib.suppress(urllib.error.HTTPError, ConnectionError, urllib.error.URLError):
        meta: dict[str, Any] = server.post("/generate", body)["meta_info"]
        return meta
    return None


def wait_until(folder: Path, seen: Any) -> None:
    """Return once the trace shows it."""
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        if (folder / TRACE).exists() and seen(read_trace([folder / TRACE])):
            return
        time.sleep(0.5)
    raise AssertionError("the trace never showed it")


def _took_part(trace: Trace, request: str) -> int:
    return sum(request in (step.requests or ()) for step in trace.steps)


def beyond_what_was_asked(outcome: Outcome) -> Counter[int]:
    """Return the verify steps of requests that a trace has by drafts accepted, less those that
    SGLang's own histograms tell of the prompts asked one by one and at once.

    What is left is of the request before those. Fails where the trace lacks a step.
    """
    assert outcome.trace is not None
    recorded = Counter(count for step in outcome.trace.steps for count in step.accepted)
    told: Counter[int] = Counter()
    for served in (outcome.served, outcome.at_once):
        assert served is not None, outcome.log[-4000:]
        for histogram in served.histograms:
            told.update(dict(enumerate(histogram)))
    assert told <= recorded
    return recorded - told


def scrape(server: Server) -> dict[str, float]:
    """Return our metrics as `/metrics` exposes them, by name and position, over all ranks."""
    found: Counter[str] = Counter()
    for sample in _samples(server):
        if sample.name.startswith(metrics.PREFIX):
            position = sample.labels.get("position")
            name = sample.name if position is None else f"{sample.name}[{position}]"
            found[name] += sample.value
    return dict(found)


def scrape_labels(server: Server) -> dict[str, set[Labels]]:
    """Return the label sets of every metric that `/metrics` exposes, but for `position`."""
    found: dict[str, set[Labels]] = {}
    for sample in _samples(server):
        labels = frozenset(sample.labels.items() - {("position", sample.labels.get("position"))})
        found.setdefault(sample.name, set()).add(labels)
    return found


def _samples(server: Server) -> Iterator[Sample]:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    for family in text_string_to_metric_families(text):
        yield from family.samples
