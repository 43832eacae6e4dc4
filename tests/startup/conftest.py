"""The wheel as a user gets it, built from this tree and installed into a fresh venv.

An editable install doesn't put the start line where a user's install does.
"""

from __future__ import annotations

import functools
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.startup.wheels import build_wheel, make_venv, python_of, unpack


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a venv that holds the wheel and a stand-in for `sglang`.

    `sglang` is an empty package, since only its being imported matters here.
    """
    folder = tmp_path_factory.mktemp("venv")
    site_packages = make_venv(folder)
    unpack(wheel, site_packages)
    put_empty_sglang(site_packages)
    return python_of(folder)


def put_empty_sglang(site_packages: Path) -> None:
    (site_packages / "sglang").mkdir()
    (site_packages / "sglang" / "__init__.py").write_text("")


RunPython = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(python: Path) -> RunPython:
    """Run code in a fresh interpreter of that venv, with just the variables given."""
    return functools.partial(run_python, python)


def run_python(
    python: Path, code: str, *flags: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(python), *flags, "-c", code],
        env={"PATH": "/usr/bin:/bin", **variables},
        capture_output=True,
        text=True,
        timeout=60,
    )
