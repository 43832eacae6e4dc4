from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from sglang_eagle3_patch.acceptance.report import page
from sglang_eagle3_patch.cli import main
from tests.cpu_sglang.environment_builder import Builder, exclusive, locked_requirements
from tests.cpu_sglang.environments import cache_folder
from tests.unit.report import traces


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return traces.write(tmp_path / "trace.jsonl", traces.START, *traces.steps(300))


def test_json_has_the_numbers_that_the_text_tells(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(trace), "--json", "--draft-cost", "0.04"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert main(["report", str(trace), "--draft-cost", "0.04"]) == 0
    text = capsys.readouterr().out
    total, chosen = data["total"], data["speedup"]["choice"]
    assert f"accept len: {total['accept_length']:.3f}, accept rate: " in text
    assert f"accept rate: {total['accept_rate']:.3f}" in text
    assert f"--speculative-num-steps {chosen['steps']} " in text
    assert f"--speculative-num-draft-tokens {chosen['steps'] + 1} " in text
    rows = [line.split() for line in text.splitlines()]
    for position in data["positions"]:
        assert [
            str(position["position"]),
            str(position["reached"]),
            str(position["accepted"]),
            f"{position['unconditional']:.3f}",
            f"{position['conditional']:.3f}",
        ] in rows
    for request in data["requests"]["worst"] + data["requests"]["best"]:
        length = f"{request['accept_length']:.3f}"
        assert [request["id"], str(request["steps"]), length] in rows


def test_without_a_cost_it_says_so_and_tells_the_break_even(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(trace)]) == 0
    text = capsys.readouterr().out
    assert "none chosen" in text
    assert "no cost measured; give --draft-cost" in text
    assert main(["report", str(trace), "--json"]) == 0
    speedup = json.loads(capsys.readouterr().out)["speedup"]
    present = speedup["options"][3]
    assert f"as fast as none where it is {present['break_even']:.3f}" in text
    assert (speedup["cost"], speedup["choice"], present["speedup"]) == (None, None, None)


def test_parts_and_ranks_are_read_with_a_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = list(traces.steps(90))
    traces.write(tmp_path / "trace.jsonl.1", traces.START, *steps[:30])
    trace = traces.write(tmp_path / "trace.jsonl", traces.START, *steps[30:60])
    other = [step | {"rank": 1} for step in steps[60:]]
    dropped = {"kind": "dropped", "time": 1.0, "records": 7}
    traces.write(tmp_path / "trace.dp1.jsonl", traces.START | {"rank": 1}, *other, dropped)
    with trace.open("a") as stream:
        stream.write('{"time": 17900')  # as kill -9 leaves it
    assert main(["report", str(trace), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["total"]["steps"] == 90
    assert {rank["rank"]: rank["steps"] for rank in data["ranks"]} == {0: 60, 1: 30}
    assert (data["provenance"]["dropped"], data["provenance"]["unreadable"]) == (7, 1)
    assert main(["report", str(trace)]) == 0
    text = capsys.readouterr().out
    assert "verify steps dropped when they were to be written: 7" in text
    assert "torn or not of a trace: 1" in text
    assert "Acceptance by data-parallel rank" in text


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "empty"),
        (b"\n \n", "empty"),
        (json.dumps(traces.START).encode() + b"\n", "no verify step yet"),
        (b"not a trace\nat all\n", "none of 2 lines can be read"),
        (bytes(range(256)) * 64, "can be read"),
        (b"\x00" * 4096, "can be read"),
        (b"[1]\n" + b"[" * 100_000 + b"\n", "none of 2 lines can be read"),
        (json.dumps(traces.START | {"format": 2}).encode() + b"\n", "a trace of format 2"),
    ],
)
def test_what_is_no_trace_is_told_in_one_line(
    content: bytes, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(content)
    assert main(["report", str(path), "--html", str(tmp_path / "out.html")]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert printed.err.startswith(f"sglang-eagle3 report: {path}: ")
    assert told in printed.err
    assert "Fix: " in printed.err
    assert not (tmp_path / "out.html").exists()


def test_steps_of_another_format_are_not_taken_for_ours(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = traces.write(tmp_path / "t.jsonl", traces.START | {"format": 9}, *traces.steps(10))
    assert main(["report", str(path)]) == 2
    assert "format 9, and this reads format 1" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["missing.jsonl", "."])
def test_a_path_without_a_trace_is_told_in_one_line(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(tmp_path / name)]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert str(tmp_path) in told


@pytest.mark.parametrize("cost", ["-1", "nan", "inf", "cheap"])
def test_a_cost_that_is_none_is_refused(
    cost: str, trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["report", str(trace), f"--draft-cost={cost}"])
    assert "is no ratio of times" in capsys.readouterr().err


def test_request_ids_can_t_steer_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hostile = "\x1b[2J[red]\r\u202e" + "x" * 500
    steps = [step | {"requests": [hostile] * step["batch"]} for step in traces.steps(50)]
    path = traces.write(tmp_path / "t.jsonl", *steps)
    assert main(["report", str(path)]) == 0
    text = capsys.readouterr().out
    assert r"\x1b[2J[red]\r\u202e" in text
    assert not {"\x1b", "\r", "\u202e"} & set(text)
    assert "x" * 200 not in text


def test_a_page_is_whole_or_not_there(
    trace: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out" / "report.html"
    arguments = ["report", str(trace), "--html", str(out)]
    assert main(arguments) == 2
    assert "can't be written" in capsys.readouterr().err
    out.parent.mkdir()
    assert main(arguments) == 0
    whole = out.read_bytes()
    assert whole.rstrip().endswith(b"</html>")
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(out.stat().st_mode) == 0o666 & ~mask

    def stop(*_: object) -> str:
        raise OSError("no space left on device")

    # A full disk can't be had here.
    monkeypatch.setattr(page, "render", stop)
    assert main(arguments) == 2
    assert "no space left on device" in capsys.readouterr().err
    assert out.read_bytes() == whole
    assert [file.name for file in out.parent.iterdir()] == ["report.html"]


@pytest.mark.parametrize(("module", "flag"), [("jinja2", "--html"), ("matplotlib", "--png")])
def test_a_library_that_is_missing_is_named_with_the_way_to_get_it(
    module: str,
    flag: str,
    trace: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    assert main(["report", str(trace), flag, str(tmp_path / "out")]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert f"{flag} wants {module}" in told
    assert "pip install 'sglang-eagle3-patch[report]'" in told
    # The terminal and JSON want neither.
    assert main(["report", str(trace)]) == 0


def test_png(trace: Path, tmp_path: Path) -> None:
    """matplotlib is laid over the environment for this test alone."""
    cache, out = cache_folder(), tmp_path / "report.png"
    folder = cache / "overlays/extras/report"
    with exclusive(cache) as lock:
        Builder(cache, lock).overlay(folder, locked_requirements("report"))
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-m", "sglang_eagle3_patch.cli", "report", trace, "--png", out],
        env={**os.environ, "PYTHONPATH": path, "MPLCONFIGDIR": str(cache / "matplotlib")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == f"wrote {out}\n"
    from PIL import Image

    with Image.open(out) as picture:
        assert (picture.format, picture.size) == ("PNG", (1650, 935))
        # Something is drawn in each place of the grid that has a chart: five of six.
        columns, rows = picture.width // 3, picture.height // 2
        for place in range(5):
            left, top = place % 3 * columns, place // 3 * rows
            drawn = picture.convert("RGB").crop((left, top, left + columns, top + rows))
            assert (37, 99, 235) in {colour for _, colour in drawn.getcolors(columns * rows)}
