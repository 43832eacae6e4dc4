"""The wheel as a user gets it, built from this tree and installed into a fresh venv.

An editable install doesn't put the start line where a user's install does.
"""

from __future__ import annotations

import subprocess
import sys
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out)]
    subprocess.run([*command, str(REPOSITORY)], check=True, capture_output=True, text=True)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="session")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a venv that holds the wheel and a stand-in for `sglang`.

    What the plugin needs of others (wrapt, …) is reached through this environment's
    site-packages, put last by a `.pth` of its own; `sglang` is an empty package, since only its
    being imported matters here.
    """
    folder = tmp_path_factory.mktemp("venv")
    venv.create(folder, with_pip=False)
    (site_packages,) = folder.glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site_packages)
    (site_packages / "sglang").mkdir()
    (site_packages / "sglang" / "__init__.py").write_text("")
    import wrapt

    (site_packages / "zz_host.pth").write_text(f"{Path(wrapt.__file__).parents[1]}\n")
    return folder / "bin" / "python"


RunPython = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(python: Path) -> RunPython:
    """Run code in a fresh interpreter of that venv, with just the variables given."""

    def run_code(code: str, *flags: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(python), *flags, "-c", code],
            env={"PATH": "/usr/bin:/bin", **variables},
            capture_output=True,
            text=True,
            timeout=60,
        )

    return run_code
