"""A reader takes what is there and counts what isn't a line of ours."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_eagle3_patch.acceptance.trace_reader import read_trace

START = (
    '{"kind":"start","format":1,"time":1.0,"pid":7,"rank":0,"sglang":"0.5.9","plugin":"0.1.0",'
    '"algorithm":"EAGLE3","num_steps":3,"topk":1,"draft_tokens":4}\n'
)


def step(number: int, time: float | None = None) -> str:
    return (
        f'{{"time":{time or number},"step":{number},"rank":0,"batch":2,"proposed":3,'
        '"accepted":[3,1],"seconds":null}\n'
    )


def test_a_path_that_leads_nowhere_is_told(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no trace at .*trace\.jsonl"):
        read_trace([tmp_path / "trace.jsonl"])
    with pytest.raises(FileNotFoundError):
        read_trace([tmp_path / "no folder" / "trace.jsonl"])


def test_every_file_is_read_once_however_it_is_named(tmp_path: Path) -> None:
    names = ["trace.jsonl", "trace.jsonl.1", "trace.jsonl.2", "trace.dp1.jsonl", "other.jsonl"]
    for number, name in enumerate(names, 1):
        (tmp_path / name).write_text(START + step(number, time=5))
    named = [tmp_path / name for name in names[:4]]
    assert [s.step for s in read_trace([named[0]]).steps] == [3, 2, 1, 4]  # the oldest part first
    assert [s.step for s in read_trace(named).steps] == [3, 2, 1, 4]
    assert [s.step for s in read_trace([named[1]]).steps] == [2]
    assert len(read_trace([named[0]]).files) == 4


def test_a_step_knows_the_start_that_it_follows(tmp_path: Path) -> None:
    (tmp_path / "t").write_text(START + step(1) + START.replace('"pid":7', '"pid":8') + step(2))
    steps = read_trace([tmp_path / "t"]).steps
    assert [s.start.pid for s in steps if s.start] == [7, 8]
    (tmp_path / "u").write_text(step(1))
    assert read_trace([tmp_path / "u"]).steps[0].start is None


def test_a_later_format_is_not_guessed_at(tmp_path: Path) -> None:
    (tmp_path / "t").write_text(START.replace('"format":1', '"format":2') + step(1))
    trace = read_trace([tmp_path / "t"])
    assert (trace.starts, trace.unreadable) == ([], 1)


@pytest.mark.parametrize(
    "line",
    ["", "null", "[]", "3", '"text"', "{}", "{" * 10_000, "[" * 100_000, '{"kind":"start"}'],
)
def test_lines_that_are_not_ours(tmp_path: Path, line: str) -> None:
    (tmp_path / "t").write_text(START + step(1) + line + "\n" + step(2))
    trace = read_trace([tmp_path / "t"])
    assert [s.step for s in trace.steps] == [1, 2]
    assert trace.unreadable == (1 if line else 0)


@given(cut=st.integers(0, 400), noise=st.binary(max_size=50))
def test_whatever_was_torn(
    tmp_path_factory: pytest.TempPathFactory, cut: int, noise: bytes
) -> None:
    whole = (START + step(1) + step(2)).encode()
    file = tmp_path_factory.getbasetemp() / "torn"
    file.write_bytes(whole[:cut] + b"\n" + noise + b"\n" + step(3).encode())
    trace = read_trace([file])
    assert trace.steps[-1].step == 3
    assert len(trace.steps) == 1 + (cut >= len(START + step(1)) - 1) + (cut >= len(whole) - 1)
