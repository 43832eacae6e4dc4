"""`python -m sglang_eagle3_patch.launch_server …`: SGLang's launcher with every patch on.

Takes every flag of `python -m sglang.launch_server`. Strict: a patch that can't be applied stops
the start. Acceptance is logged per verify step. What the environment already says is kept.
"""

from __future__ import annotations

import os
import runpy
import sys

from sglang_eagle3_patch import _startup
from sglang_eagle3_patch.settings import PREFIX

DEFAULTS = {
    PREFIX: "1",
    f"{PREFIX}_STRICT": "1",
    f"{PREFIX}_ACCEPT_LOG": "step",
}

# SGLang spawns its processes, which import this module again as `__mp_main__`: they are patched
# even where no start line is run (packages on PYTHONPATH, `python -S`).
if __name__ in ("__main__", "__mp_main__"):
    for variable, value in DEFAULTS.items():
        os.environ.setdefault(variable, value)
    _startup.run()


def main() -> None:
    """Run SGLang's own launcher in this process, as if it had been started itself."""
    # Not altering sys.modules keeps this module `__main__`, which spawned children import.
    runpy.run_module("sglang.launch_server", run_name="__main__", alter_sys=False)


if __name__ == "__main__":
    sys.argv[0] = "sglang_eagle3_patch.launch_server"
    main()
