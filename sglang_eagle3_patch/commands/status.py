"""`sglang-eagle3 status`: what would be patched in the installed SGLang, or what a server reports.

Without a server it is a rehearsal: every patch is applied in this process, which serves nothing,
and its touch points are compared with the real classes. With one, `GET /server_info` is asked.
"""

from __future__ import annotations

import argparse
import json
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any

from sglang_eagle3_patch.engine.patch import Patch

ANSWER_SECONDS = 30


class NoAnswer(RuntimeError):
    """The server can't be asked, or knows nothing of us; the text says which."""


def add_parser(commands: Any) -> None:
    """Add the command to the subparsers of `sglang-eagle3`."""
    parser = commands.add_parser(
        "status",
        help="what would be patched in the installed SGLang, or what a server's processes report",
    )
    parser.add_argument("--server", metavar="URL", help="ask this server, e.g. 127.0.0.1:30000")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the status; 0 when nothing is in trouble, 1 when something is, 2 without an answer."""
    try:
        processes = ask(arguments.server) if arguments.server else [rehearsal()]
    except NoAnswer as problem:
        print(f"sglang-eagle3 status: {problem}", file=sys.stderr)
        return 2
    if arguments.json:
        json.dump({"processes": processes}, sys.stdout, indent=1)
        print()
    else:
        print_processes(processes)
    return 1 if any(in_trouble(process) for process in processes) else 0


def ask(server: str) -> list[Mapping[str, Any]]:
    """Return the reports of the processes of the server at `server` (a URL or host:port).

    Raises `NoAnswer` with the one thing to do about it.
    """
    url = server if "://" in server else f"http://{server}"
    try:
        with urllib.request.urlopen(
            f"{url.rstrip('/')}/server_info", timeout=ANSWER_SECONDS
        ) as answer:
            info = json.load(answer)
    except (urllib.error.URLError, OSError, ValueError) as error:
        raise NoAnswer(
            f"{url} does not answer /server_info ({error}). Fix: give the address of a running "
            "SGLang server, e.g. --server 127.0.0.1:30000"
        ) from error
    states = info.get("internal_states") if isinstance(info, dict) else None
    found: dict[Any, Mapping[str, Any]] = {}
    for state in states if isinstance(states, list) else []:
        for process in state.get("eagle3_patch", []) if isinstance(state, dict) else []:
            found[process.get("host"), process.get("pid")] = process
    if not found:
        raise NoAnswer(
            f"{url} runs without the plugin, or with -self-report. "
            "Fix: start it with SGLANG_EAGLE3_PATCH=1 or by sglang_eagle3_patch.launch_server"
        )
    return sorted(found.values(), key=lambda process: str(process.get("name")))


def rehearsal() -> Mapping[str, Any]:
    """Apply every patch here and return the report. Raises `NoAnswer` without an SGLang."""
    try:
        import sglang
    except ImportError as error:
        raise NoAnswer(
            f"there is no SGLang in this environment ({error}). Fix: run this with the python "
            "that serves, or ask a server with --server"
        ) from error
    from sglang_eagle3_patch import __version__, rehearse
    from sglang_eagle3_patch.engine.selfreport import ProcessReport

    return ProcessReport(
        role="rehearsal",
        state="ready",
        patches=tuple(rehearse()),
        versions={"sglang": sglang.__version__, "sglang_eagle3_patch": __version__},
    ).as_data()


def in_trouble(process: Mapping[str, Any]) -> bool:
    """Whether a patch of the process failed, found another signature, or was replaced, or its
    acceptance alarm is on."""
    from sglang_eagle3_patch.engine.selfreport import TROUBLE

    if process.get("facts", {}).get("acceptance_alarm"):
        return True
    return any(patch["status"] in {word.value for word in TROUBLE} for patch in process["patches"])


def print_processes(processes: Sequence[Mapping[str, Any]]) -> None:
    """Print one table per process: patch, status, why, and when the patch can go."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from sglang_eagle3_patch.hooks import PATCHES

    declared = {patch.name: patch for patch in PATCHES}
    console = Console()
    for process in processes:
        versions = process.get("versions", {})
        title = ", ".join(f"{name} {version}" for name, version in versions.items())
        if process["role"] != "rehearsal":
            title = f"{process['name']} (pid {process['pid']}, {process['state']}): {title}"
        table = Table(title=title, title_justify="left", expand=False)
        for column in ("patch", "status", "why", "goes when"):
            table.add_column(column, overflow="fold")
        for patch in process["patches"]:
            known = declared.get(patch["name"])
            why, goes = _why(patch, known), known.remove_when if known else ""
            # As text: what is in brackets would be taken for markup.
            table.add_row(
                *(Text(str(cell)) for cell in (patch["name"], patch["status"], why, goes))
            )
        console.print(table)
        told = {name: value for name, value in process.get("facts", {}).items() if value}
        if ready := told.pop("ready", None):
            console.print(ready, markup=False, highlight=False)
        if told:
            console.print(", ".join(f"{k}: {v}" for k, v in told.items()), markup=False)


def _why(patch: Mapping[str, Any], known: Patch | None) -> str:
    """Why the patch is what it is: its detail, else the reason it exists."""
    return str(patch.get("detail") or (known.reason if known else ""))
