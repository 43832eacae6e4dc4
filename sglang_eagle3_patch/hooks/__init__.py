"""What changes in SGLang: one file per runtime patch, found here by looking.

A file of this folder that declares `PATCH` is a patch; deleting the file removes it. Importing
this package imports no SGLang and no torch; the hooks reach for them when they run.
"""

from __future__ import annotations

import importlib
import pkgutil

from sglang_eagle3_patch.engine.patch import Patch
from sglang_eagle3_patch.engine.registry import Registry, in_order


def _declared() -> list[Patch]:
    modules = (
        importlib.import_module(f"{__name__}.{module.name}")
        for module in pkgutil.iter_modules(__path__)
        if not module.ispkg
    )
    return [module.PATCH for module in modules if hasattr(module, "PATCH")]


PATCHES = in_order(_declared())

registry = Registry()
