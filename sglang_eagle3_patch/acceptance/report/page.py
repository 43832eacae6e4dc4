"""The report as one HTML file: no script, nothing fetched, readable offline for years."""

from __future__ import annotations

from importlib import resources

from sglang_eagle3_patch.acceptance.report import tables, words
from sglang_eagle3_patch.acceptance.report.charts import charts
from sglang_eagle3_patch.acceptance.report.summary import Report
from sglang_eagle3_patch.acceptance.report.svg import draw

_TABLES = {
    "over-time": tables.over_time,
    "distribution": tables.distribution,
    "positions": tables.positions,
    "batches": tables.batches,
    "speedup": tables.speedup,
}


def render(report: Report, version: str) -> str:
    """Return the page, which names the version of the package. Raises `ImportError` without jinja2.

    Every text is escaped, whatever clients called their requests, and the page's policy forbids
    scripts and requests.
    """
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined
    )
    environment.filters |= {
        "number": words.number,
        "printable": words.printable,
        "moment": words.moment,
        "setting": words.setting_line,
    }
    source = resources.files(__package__).joinpath("templates", "report.html.j2")
    return environment.from_string(source.read_text(encoding="utf-8")).render(
        report=report,
        gaps=words.gaps(report.provenance),
        tables=tables,
        charts=[
            (chart, Markup(draw(chart)), _TABLES[chart.id](report)) for chart in charts(report)
        ],
        version=version,
    )
