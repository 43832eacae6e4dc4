"""The metrics in a process of their own, exposed as SGLang exposes its own in multiprocess mode."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sglang_eagle3_patch.acceptance.metrics import METRICS, PREFIX

pytest.importorskip("prometheus_client")

_COUNT = """
from sglang_eagle3_patch.acceptance.metrics import Metrics
import sys
labels = {"model_name": "m", "tp_rank": 0, **eval(sys.argv[1])}
metrics = Metrics(labels)
metrics.add([3, 0, 1], draft_tokens=3, depth=3)
metrics.add([2], draft_tokens=3, depth=3)
metrics.add([0, 0], draft_tokens=0, depth=0)
metrics.add([4], draft_tokens=7, depth=5)
metrics.add_dropped(9)
metrics.set_alarm(True)
"""
_EXPOSE = """
from prometheus_client import CollectorRegistry, generate_latest, multiprocess
registry = CollectorRegistry()
multiprocess.MultiProcessCollector(registry)
print(generate_latest(registry).decode())
"""


def exposed(folder: Path, *schedulers: dict[str, int]) -> dict[str, float]:
    """What a scrape finds after each of the schedulers, with its labels, has counted and ended."""
    variables = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(folder)}

    def run(*arguments: str) -> str:
        return subprocess.run(
            [sys.executable, "-c", *arguments],
            env=variables,
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    for labels in schedulers:
        run(_COUNT, repr(labels))
    lines = [line for line in run(_EXPOSE).splitlines() if line.startswith(PREFIX)]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def test_definitions_are_vllms(tmp_path: Path) -> None:
    found = exposed(tmp_path, {})
    labels = 'model_name="m"'
    per_position = f"{PREFIX}spec_decode_num_accepted_tokens_per_pos_total"
    # A step that proposed nothing is none; five drafts were proposed, ten of them accepted.
    assert found == {
        f'{PREFIX}spec_decode_num_drafts_total{{{labels},tp_rank="0"}}': 5,
        f'{PREFIX}spec_decode_num_draft_tokens_total{{{labels},tp_rank="0"}}': 4 * 3 + 7,
        f'{PREFIX}spec_decode_num_accepted_tokens_total{{{labels},tp_rank="0"}}': 10,
        **{
            f'{per_position}{{{labels},position="{position}",tp_rank="0"}}': count
            for position, count in enumerate([4, 3, 2, 1, 0])
        },
        f'{PREFIX}acceptance_alarm{{{labels},tp_rank="0"}}': 1,
        f'{PREFIX}trace_records_dropped_total{{{labels},tp_rank="0"}}': 9,
    }


def test_replicas_are_told_apart_by_sglangs_label(tmp_path: Path) -> None:
    found = exposed(tmp_path, {"dp_rank": 0}, {"dp_rank": 1})
    drafts = {name: value for name, value in found.items() if "num_drafts" in name}
    assert len(drafts) == 2
    assert set(drafts.values()) == {5}


def test_the_table_is_what_is_exposed(tmp_path: Path) -> None:
    found = {name.partition("{")[0] for name in exposed(tmp_path, {})}
    assert found == {metric.name for metric in METRICS}
