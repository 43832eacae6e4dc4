"""Tells SGLang that the machine has AMX, in the one place where attention backends are chosen."""

from __future__ import annotations

from typing import Any

import wrapt


def register() -> None:
    # `intel_amx` is the only CPU backend that can verify a draft tree. Without AMX SGLang falls
    # back to `torch_native`, which cannot. The layers ask `cpu_has_amx_support()` themselves and
    # must go on hearing the truth, or they would look for packed-weight kernels.
    @wrapt.when_imported("sglang.srt.arg_groups.overrides")
    def _(overrides: Any) -> None:
        if hasattr(overrides, "cpu_has_amx_support"):  # 0.5.16 to 0.5.18
            overrides.cpu_has_amx_support = lambda: True
            return
        from sglang.srt.runtime_context import override_platform

        override_platform(has_amx=True).install()
