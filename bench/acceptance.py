"""What recording acceptance costs: a verify step of the scheduler, and a whole server.

`step` calls the hook around a verify step that does nothing, at several batch sizes: without a
trace, with one, with metrics too, and with a line of log for every step. `server` asks a stock
server and a patched one, which traces, in turn, so that a busy machine slows both; the stock
server's rounds against each other tell what such a machine can't tell apart.

    ./launch.sh bench acceptance [--part step|server] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

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
    """Tokens per second of both servers, and the median of the rounds' ratios, patched / stock.

    `quickest` is the same ratio of the quickest quarter of each server's rounds, which others on
    the machine slowed least; `stock_ratio` the median of every other stock round / the next.
    """

    stock: float
    patched: float
    ratio: float
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
    parser.add_argument("--rounds", type=int, default=40, help="of each server (default: 40)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there, too")
    arguments = parser.parse_args(argv)
    parts = arguments.part or ["step", "server"]
    steps = measure_steps(arguments.chunks) if "step" in parts else []
    rates = measure_servers(arguments.rounds) if "server" in parts else None
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
    with tempfile.TemporaryDirectory(prefix="bench-acceptance-") as folder:
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


def measure_servers(rounds: int) -> Rates:
    """Ask both servers the same prompts in turn, another one first each time."""
    environment = environments.ensure(releases.DEFAULT)
    prompts, new_tokens = Outlook.shipped().prompts[:4], Outlook.shipped().new_tokens
    with tempfile.TemporaryDirectory(prefix="bench-acceptance-") as name:
        folder = Path(name)
        draft = forms.write_form("native", folder / "draft")
        # Who is not asked would keep a core busy.
        arguments = [*server.speculation(draft), "--enable-metrics", "--sleep-on-idle"]
        trace = folder / "trace.jsonl"
        patched_variables = {VARIABLE: "1", f"{VARIABLE}_TRACE": str(trace)}
        with (
            server.start(environment, folder / "stock.log", arguments) as stock,
            server.start(
                environment, folder / "patched.log", arguments, variables=patched_variables
            ) as patched,
        ):
            both = [stock, patched]
            seconds: dict[int, list[float]] = {stock.port: [], patched.port: []}
            for one in both:
                one.wait_until_ready()
                one.generate_at_once(prompts, new_tokens)
            for _ in range(rounds):
                for one in both:
                    seconds[one.port].append(one.generate_at_once(prompts, new_tokens).seconds)
                both.reverse()
            time.sleep(1)
            traced = len(read_trace([trace]).steps)
    tokens = len(prompts) * new_tokens
    slow, fast = seconds[stock.port], seconds[patched.port]
    return Rates(
        stock=tokens / statistics.median(slow),
        patched=tokens / statistics.median(fast),
        ratio=statistics.median(s / p for s, p in zip(slow, fast, strict=True)),
        quickest=quickest(slow) / quickest(fast),
        stock_ratio=statistics.median(s / o for s, o in zip(slow[::2], slow[1::2], strict=False)),
        rounds=rounds,
        traced_steps=traced,
    )


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
    """Return the servers' rates as text."""
    return (
        f"tokens per second, {rates.rounds} rounds of each in turn, {rates.traced_steps} steps "
        f"traced\nstock {rates.stock:.1f}, patched {rates.patched:.1f}, ratio {rates.ratio:.3f} "
        f"(goal: {SERVER_GOAL})\n"
        f"of the quickest rounds {rates.quickest:.3f}, of stock with itself {rates.stock_ratio:.3f}"
    )


if __name__ == "__main__":
    sys.exit(main())
