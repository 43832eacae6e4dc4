"""How values of a report are worded in each rendering."""

from __future__ import annotations

from datetime import datetime, timezone

from sglang_eagle3_patch.acceptance.report.summary import Provenance, Setting


def moment(seconds: float, *, with_date: bool = True) -> str:
    """Return a Unix time in UTC, in words."""
    form = "%Y-%m-%d %H:%M:%S" if with_date else "%H:%M:%S"
    return datetime.fromtimestamp(seconds, timezone.utc).strftime(form)


def milliseconds(seconds: float | None) -> str:
    """Return a duration in milliseconds; a dash where it isn't known."""
    return "-" if seconds is None else f"{seconds * 1000:.2f}"


def number(value: float | None, decimals: int = 3) -> str:
    """Return a number; a dash where it isn't known."""
    return "-" if value is None else f"{value:.{decimals}f}"


def printable(text: str, most: int = 80) -> str:
    """Return what a trace says with control characters, which steer terminals, escaped.

    Clients choose request ids: they can hold anything, at any length.
    """
    shown = text if len(text) <= most else text[: most - 1] + "…"
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode()
        for c in shown
    )


def setting_line(setting: Setting) -> str:
    """Return what ran: release, plugin, algorithm and its three settings."""
    return printable(
        f"SGLang {setting.sglang}, plugin {setting.plugin}, {setting.algorithm}, "
        f"{setting.num_steps} steps, topk {setting.topk}, {setting.draft_tokens} draft tokens",
        200,
    )


def gaps(provenance: Provenance) -> list[str]:
    """Return what is missing from the trace, a line each."""
    told = []
    if provenance.dropped:
        told.append(f"verify steps dropped when they were to be written: {provenance.dropped}")
    if provenance.unreadable:
        told.append(f"lines that can't be read, torn or not of a trace: {provenance.unreadable}")
    return told
