"""What one process tells of its patches: one line for the log, one JSON file that is whole.

A file is written beside its final name and renamed, so that a reader never sees half of one, and
named by role and process, so that processes of one server never write the same file.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from sglang_eagle3_patch.engine.patch import PatchReport, Status
from sglang_eagle3_patch.whole_file import replacing

LONGEST_REPORT = 4_000_000  # bytes; what is longer is not ours
# In this order they are told; what merely waits for modules that this process never imports isn't.
_TOLD = (
    Status.APPLIED,
    Status.FAILED,
    Status.UNSUPPORTED,
    Status.DISPLACED,
    Status.NOT_NEEDED,
    Status.DISABLED,
)
TROUBLE = (Status.FAILED, Status.UNSUPPORTED, Status.DISPLACED)


@dataclass(frozen=True, kw_only=True)
class ProcessReport:
    """One process of a server. `ranks` are of the kinds that SGLang's process title names."""

    role: str
    state: str  # "starting" before the role's own start-up, "ready" after it
    patches: tuple[PatchReport, ...]
    versions: Mapping[str, str]
    port: int | None = None
    ranks: Mapping[str, int] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    pid: int = field(default_factory=os.getpid)
    host: str = field(default_factory=socket.gethostname)
    written: float = field(default_factory=time.time)

    @property
    def name(self) -> str:
        """The role with its ranks, as people know it: `scheduler TP0`."""
        ranks = " ".join(f"{kind}{rank}" for kind, rank in self.ranks.items())
        return f"{self.role} {ranks}".rstrip()

    def as_data(self) -> dict[str, Any]:
        """Return the report as JSON holds it: plain values, which any process can unpickle."""
        plain: dict[str, Any] = json.loads(json.dumps({"name": self.name, **asdict(self)}))
        return plain


def summary(reports: Sequence[PatchReport]) -> str:
    """Return one line: the patches by their status word, with the reason where there is trouble."""
    parts = []
    for status in _TOLD:
        told = [
            r.name + (f" ({r.detail})" if status in TROUBLE else "")
            for r in reports
            if r.status is status
        ]
        if told:
            parts.append(f"{status.value}: {', '.join(told)}")
    return "; ".join(parts) or "no patch is in"


def write(folder: Path, report: ProcessReport) -> Path:
    """Write the report into `folder`, which is made if it isn't there; returns the file.

    Raises `OSError` when the folder can't be written to; an older report stays whole then.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{report.role.replace(' ', '-')}-{report.host}-{report.pid}.json"
    with replacing(file) as stream:
        stream.write(json.dumps(report.as_data(), indent=1).encode())
    return file


def read_all(folder: Path) -> list[dict[str, Any]]:
    """Return every report in `folder`, oldest first; what is no report of ours is passed over."""
    found = []
    for file in folder.glob("*.json"):
        with contextlib.suppress(OSError, ValueError, RecursionError):
            if file.stat().st_size <= LONGEST_REPORT:
                data = json.loads(file.read_text(encoding="utf-8"))
                if isinstance(data, dict) and {"role", "pid", "patches"} <= data.keys():
                    found.append(data)
    return sorted(found, key=lambda data: data.get("written") or 0)


def of_one_server(
    reports: Iterable[Mapping[str, Any]], port: int | None
) -> list[Mapping[str, Any]]:
    """Return those of the server at `port` whose processes still run, as far as can be told."""
    return [
        report
        for report in reports
        if report.get("port") == port
        and (report.get("host") != socket.gethostname() or _runs(report["pid"]))
    ]


def _runs(pid: Any) -> bool:
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except (OSError, ValueError, OverflowError):
        return True
    return True
