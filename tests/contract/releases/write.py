"""Writes what becomes of each patch and of each draft on each release: `support.json`,
`fidelity.json` and `docs/fidelity.md`.

    python -m tests.contract.releases.write

Examines all releases, which takes about ten minutes on two cores.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.contract.releases import write_fidelity
from tests.contract.releases.run import ALL_RELEASES, start

SUPPORT = Path(__file__).parent / "support.json"


def read() -> dict[str, dict[str, str]]:
    """Return the committed table: release -> patch -> status."""
    table: dict[str, dict[str, str]] = json.loads(SUPPORT.read_text(encoding="utf-8"))
    return table


def main() -> None:
    """Examine all releases and write the tables."""
    reports: dict[str, dict[str, Any]] = {
        version: found.result() for version, found in start(ALL_RELEASES).items()
    }
    table = {version: report["patches"] for version, report in reports.items()}
    SUPPORT.write_text(json.dumps(table, indent=1, sort_keys=False) + "\n", encoding="utf-8")
    write_fidelity.write(reports)


if __name__ == "__main__":
    main()
