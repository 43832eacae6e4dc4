"""`./launch.sh demo`: the failure and its repair, on real SGLang servers without a GPU.

The same prompts are served without speculation, then by stock SGLang and by SGLang with the
plugin, each with the same trained drafter in four guises. While one server answers, the next one
starts on the other core.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.cpu_sglang import environments, releases, server
from tests.cpu_sglang.pair import forms
from tests.cpu_sglang.pair.outlook import Outlook

PROMPTS, NEW_TOKENS = 4, 64
ENOUGH = 0.95  # of the expected accept length
# Stock SGLang before 0.5.10 can't capture Kimi-K2.5 at all: what the others would have done is
# shown with that one patch alone.
LACKS_KIMI_CAPTURE = ("0.5.9",)


@dataclass(frozen=True)
class Case:
    """One server of the demonstration."""

    key: str
    title: str
    route: str  # none, stock, partial or plugin
    draft: str | None
    algorithm: str | None

    @property
    def name(self) -> str:
        return f"{self.route} {self.key}".strip()


@dataclass
class Run:
    """One row of the result; the fields of `--json`."""

    name: str
    route: str
    draft: str | None
    algorithm: str | None
    started: bool = False
    error: str | None = None
    accept_length: float | None = None
    accept_rate: float | None = None
    tokens_per_s: float | None = None
    same_text: bool = False


DRAFTS = (
    ("a", "native names (midlayer.*)", "native", "EAGLE3"),
    ("b", "layers.0.* names, SGLang config", "founding", "EAGLE3"),
    ("c", "as speculators writes it", "speculators", "EAGLE3"),
    ("d", "native names, started as EAGLE", "native", "EAGLE"),
)


def cases(release: releases.Release) -> list[Case]:
    """Return the servers of the demonstration, the one without speculation first."""
    found = [Case("", "no speculation", "none", None, None)]
    found += [Case(key, title, "stock", draft, algo) for key, title, draft, algo in DRAFTS]
    if release.version in LACKS_KIMI_CAPTURE:
        found += [
            Case(key, f"{title}; kimi-capture alone", "partial", draft, algo)
            for key, title, draft, algo in DRAFTS
            if key in "bd"
        ]
    return found + [Case(key, title, "plugin", draft, algo) for key, title, draft, algo in DRAFTS]


def launch(
    case: Case, environment: environments.Environment, drafts: Path, logs: Path
) -> contextlib.AbstractContextManager[server.Server]:
    """Start the server of one case; it may not be ready yet."""
    draft = None if case.draft is None else drafts / case.draft
    variables = {server.VARIABLE: "kimi-capture"} if case.route == "partial" else {}
    return server.start(
        environment,
        logs / f"{case.name.replace(' ', '-')}.log",
        server.speculation(draft, case.algorithm or ""),
        launcher=server.OURS if case.route == "plugin" else server.STOCK,
        variables=variables,
    )


def serve(
    all_cases: Sequence[Case], environment: environments.Environment, drafts: Path, logs: Path
) -> Iterator[tuple[Case, server.Served | str, str]]:
    """Yield for each case what it served (or why it did not start) and its log, in order."""
    prompts = Outlook.shipped().prompts[:PROMPTS]
    with contextlib.ExitStack() as stack:
        upcoming = [launch(case, environment, drafts, logs) for case in all_cases]
        running = stack.enter_context(upcoming[0])
        for index, case in enumerate(all_cases):
            current = running
            if index + 1 < len(all_cases):
                running = stack.enter_context(upcoming[index + 1])
            try:
                current.wait_until_ready()
                served: server.Served | str = current.generate(prompts, NEW_TOKENS)
            except server.ServerDied as died:
                served = refusal(died.log)
            current.stop()
            yield case, served, current.log


def refusal(log: str) -> str:
    """Return the one line of a dead server's log that says why."""
    own = re.findall(r"(sglang-eagle3-patch: .*Fix: .*)", log)
    if own:
        return str(own[-1])
    errors = re.findall(r"^(?:\[[^]]*\] )?((?:\w+\.)*\w*(?:Error|Exception)\b.*)$", log, re.M)
    return str(errors[0] if errors else log.strip().splitlines()[-1])


def sentence(case: Case, run: Run, expected: float, log: str) -> str:
    """Say in one sentence what happened."""
    if not run.started:
        return f"refuses to start: {textwrap.shorten(run.error or '', 150, placeholder=' …')}"
    if case.route == "none":
        return "serves; this is the text every other row is compared with"
    assert run.accept_length is not None
    if run.accept_length >= ENOUGH * expected:
        return f"serves as trained: {run.accept_length / expected:.0%} of the expected length"
    told = "a word of it" if server.telling_lines(log) else "nothing"
    rejected = "all" if run.accept_rate == 0 else f"{1 - (run.accept_rate or 0):.0%}"
    return f"serves, {rejected} of the drafts rejected, {told} in the log"


def demonstrate(version: str, json_file: Path | None) -> int:
    """Run the demonstration for one release; returns the exit status."""
    environment = environments.ensure(version)
    outlook = Outlook.shipped()
    worker = environment.release.worker
    expected = outlook.accept_length("trained", environment.release.quirks[worker], PROMPTS)
    print(f"SGLang {version}, {PROMPTS} prompts x {NEW_TOKENS} tokens, greedy, 3 draft steps")
    print(f"expected accept length, computed in torch without a server: {expected:.3f}\n")
    print(f"{'':7} {'draft':48} {'accept len':>10} {'rate':>6} {'tok/s':>6} {'same text':>9}")
    runs: list[Run] = []
    texts: list[str] = []
    with tempfile.TemporaryDirectory(prefix="eagle3-demo-") as folder:
        drafts, logs = Path(folder) / "drafts", Path(folder) / "logs"
        for form in {draft for _, _, draft, _ in DRAFTS}:
            forms.write_form(form, drafts / form)
        for case, served, log in serve(cases(environment.release), environment, drafts, logs):
            run = Run(case.name or "none", case.route, case.draft, case.algorithm)
            if isinstance(served, str):
                run.error = served
            else:
                texts = texts or served.texts
                fill(run, served, texts)
            runs.append(run)
            print_row(case, run, sentence(case, run, expected, log))
    if json_file is not None:
        report = {
            "sglang": version,
            "reference": {"accept_length": round(expected, 4)},
            "runs": [asdict(run) for run in runs],
        }
        json_file.write_text(json.dumps(report, indent=1) + "\n")
    return verdict(runs, expected)


def fill(run: Run, served: server.Served, texts: list[str]) -> None:
    """Fill a row from what was served."""
    run.started = True
    run.accept_length = served.accept_length
    run.accept_rate = served.accept_rate
    run.tokens_per_s = round(served.tokens_per_second, 1)
    run.same_text = served.texts == texts


def print_row(case: Case, run: Run, text: str) -> None:
    def shown(value: float | None, form: str) -> str:
        return "-" if value is None else format(value, form)

    title = f"({case.key}) {case.title}" if case.key else case.title
    print(
        f"{case.route:7} {title:48} {shown(run.accept_length, '.3f'):>10} "
        f"{shown(run.accept_rate, '.3f'):>6} {shown(run.tokens_per_s, '.0f'):>6} "
        f"{'yes' if run.same_text else 'no' if run.started else '-':>9}"
    )
    print(f"        {text}", flush=True)


def verdict(runs: Sequence[Run], expected: float) -> int:
    """Return 1 and say so when the plugin did not repair a row."""
    failed = [
        run.name
        for run in runs
        if run.route == "plugin"
        and not (run.same_text and (run.accept_length or 0) >= ENOUGH * expected)
    ]
    if failed or not runs[0].started:
        print(f"\nnot repaired: {', '.join(failed) or 'no reference'}")
        return 1
    print("\nevery draft repaired by the plugin; the text is that of the run without speculation")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the arguments of `./launch.sh demo` and run it."""
    parser = argparse.ArgumentParser(prog="launch.sh demo", description=__doc__)
    parser.add_argument("--sglang", default=releases.DEFAULT, metavar="V", help="SGLang release")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result as JSON")
    arguments: Any = parser.parse_args(argv)
    started = time.monotonic()
    status = demonstrate(arguments.sglang, arguments.json)
    print(f"{time.monotonic() - started:.0f} s")
    return status


if __name__ == "__main__":
    sys.exit(main())
