"""Draws the charts of a report with matplotlib, all on one picture."""

from __future__ import annotations

from typing import IO, Any

from sglang_eagle3_patch.acceptance.report.charts import Chart, charts
from sglang_eagle3_patch.acceptance.report.summary import Report
from sglang_eagle3_patch.acceptance.report.words import moment, setting_line

_COLOURS = ("#2563eb", "#d97706")
_MARKED = "#16a34a"


def draw(report: Report, stream: IO[bytes]) -> None:
    """Write the picture as PNG. Raises `ImportError` without matplotlib."""
    from matplotlib.figure import Figure

    drawn = charts(report)
    figure = Figure(figsize=(15, 8.5), layout="constrained")
    figure.suptitle(_title(report))
    for number, chart in enumerate(drawn, start=1):
        axes = figure.add_subplot(2, 3, number)
        (_lines if chart.at else _bars)(axes, chart)
        axes.set_title(chart.title, loc="left", fontsize=11)
        axes.set_xlabel(chart.x_title)
        axes.set_ylabel(chart.y_title)
        axes.set_ylim(bottom=chart.floor, top=axes.get_ylim()[1] * 1.1)
        axes.grid(axis="y", alpha=0.3)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        if len(chart.series) > 1:
            axes.legend(frameon=False, ncols=2, loc="upper right")
    figure.savefig(stream, format="png", dpi=110)


def _title(report: Report) -> str:
    total, provenance = report.total, report.provenance
    ran = setting_line(provenance.settings[0]) if provenance.settings else "unknown server"
    more = f" and {len(provenance.settings) - 1} more" if len(provenance.settings) > 1 else ""
    # A dollar sign would begin a formula.
    return (
        f"accept length {total.accept_length:.3f}, accept rate {total.accept_rate:.3f} over "
        f"{total.steps} verify steps\n{ran}{more}; {moment(provenance.first)} to "
        f"{moment(provenance.last)} UTC"
    ).replace("$", r"\$")


def _lines(axes: Any, chart: Chart) -> None:
    at = list(chart.at or ())
    for series, colour in zip(chart.series, _COLOURS, strict=False):
        for run in chart.runs():
            axes.plot([at[i] for i in run], [series.values[i] for i in run], ".-", color=colour)
    places = sorted({0, len(at) // 2, len(at) - 1})
    axes.set_xticks([at[i] for i in places], [chart.labels[i] for i in places], fontsize=8)


def _bars(axes: Any, chart: Chart) -> None:
    width = 0.72 / len(chart.series)
    for number, (series, colour) in enumerate(zip(chart.series, _COLOURS, strict=False)):
        heights = [value or 0.0 for value in series.values]
        shift = (number - (len(chart.series) - 1) / 2) * width
        places = [i + shift for i in range(len(heights))]
        colours = [_MARKED if i == chart.marked else colour for i in range(len(heights))]
        axes.bar(places, heights, width * 0.95, color=colours, label=series.name)
    every = -(-len(chart.labels) // 12)
    axes.set_xticks(range(0, len(chart.labels), every), chart.labels[::every])
