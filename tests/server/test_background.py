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
from tests.server.background import Outcomes
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
    with Outcomes(list(CASES)[:2], tmp_path):
        while not pids:
            time.sleep(0.1)
        interrupted = time.monotonic()
    assert time.monotonic() - interrupted < 60
    assert len(pids) == 1
    assert not Path(f"/proc/{pids[0]}").exists()
