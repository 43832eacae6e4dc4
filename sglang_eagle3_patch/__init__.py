"""Makes EAGLE-3 drafts in SGLang load whole, compute what was trained, or fail with the reason.

Importing this package does nothing and costs nothing: hooks get in through `activate()`, which
the start line, SGLang's plugin entry point and our launcher call.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing's own costs an import; type checkers know the name
if TYPE_CHECKING:
    from sglang_eagle3_patch.engine.patch import PatchReport

__version__ = "0.1.0"

__all__ = ["__version__", "activate", "deactivate", "status"]


def activate() -> None:
    """Put every selected patch in, now or as soon as the SGLang module it touches is imported.

    Idempotent. Which patches are selected is read from `SGLANG_EAGLE3_PATCH`; unset means all.
    Raises `SettingsError` when a variable of ours holds something it can't hold.
    """
    from sglang_eagle3_patch.hooks import PATCHES, registry
    from sglang_eagle3_patch.settings import Settings

    registry.apply(PATCHES, Settings.from_environment())


def deactivate() -> None:
    """Take every patch out again; classes are as they were before `activate()`."""
    from sglang_eagle3_patch.hooks import registry

    registry.remove()


def status() -> list[PatchReport]:
    """Return what became of each patch in this process, asked of the classes, not remembered."""
    from sglang_eagle3_patch.hooks import PATCHES, registry

    return registry.report(PATCHES)
