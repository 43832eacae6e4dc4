"""The pristine files that patches touch, of every release, without an environment for each.

A release whose overlay is built is read there; of any other one the wheel is fetched once, and
just those files are kept in the cache folder.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from sglang_eagle3_patch.commands.patches_series import touched_paths
from tests.cpu_sglang import releases
from tests.cpu_sglang.environment_builder import digest, read_if_there, write_whole
from tests.cpu_sglang.environments import cache_folder
from tests.patches.trees import is_code, refresh

# Fetching waits for the network, not for a core.
AT_ONCE = 4


def fetch_all() -> dict[str, Path]:
    """Return for each release that has a series a folder that holds its `sglang/`."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = dict.fromkeys(refresh.releases(), Path())
        return dict(zip(found, pool.map(site_packages, found), strict=True))


def site_packages(release: str) -> Path:
    """Return a folder that holds what patches touch of the release's `sglang/`."""
    overlay = cache_folder() / "overlays/sglang" / release
    if release == releases.DEFAULT:
        (package,) = Path(sys.prefix).glob("lib/python*/site-packages/sglang")
        return package.parent
    return overlay if (overlay / ".stamp").exists() else _from_wheel(release)


def _from_wheel(release: str) -> Path:
    folder = cache_folder() / "pristine" / release
    touched = {path for file in refresh.series(release) for path in touched_paths(file)}
    wanted = {path.removeprefix("python/") for path in touched if is_code(path)}
    wanted |= {"sglang/_version.py"}
    stamp = digest(*sorted(wanted))
    if read_if_there(folder / ".stamp") != stamp:
        with tempfile.TemporaryDirectory() as download:
            pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
            subprocess.run(
                [*pip, "--dest", download, f"sglang=={release}"], check=True, capture_output=True
            )
            (wheel,) = Path(download).glob("*.whl")
            with zipfile.ZipFile(wheel) as archive:
                for name in wanted & set(archive.namelist()):
                    archive.extract(name, folder)
        write_whole(folder / ".stamp", stamp)
    return folder
