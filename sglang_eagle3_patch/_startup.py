"""What the `.pth`/`.start` line and SGLang's plugin entry point call.

Runs in every Python process of the environment once `SGLANG_EAGLE3_PATCH` is set, the helpers of
compilers and resource trackers included, and twice in a virtual environment. So: what every
process has loaded anyway (`import wrapt` costs 75 ms, `importlib.abc` 90), idempotent, and nothing
raised. The hooks themselves are put in
when `sglang` is first imported, or at once if it already is.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # typing's own costs an import; type checkers know the name
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

VARIABLE = "SGLANG_EAGLE3_PATCH"
_OFF = ("", "0", "off", "false", "no")

_done = False


class _OnFirstImportOfSGLang:
    """Finds nothing; its being asked for `sglang` is the signal."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,  # noqa: ARG002 - the interface of finders
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        if fullname == "sglang" and self in sys.meta_path:
            sys.meta_path.remove(self)
            _activate()
        return None


def run() -> None:
    """Arrange for the hooks to go in; does nothing without the variable. Never raises."""
    global _done
    if _done or os.environ.get(VARIABLE, "").strip().lower() in _OFF:
        return
    _done = True
    if "sglang" in sys.modules:
        _activate()
    else:
        sys.meta_path.insert(0, _OnFirstImportOfSGLang())


def _activate() -> None:
    try:
        from sglang_eagle3_patch import activate

        activate()
    except Exception as error:
        if os.environ.get(f"{VARIABLE}_STRICT", "").strip().lower() not in _OFF:
            # Python would show a traceback and go on unpatched; strict means it must not.
            sys.stderr.write(f"sglang-eagle3-patch: {error}\n")
            raise SystemExit(1) from error
        sys.stderr.write(f"sglang-eagle3-patch: not active in this process: {error}\n")
