"""What an installer puts there and takes away again; pip's own work, without an index."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cpu_sglang import releases
from tests.startup.conftest import put_empty_sglang, run_python
from tests.startup.wheels import REPOSITORY, make_venv, python_of

ON = {"SGLANG_EAGLE3_PATCH": "1"}
ACTIVE = "import sglang, sys; print('sglang_eagle3_patch.hooks' in sys.modules)"


def pip(folder: Path, *arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--python", str(python_of(folder)), *arguments]
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)


def files_in(folder: Path) -> set[str]:
    """Every file and folder of the venv, but for what Python compiles beside its sources."""
    paths = (path.relative_to(folder) for path in folder.rglob("*"))
    return {str(path) for path in paths if "__pycache__" not in path.parts}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    put_empty_sglang(make_venv(tmp_path / "venv"))
    return tmp_path / "venv"


def test_uninstalling_leaves_nothing_behind(folder: Path, wheel: Path) -> None:
    before = files_in(folder)
    pip(folder, "install", "--no-index", "--no-deps", str(wheel))
    added = {Path(name).name for name in files_in(folder) - before}
    assert added > {"sglang_eagle3_patch.pth", "sglang_eagle3_patch.start", "sglang-eagle3"}
    assert run_python(python_of(folder), ACTIVE, **ON).stdout.strip() == "True"
    pip(folder, "uninstall", "--yes", "sglang-eagle3-patch")
    assert files_in(folder) == before
    result = run_python(python_of(folder), ACTIVE, **ON)
    assert (result.stdout.strip(), result.stderr) == ("False", "")


def test_the_wheel_brings_the_series_of_every_release(folder: Path, wheel: Path) -> None:
    pip(folder, "install", "--no-index", "--no-deps", str(wheel))
    brought = (
        "from sglang_eagle3_patch.commands.patches_series import all_series\n"
        "for series in all_series():\n"
        "    assert all(file.is_file() for file in series.files)\n"
        "    print(*series.releases, sep='\\n')"
    )
    result = run_python(python_of(folder), brought)
    assert (set(result.stdout.split()), result.stderr) == (set(releases.RELEASES), "")


def test_an_editable_install_has_the_start_line_and_goes_as_whole(folder: Path) -> None:
    before = files_in(folder)
    pip(folder, "install", "--no-index", "--no-deps", "--no-build-isolation", "-e", str(REPOSITORY))
    where = "import sglang, sglang_eagle3_patch as ours, sys; print(ours.__file__, " + (
        "'sglang_eagle3_patch.hooks' in sys.modules)"
    )
    result = run_python(python_of(folder), where, **ON)
    package = REPOSITORY / "sglang_eagle3_patch" / "__init__.py"
    assert (result.stdout.split(), result.stderr) == ([str(package), "True"], "")
    unset = run_python(python_of(folder), ACTIVE)
    assert (unset.stdout.strip(), unset.stderr) == ("False", "")
    pip(folder, "uninstall", "--yes", "sglang-eagle3-patch")
    assert files_in(folder) == before
