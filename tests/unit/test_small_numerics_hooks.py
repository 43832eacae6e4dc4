"""cpu-lengths and draft-positions on stand-ins for what they touch; the matrix has real servers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sglang_eagle3_patch.hooks import cpu_lengths, draft_positions

EAGLE3 = SimpleNamespace(is_eagle3=lambda: True)


class Backend:
    """Reads lengths where SGLang 0.5.16's backend does and should not."""

    extend_metadata = ("verify lengths", None, None, None)
    draft_decode_metadata: tuple[str, str, str] | None = None

    def forward(self, q: int, k: int, v: int, layer: int, forward_batch: Any, fail: bool) -> str:
        if fail:
            raise KeyError(forward_batch.seq_lens)
        return str(forward_batch.seq_lens)


def batch_of() -> SimpleNamespace:
    return SimpleNamespace(seq_lens="batch", spec_algorithm=EAGLE3)


def test_a_step_sees_the_lengths_it_worked_out() -> None:
    backend, batch = Backend(), batch_of()
    call = (0, 0, 0, 0, batch, False)
    assert cpu_lengths.forward_extend(backend.forward, backend, call, {}) == "verify lengths"
    assert cpu_lengths.forward_decode(backend.forward, backend, call, {}) == "batch"
    backend.draft_decode_metadata = ("table", "draft lengths", "rows")
    by_name = {"forward_batch": batch, "fail": False}
    told = cpu_lengths.forward_decode(backend.forward, backend, call[:4], by_name)
    assert told == "draft lengths"
    assert batch.seq_lens == "batch"


def test_the_lengths_come_back_when_a_step_fails() -> None:
    backend, batch = Backend(), batch_of()
    with pytest.raises(KeyError, match="verify lengths"):
        cpu_lengths.forward_extend(backend.forward, backend, (0, 0, 0, 0, batch, True), {})
    assert batch.seq_lens == "batch"


def test_drafting_starts_one_position_earlier() -> None:
    worker = SimpleNamespace(speculative_algorithm=EAGLE3)
    positions = torch.tensor([7, 9])
    batch = SimpleNamespace(positions=positions)
    draft_positions.draft_forward(lambda _: None, worker, (batch,), {})
    # In place: a captured graph goes by the buffer.
    assert positions.tolist() == [6, 8]


class AddsBefore:
    def draft_forward(self, forward_batch: Any) -> None:
        forward_batch.positions.add_(1)
        self.draft_runner.forward(forward_batch)


class AddsAfter:
    def draft_forward(self, forward_batch: Any) -> None:
        self.draft_runner.forward(forward_batch)
        forward_batch.positions.add_(1)


def test_the_probe_sees_the_order() -> None:
    assert not draft_positions.advances_after_the_forward(AddsBefore)
    assert draft_positions.advances_after_the_forward(AddsAfter)
    assert draft_positions.advances_after_the_forward(object)  # nothing to read: left alone
