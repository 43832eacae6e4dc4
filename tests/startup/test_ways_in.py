"""The entry point and the launcher, in the environment of the real SGLang."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

VARIABLE = "SGLANG_EAGLE3_PATCH"


def run(code: str, *flags: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(VARIABLE)}
    return subprocess.run(
        [sys.executable, *flags, "-c", code],
        env={**environment, **variables},
        capture_output=True,
        text=True,
        timeout=120,
    )


STATUSES = (
    "from sglang_eagle3_patch import status; "
    "print('statuses', sorted({report.status.value for report in status()}))"
)


def test_the_entry_point_names_the_same_function() -> None:
    (point,) = [
        point
        for point in importlib.metadata.entry_points(group="sglang.srt.plugins")
        if point.name == "eagle3_patch"
    ]
    assert point.value == "sglang_eagle3_patch._startup:run"


# -S keeps the start line out; what is left is SGLang's own plugin loading.
REPOSITORY = str(Path(__file__).parents[2])
PACKAGES = [REPOSITORY, *(path for path in sys.path if "site-packages" in path)]
LOAD_PLUGINS = (
    f"import sys; sys.path[:0] = {PACKAGES!r}; "
    "from sglang.srt.plugins import load_plugins; load_plugins(); "
    "import sglang.srt.server_args; " + STATUSES
)


def test_the_entry_point_alone_puts_the_hooks_in() -> None:
    result = run(LOAD_PLUGINS, "-S", **{VARIABLE: "1"})
    assert "statuses ['applied', 'waiting']" in result.stdout, result.stderr[-2000:]


def test_the_entry_point_does_nothing_without_the_variable() -> None:
    result = run(LOAD_PLUGINS, "-S")
    assert "statuses ['disabled']" in result.stdout, result.stderr[-2000:]


def test_the_launcher_takes_sglangs_flags() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "sglang_eagle3_patch.launch_server", "--help"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0
    assert "--speculative-draft-model-path" in result.stdout


def test_the_launcher_refuses_wrong_settings_before_anything_is_loaded() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "sglang_eagle3_patch.launch_server", "--model-path", "none"],
        env={**os.environ, VARIABLE: "no-such-patch"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 1
    assert "no-such-patch, which is no patch" in result.stderr
