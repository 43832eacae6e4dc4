"""The doctor's judgement in words: the verdict, the findings, the command to start with."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from sglang_eagle3_patch.checkpoint.json_file import printable
from sglang_eagle3_patch.checkpoint.launch import is_same_option
from sglang_eagle3_patch.checkpoint.rules import Finding, Judgement
from sglang_eagle3_patch.checkpoint.rules.document import FILE
from sglang_eagle3_patch.checkpoint.rules.judgement import Side

_ORDER = ("error", "fixable", "warning", "info")
_STYLES = {"error": "bold red", "fixable": "yellow", "warning": "yellow", "info": "dim"}
OUTCOMES = {
    "serves": "serves",
    "degraded": "serves, but not as trained",
    "refuses": "refuses to start",
    "unknown": "can't be told",
}
_OURS, _STOCK = "sglang_eagle3_patch.launch_server", "sglang.launch_server"
# Meant for the command that a verdict without a target can't fill in.
_TARGET = "TARGET"


def print_judgement(
    judgement: Judgement, draft: str, target: str | None, arguments: Sequence[str]
) -> None:
    """Print a judgement: the verdict first, then findings by severity, then the command."""
    from rich.console import Console
    from rich.text import Text

    # Paths and commands are to be copied: lines are not broken.
    console: Any = Console(highlight=False, soft_wrap=True)
    console.print(Text(outcome_line(f"stock {judgement.release}", judgement.stock)))
    console.print(Text(outcome_line("with the plugin", judgement.plugin)))
    unsought = [finding for finding in judgement.told if finding.wants_target]
    told = [finding for finding in judgement.told if finding not in unsought]
    for severity in _ORDER:
        for finding in told:
            if finding.severity == severity:
                console.print()
                console.print(Text(_heading(finding), style=_STYLES[severity]), end="")
                console.print(Text(f"  {printable(finding.message)}"))
                console.print(Text(f"    remedy: {printable(finding.remedy)}"))
    if unsought:
        console.print(Text(f"\n{len(unsought)} rules compare with a target: name it with --target"))
    if told:
        console.print(Text(f"\nexplained in {FILE}, by these names"))
    when = ", once the errors are mended" if judgement.verdict == "error" else ""
    console.print(Text(f"\nstart it with{when}:\n"))
    console.print(Text(f"  {launch_command(judgement, draft, target, arguments)}"))


def launch_command(
    judgement: Judgement, draft: str, target: str | None, arguments: Sequence[str]
) -> str:
    """Return the command that serves the draft, with the arguments that findings ask for."""
    wanted = list(arguments)
    needed = {"--speculative-draft-model-path": draft, "--speculative-algorithm": "EAGLE3"}
    for finding in judgement.told:
        flag, *values = finding.arguments or ("",)
        needed |= {flag: values[0] if values else ""} if flag else {}
    if not _has(wanted, "--model-path", "--model"):
        wanted = ["--model-path", target or _TARGET, *wanted]
    for flag, value in needed.items():
        wanted = _with_flag(wanted, flag, value)
    module = _OURS if judgement.side == "plugin" else _STOCK
    return shlex.join(["python", "-m", module, *wanted])


def outcome_line(who: str, side: Side) -> str:
    """Return what comes of it for `who`, and why, in one line."""
    joint = " " if side.outcome == "serves" else ": "
    return f"{who}: {OUTCOMES[side.outcome]}{joint}{printable(side.why)}"


def _heading(finding: Finding) -> str:
    status = "" if finding.status == "wrong" else ", not known"
    return f"{finding.severity}{status} {finding.id}\n"


def _has(arguments: Sequence[str], *flags: str) -> bool:
    return any(argument.partition("=")[0] in flags for argument in arguments)


def _with_flag(arguments: Sequence[str], flag: str, value: str) -> list[str]:
    """Give a flag a value, in place of the one that it has, whatever beginning of it was typed."""
    result: list[str] = []
    skip = False
    for argument in arguments:
        if skip and not argument.startswith("--"):
            skip = False
            continue
        skip = False
        typed, joined, _ = argument.partition("=")
        if typed.startswith("--") and is_same_option(typed, flag):
            skip = not joined
            continue
        result.append(argument)
    return [*result, flag, value] if value else [*result, flag]
