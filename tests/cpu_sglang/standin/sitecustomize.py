"""Python imports this at start-up, in the launcher and in every process it spawns.

It does nothing unless EAGLE3_CPU_STANDIN is set. Only one `sitecustomize` can win on a path, so
this one stays a single call.
"""

from __future__ import annotations

import os

if os.environ.get("EAGLE3_CPU_STANDIN"):
    import cpu_standin

    cpu_standin.start()
