"""What becomes of servers that nobody waits for any more. The one here never gets ready."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.cpu_sglang import server
from tests.server import background
from tests.server.background import AT_ONCE, Outcomes
from tests.server.cases import CASES


def test_an_interrupted_session_does_not_wait_for_a_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexec sleep 120\n")
    python.chmod(0o755)
    environment = SimpleNamespace(python=python, process_environment=lambda: dict(os.environ))
    pids = []

    def serve(_case: object, folder: Path) -> None:
        with server.start(cast(Any, environment), folder / "server.log") as started:
            pids.append(started.process.pid)
            started.wait_until_ready()

    monkeypatch.setattr(background, "serve", serve)
    with Outcomes(list(CASES)[:3], tmp_path):
        while len(pids) < AT_ONCE:
            time.sleep(0.1)
        interrupted = time.monotonic()
    assert time.monotonic() - interrupted < 60
    assert len(pids) == AT_ONCE
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
