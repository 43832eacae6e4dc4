"""A patch is one file: without it the rest is as it was."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import sglang_eagle3_patch
from sglang_eagle3_patch.hooks import PATCHES

NAMES = [patch.name for patch in PATCHES]
LIST = "import json; from sglang_eagle3_patch.hooks import PATCHES, registry"
LIST += "; print(json.dumps([patch.name for patch in PATCHES]))"


@pytest.mark.parametrize("name", NAMES)
def test_deleting_its_file_removes_it(tmp_path: Path, name: str) -> None:
    package = tmp_path / "sglang_eagle3_patch"
    shutil.copytree(Path(sglang_eagle3_patch.__file__).parent, package)
    (package / "hooks" / f"{name.replace('-', '_')}.py").unlink()
    # -P and -S: neither this folder nor the installed package is in the way.
    path = [str(tmp_path), *(entry for entry in sys.path if entry.endswith("site-packages"))]
    listed = subprocess.run(
        [sys.executable, "-P", "-S", "-c", f"import sys; sys.path[:0] = {path!r}; {LIST}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert sorted(json.loads(listed.stdout)) == sorted(set(NAMES) - {name})
