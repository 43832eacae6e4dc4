"""The Grafana dashboard asks only for metrics that we expose, by labels that SGLang gives them."""

from __future__ import annotations

import importlib.util
import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest

from sglang_eagle3_patch.acceptance.metrics import METRICS

DASHBOARD = json.loads(
    (Path(__file__).parents[2] / "docs/grafana/eagle3.json").read_text(encoding="utf-8")
)
# Prometheus gives it to every target that it scrapes.
SCRAPED = {"instance"}


def _queries() -> list[str]:
    panels = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    variables = [
        variable["query"]["query"]
        for variable in DASHBOARD["templating"]["list"]
        if variable["type"] == "query"
    ]
    return panels + variables


def _labels_of_sglang() -> set[str]:
    """The labels that the installed release's scheduler gives its metrics, from its source."""
    spec = importlib.util.find_spec("sglang")
    assert spec is not None
    assert spec.origin is not None
    names = ("metrics_collector.py", "scheduler_metrics_mixin.py")
    files = [file for name in names for file in Path(spec.origin).parent.rglob(name)]
    found: set[str] = set()
    for file in files:
        source = file.read_text(encoding="utf-8")
        for literal in re.findall(r"labels = \{(.*?)\}", source, flags=re.DOTALL):
            found |= set(re.findall(r'"(\w+)":', literal))
        found |= set(re.findall(r'labels\["(\w+)"\]', source))
    return found


def test_every_metric_asked_for_is_exposed_and_every_one_exposed_is_shown() -> None:
    asked = {name for query in _queries() for name in re.findall(r"sglang\w*:\w+", query)}
    assert asked == {metric.name for metric in METRICS}


def test_every_label_is_one_of_sglangs_or_of_the_metric() -> None:
    known = _labels_of_sglang() | SCRAPED
    assert {"model_name", "dp_rank"} <= known  # else SGLang's source was not understood
    for query in _queries():
        metrics = [metric for metric in METRICS if metric.name in query]
        own = {label for metric in metrics for label in metric.labels}
        used = set(re.findall(r'(\w+)\s*(?:=~|!~|!=|=)\s*"', query))
        for group in re.findall(r"(?:by|on|ignoring|without) \(([^)]*)\)", query):
            used |= {label.strip() for label in group.split(",") if label.strip()}
        used |= set(re.findall(r"label_values\(.*, (\w+)\)", query))
        assert used <= known | own, query


def test_the_data_source_is_chosen_where_it_is_imported() -> None:
    variables = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    assert variables["datasource"]["query"] == "prometheus"
    sources = [panel["datasource"] for panel in DASHBOARD["panels"]]
    sources += [t["datasource"] for panel in DASHBOARD["panels"] for t in panel["targets"]]
    assert all(s == {"type": "prometheus", "uid": "${datasource}"} for s in sources)
    for query in _queries():
        used = set(re.findall(r"\$(\w+)", query)) - {"__rate_interval", "__range"}
        assert used <= set(variables)


def test_grafana_can_import_it() -> None:
    assert DASHBOARD["schemaVersion"] >= 36  # the first with data sources by type and uid
    assert "id" not in DASHBOARD  # it is the importing Grafana's to give
    assert DASHBOARD["uid"]
    assert DASHBOARD["title"]
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        assert panel["title"]
        assert panel["description"]
    assert not any(_overlap(a, b) for a, b in itertools.combinations(panels, 2))


@pytest.mark.parametrize("panel", DASHBOARD["panels"], ids=lambda panel: str(panel["title"]))
def test_a_legend_names_labels_that_the_query_keeps(panel: dict[str, Any]) -> None:
    for target in panel["targets"]:
        named = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
        kept = {
            label.strip()
            for group in re.findall(r"by \(([^)]*)\)", target["expr"])
            for label in group.split(",")
        }
        assert named <= kept


def _overlap(one: dict[str, Any], other: dict[str, Any]) -> bool:
    a, b = one["gridPos"], other["gridPos"]
    return (
        a["x"] < b["x"] + b["w"]
        and b["x"] < a["x"] + a["w"]
        and a["y"] < b["y"] + b["h"]
        and b["y"] < a["y"] + a["h"]
    )
