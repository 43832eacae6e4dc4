"""What counts as moving: reading, writing, a child that computes; waiting busily does not."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from sglang_eagle3_patch.startup.movement import LEAST_BYTES, Signs


def test_reading_is_a_movement_and_looking_is_none(tmp_path: Path) -> None:
    file = tmp_path / "weights"
    file.write_bytes(b"0" * (2 * LEAST_BYTES))
    signs = Signs()
    signs.moved()
    assert not signs.moved()
    file.read_bytes()
    assert signs.moved()
    assert not signs.moved()


def test_a_busy_wait_is_none() -> None:
    signs = Signs()
    signs.moved()
    deadline = time.monotonic() + 1
    while time.monotonic() < deadline:
        pass
    assert not signs.moved()


def test_a_child_that_computes_is_a_movement() -> None:
    signs = Signs()
    signs.moved()
    compiler = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        deadline, moved = time.monotonic() + 30, False
        while not moved and time.monotonic() < deadline:
            time.sleep(2)
            moved = signs.moved()
        assert moved
    finally:
        compiler.kill()
        compiler.wait()
    signs.moved()
    assert not signs.moved()
