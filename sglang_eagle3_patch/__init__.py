"""Makes EAGLE-3 drafts in SGLang load whole, compute what was trained, or fail with the reason.

Importing this package does nothing and costs nothing: hooks get in through `activate()`, which
the start line, SGLang's plugin entry point and our launcher call.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing's own costs an import; type checkers know the name
if TYPE_CHECKING:
    from sglang_eagle3_patch.engine.patch import PatchReport

__version__ = "0.1.0"

__all__ = ["__version__", "activate", "deactivate", "rehearse", "status"]


def activate() -> None:
    """Put every selected patch in, now or as soon as the SGLang module it touches is imported.

    Idempotent. Which patches are selected is read from `SGLANG_EAGLE3_PATCH`; unset means all.
    Under `SGLANG_EAGLE3_PATCH_STRICT` the main process checks every patch, and ends when one
    can't be applied, before it starts another process.
    Raises `SettingsError` when a variable of ours holds something it can't hold.
    """
    import multiprocessing

    from sglang_eagle3_patch.engine import ray_actors
    from sglang_eagle3_patch.hooks import PATCHES, registry
    from sglang_eagle3_patch.settings import Settings

    settings = Settings.from_environment()
    registry.apply(PATCHES, settings)
    ray_actors.hand_variables_on()
    if settings.strict and multiprocessing.parent_process() is None:
        # Every launcher imports this module, with most of what is touched, and starts later.
        registry.verify_after("sglang.srt.entrypoints.engine")


def rehearse() -> list[PatchReport]:
    """Apply every selected patch to the installed SGLang, import all it touches, and report.

    For a process that serves nothing: importing SGLang takes seconds and stays. Strictness is
    left out, so that everything is reported.
    """
    from dataclasses import replace

    from sglang_eagle3_patch.hooks import PATCHES, registry
    from sglang_eagle3_patch.settings import Settings

    registry.apply(PATCHES, replace(Settings.from_environment(), strict=False))
    registry.verify()
    return registry.report(PATCHES)


def deactivate() -> None:
    """Take every patch out again; classes are as they were before `activate()`."""
    from sglang_eagle3_patch.hooks import registry

    registry.remove()


def status() -> list[PatchReport]:
    """Return what became of each patch in this process, asked of the classes, not remembered."""
    from sglang_eagle3_patch.hooks import PATCHES, registry

    return registry.report(PATCHES)
