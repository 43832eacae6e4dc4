"""What changes in SGLang: one file per runtime patch, put together here.

Importing this package imports no SGLang and no torch; the hooks reach for them when they run.
"""

from __future__ import annotations

from sglang_eagle3_patch.engine.registry import Registry
from sglang_eagle3_patch.hooks import (
    acceptance,
    aux_capture,
    draft_config,
    draft_weights,
    eagle3_mode,
    fc_guard,
    kimi_capture,
    wrapper_capture,
)

# In the order in which they go in: of two on one function, the later one sees what the earlier
# one made of it.
PATCHES = (
    draft_config.PATCH,
    eagle3_mode.PATCH,
    kimi_capture.PATCH,
    wrapper_capture.PATCH,
    aux_capture.PATCH,
    draft_weights.PATCH,
    fc_guard.PATCH,
    acceptance.PATCH,
)

registry = Registry()
