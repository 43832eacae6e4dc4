"""A report of acceptance in words: what it is of, the numbers, the number of steps to choose."""

from __future__ import annotations

from typing import Any

from sglang_eagle3_patch.acceptance.report import tables
from sglang_eagle3_patch.acceptance.report.summary import Report
from sglang_eagle3_patch.acceptance.report.tables import Table
from sglang_eagle3_patch.acceptance.report.words import gaps, moment, setting_line

_ROWS_MOST = 12


def print_report(report: Report) -> None:
    """Print a report: where it is from, the means, the tables, the choice and its reasons."""
    from rich.console import Console
    from rich.text import Text

    console: Any = Console(highlight=False, soft_wrap=True)
    total, provenance = report.total, report.provenance
    # As text: what is in brackets would be taken for markup.
    for setting in provenance.settings:
        console.print(Text(setting_line(setting)))
    console.print(Text(f"{moment(provenance.first)} to {moment(provenance.last)} UTC"))
    for gap in gaps(provenance):
        console.print(Text(gap, style="yellow"))
    console.print(
        Text(
            f"\nVerify steps: {total.steps}, accept len: {total.accept_length:.3f}, "
            f"accept rate: {total.accept_rate:.3f}\n",
            style="bold",
        )
    )
    for table in _tables(report):
        console.print(_drawn(table))
        console.print()
    console.print(Text(_choice(report), style="bold"))
    for note in report.speedup.notes:
        console.print(Text(f"  {note}"))


def _tables(report: Report) -> list[Table]:
    return [
        _shortened(tables.over_time(report)),
        tables.distribution(report),
        tables.positions(report),
        tables.batches(report),
        *([tables.ranks(report)] if len(report.ranks) > 1 else []),
        *tables.requests(report),
        tables.speedup(report),
    ]


def _shortened(table: Table) -> Table:
    """Rows from all over a long table: the page and JSON have every one."""
    if len(table.rows) <= _ROWS_MOST:
        return table
    title = f"{table.title}, {_ROWS_MOST} of {len(table.rows)} evenly spread"
    places = [i * (len(table.rows) - 1) // (_ROWS_MOST - 1) for i in range(_ROWS_MOST)]
    return Table(title, table.heads, [table.rows[place] for place in places])


def _drawn(table: Table) -> Any:
    from rich.table import Table as Grid
    from rich.text import Text

    grid: Any = Grid(title=table.title, title_justify="left", box=None, pad_edge=False)
    for place, head in enumerate(table.heads):
        grid.add_column(head, justify="right" if place else "left", overflow="fold")
    for place, row in enumerate(table.rows):
        style = "bold green" if place == table.marked else ""
        grid.add_row(*(Text(cell) for cell in row), style=style)
    return grid


def _choice(report: Report) -> str:
    speedup = report.speedup
    if speedup.choice is None or speedup.cost is None:
        return f"draft steps in use: {speedup.present}; none chosen"
    tokens = speedup.choice.draft_tokens
    flags = f"--speculative-num-steps {speedup.choice.steps}"
    if tokens is not None:
        flags += f" --speculative-num-draft-tokens {tokens}"
    if not speedup.choice.steps:
        flags = "no speculation"
    return (
        f"draft steps in use: {speedup.present}; fastest: {flags} "
        f"(a draft step costs {speedup.cost.ratio:.3f} of a verify step, {speedup.cost.source})"
    )
