"""What this process is: its ranks, as SGLang names them, and the SGLang that it runs."""

from __future__ import annotations

import logging
import re
import sys

_RANK = re.compile(r"(?:^|[^A-Za-z])(PP|DP|TP|EP|ATTN_CP|MOE_DP)(\d+)")


def sglang_version() -> str:
    """Return the version of the SGLang that was imported, `unknown` where none was."""
    return str(getattr(sys.modules.get("sglang"), "__version__", "unknown"))


def ranks() -> dict[str, int]:
    """Return the ranks that SGLang wrote into the title of this process (`…_DP0_TP1`).

    Ray titles its actors itself; there they are read from the format of the log (`… DP0 TP1]`).
    """
    setproctitle = sys.modules.get("setproctitle")
    title = setproctitle.getproctitle() if setproctitle else ""
    formatters = (handler.formatter for handler in logging.getLogger().handlers)
    formats = (getattr(formatter, "_fmt", None) or "" for formatter in formatters)
    found = filter(None, map(_RANK.findall, (title, *formats)))
    return {kind: int(rank) for kind, rank in next(found, ())}
