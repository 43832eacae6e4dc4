"""The patch series for SGLang's source: which there are, and which a release takes.

A series is a folder of `.patch` files with a file `series`, whose first line names the releases
that it applies to without fuzz, and the others the files in their order.
"""

from __future__ import annotations

import importlib.metadata
import re
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).parents[2] / "patches/sglang"
# A wheel carries them among its metadata.
_DISTRIBUTION = "sglang-eagle3-patch"
_CARRIED = "extra_metadata/patches"
_RELEASES = re.compile(r"# SGLang (.+)")


@dataclass(frozen=True)
class Series:
    """One series: its folder, the releases it is for and its files, both in their order."""

    folder: Path
    releases: tuple[str, ...]
    files: tuple[Path, ...]


def all_series() -> list[Series]:
    """Return every series there is, that of the oldest release first."""
    found = [read_series(folder) for folder in _folders()]
    return sorted(found, key=lambda series: in_order(series.releases[0]))


def _folders() -> list[Path]:
    if CHECKOUT.is_dir():
        return [file.parent for file in CHECKOUT.glob("*/series")]
    try:
        carried = importlib.metadata.files(_DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        return []
    return [
        Path(str(file.locate())).parent
        for file in carried
        if file.name == "series" and file.parent.parent.as_posix().endswith(_CARRIED)
    ]


def series_for(release: str) -> Series | None:
    """Return the series for a release, None where there is none."""
    return next((series for series in all_series() if release in series.releases), None)


def read_series(folder: Path) -> Series:
    """Read the file `series` of a folder; ValueError if its first line names no releases."""
    first, *names = (folder / "series").read_text(encoding="utf-8").splitlines()
    named = _RELEASES.fullmatch(first)
    if named is None:
        raise ValueError(f"{folder / 'series'} does not begin with the releases it is for")
    return Series(folder, tuple(named[1].split()), tuple(folder / name for name in names))


def in_order(release: str) -> list[int]:
    """Return a key that sorts releases: 0.5.12, 0.5.12.post1, 0.5.13."""
    return [int(part) for part in re.findall(r"\d+", release)]


def touched_paths(file: Path) -> list[str]:
    """Return the paths that a patch file changes or adds, as it names them."""
    return re.findall(r"^diff --git a/(\S+) b/\1$", file.read_text(encoding="utf-8"), re.MULTILINE)
