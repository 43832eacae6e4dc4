"""For which patch files the kept results hold.

`./launch.sh test --matrix` keeps what it saw of every series in `twins.json`, `own_tests.json` and
`tests/server/patched_trees.json`, and runs this last. Without it most series are not looked at, so
`looked_at.json` has the digest of each as it was then; a test compares.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from tests.patches.trees import refresh

LOOKED_AT = Path(__file__).with_name("looked_at.json")


def digests() -> dict[str, str]:
    """Return, by release, the SHA-256 over names and bytes of its series' files, in hex."""
    return {release: _digest(refresh.series(release)) for release in refresh.releases()}


def _digest(files: list[Path]) -> str:
    whole = hashlib.sha256()
    for file in files:
        content = file.read_bytes()
        # With its length, so that nothing can move from one file into the next.
        whole.update(f"{file.name}\0{len(content)}\0".encode() + content)
    return whole.hexdigest()


if __name__ == "__main__":
    LOOKED_AT.write_text(json.dumps(digests(), indent=1) + "\n", encoding="utf-8")
