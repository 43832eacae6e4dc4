"""Builds the wheel of this tree and venvs to put it in. Used by the start-up benchmark too."""

from __future__ import annotations

import subprocess
import sys
import venv
import zipfile
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]


def build_wheel(out: Path) -> Path:
    """Build the wheel into the folder `out`, with what this environment has; returns the file."""
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out)]
    subprocess.run([*command, str(REPOSITORY)], check=True, capture_output=True, text=True)
    (built,) = out.glob("*.whl")
    return built


def make_venv(folder: Path) -> Path:
    """Make a venv without pip; returns its site-packages.

    What the plugin needs of others (wrapt, …) is reached through this environment's
    site-packages, put last by a `.pth` of its own: no start line of theirs is run.
    """
    import wrapt

    venv.create(folder, with_pip=False)
    (site_packages,) = folder.glob("lib/python*/site-packages")
    (site_packages / "zz_host.pth").write_text(f"{Path(wrapt.__file__).parents[1]}\n")
    return site_packages


def unpack(wheel: Path, site_packages: Path) -> None:
    """Install the wheel as an installer does, but for scripts, compiled files and records."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site_packages)


def python_of(folder: Path) -> Path:
    """The interpreter of a venv."""
    return folder / "bin" / "python"
