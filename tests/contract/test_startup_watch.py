"""The hooks of startup-watch on their own: what they note, and what they leave alone.

What each release's graph runners go through is in `releases/test_launching.py`, real starts in
`tests/server/test_startup_watch.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from sglang_eagle3_patch.hooks import startup_watch
from sglang_eagle3_patch.hooks.parts import starting
from sglang_eagle3_patch.hooks.parts.launch_facts import facts
from sglang_eagle3_patch.startup.stages import TENSOR, Progress, Stage

ARGUMENTS = SimpleNamespace(port=30000, cuda_graph_max_bs_decode=8)


@pytest.fixture(autouse=True)
def ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No start is left behind, and none finds another's files."""
    monkeypatch.setenv("SGLANG_EAGLE3_PATCH_STATUS_DIR", str(tmp_path))
    yield
    starting.end()
    facts.ready = None


@pytest.fixture
def progress() -> Progress:
    """A start that is under way, without its watch."""
    progress = Progress()
    starting.now = starting.Start(progress, cast(Any, SimpleNamespace(end=lambda: None)))
    return progress


def start(inside: Any) -> Any:
    return startup_watch.around_scheduler_init(inside, None, (ARGUMENTS,), {})


def test_a_start_is_watched_until_its_first_batch_is_done(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    seen = []

    def inside(server_args: Any) -> str:
        assert starting.now is not None
        seen.append((starting.now.watch.port, starting.now.watch._thread.is_alive()))
        load = startup_watch.within(Stage.TARGET_WEIGHTS, Stage.DRAFT_WEIGHTS)
        for is_draft in (False, True):
            load(lambda: None, SimpleNamespace(is_draft_worker=is_draft), (), {})
        return "scheduler"

    assert start(inside) == "scheduler"
    assert seen == [(30000, True)]
    assert starting.now is not None
    assert starting.now.progress.idle
    watch, told = starting.now.watch, caplog.text
    assert "target weights 0.0 s, draft weights 0.0 s" in told
    startup_watch.around_run_batch(lambda batch: None, None, ("batch",), {})
    assert starting.now.progress.stage is Stage.FIRST_BATCH
    assert not starting.now.progress.idle
    startup_watch.after_batch_result(lambda batch, result: None, None, ("batch", "result"), {})
    assert starting.now is None
    assert "the first batch took" in caplog.text
    watch._thread.join(5)
    assert not watch._thread.is_alive()


def test_batches_whose_results_go_elsewhere_end_it_too() -> None:
    start(lambda server_args: None)
    for _ in range(starting._BATCHES):
        startup_watch.around_run_batch(lambda batch: None, None, ("batch",), {})
        assert starting.now is not None
    startup_watch.around_run_batch(lambda batch: None, None, ("batch",), {})
    assert starting.now is None


def test_a_start_that_fails_is_no_longer_watched() -> None:
    def inside(server_args: Any) -> None:
        raise MemoryError("the user's own")

    with pytest.raises(MemoryError, match="the user's own"):
        start(inside)
    assert starting.now is None


def test_trouble_of_ours_costs_no_start(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(starting, "Watch", fail)
    assert start(lambda server_args: "scheduler") == "scheduler"
    assert "not watched: OSError('no space left')" in caplog.text


def test_a_captured_size_costs_a_note_and_nothing_else(
    progress: Progress, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any) -> None:
        raise AssertionError("a device was asked")

    for name in ("mem_get_info", "synchronize", "is_initialized", "current_stream"):
        monkeypatch.setattr(torch.cuda, name, fail)
    caplog.set_level(logging.DEBUG)
    with progress.within(Stage.TARGET_GRAPHS):
        around = startup_watch.beginning("batch size")
        assert around(lambda size, forward: size, None, (8, None), {}) == 8
        assert around(lambda bs: bs, None, (), {"bs": 4}) == 4
        assert progress.mark is not None
        assert progress.mark[:3] == ("batch size", 4, 1)
    assert caplog.records == []


@pytest.mark.parametrize(
    ("name", "is_draft", "stage"),
    [
        ("CudaGraphRunner", False, Stage.TARGET_GRAPHS),
        ("DecodeCudaGraphRunner", True, Stage.DRAFT_GRAPHS),
        ("EAGLEDraftCudaGraphRunner", True, Stage.DRAFT_GRAPHS),
        ("EAGLEDraftExtendCudaGraphRunner", True, Stage.DRAFT_EXTEND_GRAPHS),
        ("MultiLayerEagleDraftExtendCudaGraphRunner", True, Stage.DRAFT_EXTEND_GRAPHS),
        ("PiecewiseCudaGraphRunner", False, Stage.TARGET_PREFILL_GRAPHS),
        ("PrefillCudaGraphRunner", True, Stage.DRAFT_PREFILL_GRAPHS),
    ],
)
def test_whose_graphs_are_captured(name: str, is_draft: bool, stage: Stage) -> None:
    runner = type(name, (), {"model_runner": SimpleNamespace(is_draft_worker=is_draft)})()
    assert startup_watch.capture_stage(runner) is stage


def test_tensors_are_counted_as_they_are_taken(progress: Progress) -> None:
    pairs = [("a", 1), ("b", 2)]
    weights = startup_watch.count_tensors(lambda *_: iter(pairs), None, (None, None), {})
    assert progress.mark is None
    assert next(weights) == ("a", 1)
    assert progress.mark is not None
    assert progress.mark[:2] == (TENSOR, 1)
    assert list(weights) == [("b", 2)]


def test_without_a_start_everything_passes() -> None:
    assert starting.now is None
    pairs = iter([("a", 1)])
    assert startup_watch.count_tensors(lambda: pairs, None, (), {}) is pairs
    for wrapper in (
        startup_watch.within(Stage.KERNELS),
        startup_watch.around_capture,
        startup_watch.beginning("tokens"),
        startup_watch.around_run_batch,
        startup_watch.after_batch_result,
    ):
        assert wrapper(lambda number: number + 1, None, (1,), {}) == 2


def test_advice_names_what_the_release_in_hand_knows() -> None:
    import sglang.srt.environ  # noqa: F401

    known = starting.switches(ARGUMENTS)
    assert {"--cuda-graph-max-bs-decode", "SGLANG_DISABLE_DRAFT_EXTEND_CUDA_GRAPH"} <= known
    assert "--cuda-graph-max-bs" not in known
