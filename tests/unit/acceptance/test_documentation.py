"""`docs/acceptance.md` and the table of metrics say the same."""

from __future__ import annotations

import json
import re
from pathlib import Path

from sglang_eagle3_patch.acceptance.metrics import METRICS, PREFIX
from sglang_eagle3_patch.acceptance.trace_reader import read_trace
from sglang_eagle3_patch.settings import VARIABLES

PAGE = Path(__file__).parents[3] / "docs" / "acceptance.md"


def test_the_table_of_metrics() -> None:
    rows = ["| metric | kind | labels beside SGLang's | meaning |", "|---|---|---|---|"]
    rows += [f"| `{m.name}` | {m.kind} | {', '.join(m.labels)} | {m.meaning} |" for m in METRICS]
    table = "\n".join(rows)
    assert f"<!-- metrics: begin -->\n{table}\n<!-- metrics: end -->" in PAGE.read_text(), table


def test_queries_use_metrics_that_exist() -> None:
    named = set(re.findall(rf"{PREFIX}\w+", PAGE.read_text()))
    assert named <= {metric.name for metric in METRICS}


def test_variables_exist() -> None:
    named = set(re.findall(r"SGLANG_EAGLE3_PATCH\w*", PAGE.read_text()))
    assert named <= {variable.name for variable in VARIABLES}


def test_the_example_is_a_trace(tmp_path: Path) -> None:
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("{")]
    (tmp_path / "trace.jsonl").write_text("\n".join(lines) + "\n")
    trace = read_trace([tmp_path / "trace.jsonl"])
    assert (len(trace.starts), len(trace.steps)) == (1, 1)
    assert (trace.dropped, trace.unreadable) == (12, 0)
    assert trace.steps[0].batch == json.loads(lines[1])["batch"]
