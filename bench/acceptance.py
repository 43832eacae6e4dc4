"""What recording acceptance costs: a verify step of the scheduler, and a whole server.

`step` calls the hook around a verify step that does nothing, at several batch sizes: without a
trace, with one, with metrics too, and with a line of log for every step. `server` asks one server,
which traces and counts, with all hooks in and with all of them out by turns: of two servers one is
up to 8 % quicker than the other, stock ones too, which would drown what the hooks cost.

    ./launch.sh bench acceptance [--part step|server] [--rounds N] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import psutil

from bench import hooks_in_turn
from sglang_eagle3_patch.acceptance.trace_reader import read_trace
from sglang_eagle3_patch.hooks import acceptance
from tests.cpu_sglang import environments, releases, server
from tests.cpu_sglang.pair import forms
from tests.cpu_sglang.pair.outlook import Outlook

VARIABLE = "SGLANG_EAGLE3_PATCH"
BATCHES = (1, 16, 64, 256)
PLAIN, TRACED, COUNTED, LOGGED = "counted only", "+ trace", "+ trace, metrics", "+ a line a step"
STEP_GOAL_US, STEP_GOAL_AT = 25.0, (TRACED, 64)
SERVER_GOAL = 0.99
_CHUNK = 50  # steps in a row: the writer keeps up with no more


@dataclass(frozen=True)
class Step:
    """Microseconds of CPU that recording adds to a verify step: in the scheduler's own thread
    (median of chunks), and in the whole process, the writing of the trace included (mean).

    CPU and not the clock, which on a busy machine tells of the others.
    """

    case: str
    batch: int
    thread_us: float
    process_us: float

    @property
    def within_goal(self) -> bool:
        return (self.case, self.batch) != STEP_GOAL_AT or self.thread_us <= STEP_GOAL_US


@dataclass(frozen=True)
class Rates:
    """Tokens per second of the server without the hooks and with them, by the median round.

    `ratio` is the median over the rounds of with / without, `between` what holds 95 % of the
    medians of rounds drawn anew from these (bootstrap). `quickest` is the ratio of the quickest
    quarter of either, which others on the machine slowed least; `stock_ratio` the median of every
    other round without hooks / the next, which is 1 but for noise.
    """

    stock: float
    patched: float
    ratio: float
    between: tuple[float, float]
    quickest: float
    stock_ratio: float
    rounds: int
    traced_steps: int

    @property
    def within_goal(self) -> bool:
        return self.ratio >= SERVER_GOAL


class Request:
    """What the hook asks of a request."""

    finished_reason = None

    def __init__(self, number: int) -> None:
        self.rid, self.spec_verify_ct = f"{number:032x}", 0


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the tables; returns 1 when a goal is missed."""
    parser = argparse.ArgumentParser(prog="bench acceptance", description=__doc__.splitlines()[0])
    parser.add_argument("--part", choices=("step", "server"), action="append", help="default: both")
    parser.add_argument("--chunks", type=int, default=100, help="of 50 steps each (default: 100)")
    parser.add_argument("--rounds", type=int, default=300, help="of the server (default: 300)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there, too")
    arguments = parser.parse_args(argv)
    parts = arguments.part or ["step", "server"]
    steps = measure_steps(arguments.chunks) if "step" in parts else []
    rates = measure_server(arguments.rounds) if "server" in parts else None
    print(
        "\n\n".join(([step_table(steps)] if steps else []) + ([rates_text(rates)] if rates else []))
    )
    if arguments.json is not None:
        numbers = {
            "steps": [asdict(step) for step in steps],
            "server": asdict(rates) if rates else None,
        }
        arguments.json.write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8")
    within = [step.within_goal for step in steps] + ([rates.within_goal] if rates else [])
    return 0 if all(within) else 1


def measure_steps(chunks: int) -> list[Step]:
    """Return what each case adds at each batch size."""
    folders = tempfile.TemporaryDirectory(prefix="bench-acceptance-")
    # What the cases set is not for the server, which inherits the environment.
    with folders as folder, mock.patch.dict(os.environ):
        logging.basicConfig(level=logging.INFO, filename=Path(folder, "log"))
        return [
            measure_step(case, batch, chunks, Path(folder))
            for batch in BATCHES
            for case in (PLAIN, TRACED, COUNTED, LOGGED)
        ]


def measure_step(case: str, size: int, chunks: int, folder: Path) -> Step:
    """Time the hook around a step of `size` requests, less the step itself."""
    os.environ[f"{VARIABLE}_ACCEPT_LOG"] = "step" if case == LOGGED else "interval"
    os.environ[f"{VARIABLE}_TRACE"] = "" if case == PLAIN else str(folder / f"{case}-{size}")
    os.environ[f"{VARIABLE}_OPTIONS"] = "trace_requests=1"
    requests = [Request(number) for number in range(size)]
    batch = SimpleNamespace(
        spec_algorithm=SimpleNamespace(is_eagle3=lambda: True, name="EAGLE3"), reqs=requests
    )
    accepted = [number % 4 for number in range(size)]
    result = SimpleNamespace(
        num_correct_drafts_per_req_cpu=accepted,
        accept_lens=object(),
        speculative_num_draft_tokens=4,
    )
    collector = None
    if case == COUNTED:
        os.environ.setdefault("PROMETHEUS_MULTIPROC_DIR", str(folder))
        collector = SimpleNamespace(labels={"model_name": f"m{size}", "tp_rank": 0})
        _forget_metrics()
    scheduler = SimpleNamespace(
        metrics_reporter=SimpleNamespace(is_stats_logging_rank=True),
        metrics_collector=collector,
        draft_worker=SimpleNamespace(
            topk=1, speculative_num_steps=3, speculative_num_draft_tokens=4
        ),
    )
    acceptance._log = None

    def process(*_: Any) -> None:
        for request in requests:
            request.spec_verify_ct += 1

    def recorded() -> None:
        acceptance.around_decode_result(process, scheduler, (batch, result), {})

    recorded()
    bare, hooked, cpu = [], [], 0.0
    for _ in range(chunks):
        bare.append(timed(process))
        began = time.process_time()
        hooked.append(timed(recorded))
        time.sleep(0.01)  # the writer's part falls in here
        cpu += time.process_time() - began
    log = acceptance._log
    assert log is not None
    assert log.recorder.steps == chunks * _CHUNK + 1
    if log.trace is not None:
        began = time.process_time()
        log.trace.close()
        cpu += time.process_time() - began
        assert log.trace.dropped == 0
    own = statistics.median(bare)
    return Step(case, size, statistics.median(hooked) - own, cpu / (chunks * _CHUNK) * 1e6 - own)


def timed(step: Callable[[], None]) -> float:
    """Microseconds of CPU that one of a chunk of steps takes this thread."""
    began = time.thread_time()
    for _ in range(_CHUNK):
        step()
    return (time.thread_time() - began) / _CHUNK * 1e6


def _forget_metrics() -> None:
    """Prometheus takes a name once in a process."""
    from prometheus_client import REGISTRY

    for known in list(REGISTRY._collector_to_names):
        REGISTRY.unregister(known)


def measure_server(rounds: int) -> Rates:
    """Ask a server the same prompts with the hooks in and out, the other one first each time."""
    environment = environments.ensure(releases.DEFAULT)
    prompts, new_tokens = Outlook.shipped().prompts[:4], Outlook.shipped().new_tokens
    with tempfile.TemporaryDirectory(prefix="bench-acceptance-") as name:
        folder = Path(name)
        draft = forms.write_form("native", folder / "draft")
        arguments = [*server.speculation(draft), "--enable-metrics", "--sleep-on-idle"]
        trace = folder / "trace.jsonl"
        path = (environment.variables()["PYTHONPATH"], str(environments.REPOSITORY))
        variables = {
            VARIABLE: "1",
            f"{VARIABLE}_TRACE": str(trace),
            "PYTHONPATH": os.pathsep.join(path),
        }
        log = folder / "server.log"
        with server.start(
            environment, log, arguments, launcher="bench.hooks_in_turn", variables=variables
        ) as one:
            one.wait_until_ready()
            one.generate_at_once(prompts, new_tokens)
            scheduler = scheduler_of(one)
            spans: dict[int, list[tuple[float, float]]] = {
                hooks_in_turn.OUT: [],
                hooks_in_turn.IN: [],
            }
            for number in range(rounds):
                for state in list(spans)[:: -1 if number % 2 else 1]:
                    scheduler.send_signal(state)
                    time.sleep(0.1)
                    one.generate_at_once(prompts, 4)  # not timed: the first calls after a change
                    began = time.time()
                    seconds = one.generate_at_once(prompts, new_tokens).seconds
                    spans[state].append((began, seconds))
            time.sleep(1)
            steps = [step.time for step in read_trace([trace]).steps]
    for state, told in spans.items():
        traced = [any(began < step < began + spent for step in steps) for began, spent in told]
        assert traced == [state == hooks_in_turn.IN] * rounds, "the hooks were not as asked"
    slow, fast = ([spent for _, spent in told] for told in spans.values())
    ratios = [without / with_them for without, with_them in zip(slow, fast, strict=True)]
    tokens = len(prompts) * new_tokens
    return Rates(
        stock=tokens / statistics.median(slow),
        patched=tokens / statistics.median(fast),
        ratio=statistics.median(ratios),
        between=median_lies_between(ratios),
        quickest=quickest(slow) / quickest(fast),
        stock_ratio=statistics.median(s / o for s, o in zip(slow[::2], slow[1::2], strict=False)),
        rounds=rounds,
        traced_steps=len(steps),
    )


def scheduler_of(one: server.Server) -> psutil.Process:
    """Return the server's only scheduler; it names itself."""
    below = psutil.Process(one.process.pid).children(recursive=True)
    (scheduler,) = (child for child in below if "sglang::scheduler" in child.cmdline())
    return scheduler


def median_lies_between(ratios: Sequence[float]) -> tuple[float, float]:
    """Return what holds 95 % of the medians of as many ratios, drawn from these at random."""
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(1000))
    return medians[25], medians[-26]


def quickest(seconds: Sequence[float]) -> float:
    """Mean of the quickest quarter."""
    return statistics.mean(sorted(seconds)[: -(-len(seconds) // 4)])


def step_table(steps: Sequence[Step]) -> str:
    """Return the steps as text."""
    lines = [
        "microseconds of CPU that recording adds to a verify step: the scheduler's thread (all)",
        f"{'requests':<18}" + "".join(f"{batch:>17}" for batch in BATCHES),
    ]
    for case in dict.fromkeys(step.case for step in steps):
        cells = [f"{s.thread_us:.1f} ({s.process_us:.1f})" for s in steps if s.case == case]
        lines.append(f"{case:<18}" + "".join(f"{cell:>17}" for cell in cells))
    case, batch = STEP_GOAL_AT
    return "\n".join([*lines, f"goal: {STEP_GOAL_US} for {case!r} at {batch}"])


def rates_text(rates: Rates) -> str:
    """Return the server's rates as text."""
    low, high = rates.between
    return (
        f"tokens per second of one server, {rates.rounds} rounds without hooks and with them in "
        f"turn, {rates.traced_steps} steps traced\n"
        f"stock {rates.stock:.1f}, patched {rates.patched:.1f}, ratio {rates.ratio:.3f} (95 %: "
        f"{low:.3f} to {high:.3f}; goal: {SERVER_GOAL})\n"
        f"of the quickest rounds {rates.quickest:.3f}, of stock with itself {rates.stock_ratio:.3f}"
    )


if __name__ == "__main__":
    sys.exit(main())
