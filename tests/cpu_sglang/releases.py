"""The SGLang releases that the CPU stand-in can serve, and what each needs and computes.

Standard library only: this is read before any environment exists.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

# One release on each side of what moved most: names of layers, workers, arguments, contexts.
IN_CI = ("0.5.9", "0.5.11", "0.5.12.post1", "0.5.16", "0.5.23")
# Whether every release is tested, not just those, under `./launch.sh test --matrix`.
WHOLE = os.environ.get("EAGLE3_MATRIX") == "1"


@dataclass(frozen=True)
class Release:
    """One SGLang release as the stand-in sees it.

    version: as on the package index.
    route: "cpu" where SGLang has a CPU path for EAGLE (from 0.5.16), "triton" where its Triton
        kernels run interpreted.
    transformers: the version laid over the base environment's, None where the base's serves.
    worker: the speculative worker that runs unless told otherwise, "v1" or "v2".
    quirks: for each worker that was shown to serve, the key of `QUIRKS` in `pair.expectation`
        that predicts its acceptance count for count.
    """

    version: str
    route: str
    transformers: str | None
    worker: str
    quirks: Mapping[str, str] = field(hash=False)


def _releases(
    versions: str, route: str, transformers: str | None, worker: str, **quirks: str
) -> list[Release]:
    frozen = MappingProxyType(quirks)
    return [Release(name, route, transformers, worker, frozen) for name in versions.split()]


_TABLE = [
    *_releases(
        "0.5.9",
        "triton",
        "4.57.1",
        "v1",
        v1="positions_ahead_counted_twice",
        v2="positions_ahead",
    ),
    *_releases(
        "0.5.10 0.5.10.post1",
        "triton",
        "5.12.1",
        "v1",
        v1="positions_ahead_counted_twice",
        v2="positions_ahead",
    ),
    *_releases(
        "0.5.11",
        "triton",
        "5.12.1",
        "v2",
        v1="positions_ahead_counted_twice",
        v2="positions_ahead",
    ),
    *_releases("0.5.12 0.5.12.post1", "triton", "5.12.1", "v2", v1="counted_twice", v2="plain"),
    *_releases(
        "0.5.13 0.5.13.post1 0.5.14 0.5.15 0.5.15.post1", "triton", "5.12.1", "v2", v2="plain"
    ),
    *_releases("0.5.16 0.5.17 0.5.18 0.5.19 0.5.20 0.5.21", "cpu", "5.12.1", "v2", v2="plain"),
    *_releases("0.5.22 0.5.23", "cpu", None, "v2", v2="plain"),
]

RELEASES: Mapping[str, Release] = MappingProxyType({row.version: row for row in _TABLE})

DEFAULT = "0.5.23"
"""The release of the base environment; every other one is laid over it."""


def find(version: str) -> Release:
    """Return the release called `version`; ValueError, listing the known ones, if there is none."""
    try:
        return RELEASES[version]
    except KeyError:
        known = ", ".join(RELEASES)
        raise ValueError(
            f"SGLang {version!r} is not among the releases served on a CPU here; choose one of: "
            f"{known}"
        ) from None
