"""A package that exists for GPUs only, and that one release imports without asking.

At 0.5.15 `jit_kernel/dsa/cutedsl_paged_mqa_logits.py` imports `cutlass` unguarded, and with it
DeepSeek and Kimi can't be imported where it isn't installed; mended at 0.5.15.post1. None of its
kernels is run here, so that mocks will do.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from typing import Any
from unittest.mock import MagicMock

PACKAGE = "cutlass"


def register() -> None:
    release = importlib.metadata.version("sglang")
    if release == "0.5.15" and importlib.util.find_spec(PACKAGE) is None:
        sys.meta_path.append(_Mocks())


class _Mocks(MetaPathFinder, Loader):
    """Finds a mock for the package and each of its modules."""

    def find_spec(self, fullname: str, *_: Any) -> ModuleSpec | None:
        wanted = fullname.partition(".")[0] == PACKAGE
        return ModuleSpec(fullname, self, is_package=True) if wanted else None

    def create_module(self, spec: ModuleSpec) -> Any:
        return MagicMock(name=spec.name)

    def exec_module(self, module: Any) -> None:
        """Nothing: the mock is whole."""
