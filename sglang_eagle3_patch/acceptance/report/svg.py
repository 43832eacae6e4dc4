"""Draws a chart as inline SVG: its colours are the page's, its texts stay texts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from math import ceil, floor, log10

from sglang_eagle3_patch.acceptance.report.charts import Chart

# One unit is one pixel in a column of a desktop and nearly one on a phone.
_WIDTH, _HEIGHT = 440, 270
_LEFT, _RIGHT, _TOP, _BOTTOM = 48, 428, 38, 220
_LABELS_MOST = 10
_LABEL_WIDTH = 40  # of a value over its bar


def draw(chart: Chart) -> str:
    """Return the chart as an `<svg>` element, with a title and a description for screen readers."""
    values = [value for series in chart.series for value in series.values if value is not None]
    ticks = _ticks(chart.floor, max(values, default=chart.floor))
    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-labelledby="{chart.id}-title {chart.id}-note">',
        f'<title id="{chart.id}-title">{escape(chart.title)}</title>',
        f'<desc id="{chart.id}-note">{escape(chart.note)}</desc>',
        *_grid(chart, ticks),
        *(_lines(chart, ticks) if chart.at else _bars(chart, ticks)),
        "</svg>",
    ]
    return "\n".join(parts)


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers from `low` to above `high`, five or so."""
    span = max(high - low, 1e-9)
    raw = span / 4
    unit = 10.0 ** floor(log10(raw))
    step = unit * next(factor for factor in (1, 2, 2.5, 5, 10) if factor * unit >= raw * 0.999)
    return [low + step * i for i in range(max(1, ceil(span / step - 1e-9)) + 1)]


def _y(value: float, ticks: Sequence[float]) -> float:
    share = (value - ticks[0]) / (ticks[-1] - ticks[0])
    return round(_BOTTOM - share * (_BOTTOM - _TOP), 1)


def _grid(chart: Chart, ticks: Sequence[float]) -> Iterator[str]:
    for tick in ticks:
        y = _y(tick, ticks)
        yield f'<line class="grid" x1="{_LEFT}" y1="{y}" x2="{_RIGHT}" y2="{y}"/>'
        yield f'<text class="end" x="{_LEFT - 6}" y="{y + 4}">{tick:.4g}</text>'
    middle = (_LEFT + _RIGHT) / 2
    yield f'<text class="middle" x="{middle}" y="{_HEIGHT - 8}">{escape(chart.x_title)}</text>'
    yield f'<text x="4" y="14">{escape(chart.y_title)}</text>'


def _bars(chart: Chart, ticks: Sequence[float]) -> Iterator[str]:
    slot = (_RIGHT - _LEFT) / len(chart.labels)
    width = min(slot * 0.72, 64.0) / len(chart.series)
    every = ceil(len(chart.labels) / _LABELS_MOST)
    for place, label in enumerate(chart.labels):
        centre = _LEFT + slot * (place + 0.5)
        if place % every == 0:
            yield f'<text class="middle" x="{centre:.1f}" y="{_BOTTOM + 18}">{escape(label)}</text>'
        for number, series in enumerate(chart.series):
            value = series.values[place]
            if value is None:
                continue
            x = centre + (number - len(chart.series) / 2) * width
            top = _y(value, ticks)
            marked = " marked" if place == chart.marked else ""
            told = f"{series.name}, {label}: {value:.{chart.decimals}f}"
            yield (
                f'<rect class="series{number}{marked}" x="{x:.1f}" y="{top}" '
                f'width="{max(width - 1, 0.5):.1f}" height="{_BOTTOM - top:.1f}">'
                f"<title>{escape(told)}</title></rect>"
            )
            if width >= _LABEL_WIDTH:
                yield (
                    f'<text class="middle" x="{x + width / 2:.1f}" y="{top - 5:.1f}">'
                    f"{value:.{chart.decimals - 1}f}</text>"
                )


def _lines(chart: Chart, ticks: Sequence[float]) -> Iterator[str]:
    at = chart.at or ()
    first, span = at[0], (at[-1] - at[0]) or 1.0
    xs = [round(_LEFT + (time - first) / span * (_RIGHT - _LEFT), 1) for time in at]
    for number, series in enumerate(chart.series):
        for run in chart.runs():
            points = [(xs[i], _y(series.values[i] or 0.0, ticks)) for i in run]
            path = "L".join(f"{x} {y}" for x, y in points)
            yield f'<path class="line{number}" d="M{path}"/>'
            for i, (x, y) in zip(run, points, strict=True):
                told = f"{chart.labels[i]}: {series.values[i]:.{chart.decimals}f}"
                yield (
                    f'<circle class="point{number}" cx="{x}" cy="{y}" r="2.5">'
                    f"<title>{escape(told)}</title></circle>"
                )
    ends = {0: "start", len(at) - 1: "end", len(at) // 2: "middle"}
    for i, anchor in sorted(ends.items()):
        label = escape(chart.labels[i])
        yield f'<text class="{anchor}" x="{xs[i]}" y="{_BOTTOM + 18}">{label}</text>'
