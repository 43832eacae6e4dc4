"""A few seconds of fuzzing in every run; `headers` and `guided` do it for longer."""

from __future__ import annotations

from tests.fuzz import headers


def test_whatever_is_in_a_checkpoint_is_read_or_refused() -> None:
    found = headers.loop(4.0, seed=0)
    assert set(found) >= {
        "doctor: read, converter: read",
        "doctor: CannotJudge, converter: CheckpointUnreadable",
    }
