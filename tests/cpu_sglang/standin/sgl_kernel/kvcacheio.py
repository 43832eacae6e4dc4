"""Moves of the KV cache to host memory: names only, none of them is ever called here.

SGLang up to 0.5.15 imports them on any device, and calls them for hierarchical caching.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def __getattr__(name: str) -> Callable[..., Any]:
    if not name.startswith("transfer_kv_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def refuse(*_args: Any, **_kwargs: Any) -> None:
        raise NotImplementedError(
            f"{__name__}.{name}: the CPU stand-in moves no cache to host memory. Start the server "
            "without --enable-hierarchical-cache."
        )

    return refuse
