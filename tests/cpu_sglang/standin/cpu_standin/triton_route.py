"""SGLang 0.5.9 to 0.5.15: EAGLE has no CPU branch there, so it takes the Triton backend.

Triton's interpreter runs the small kernels (index builders) as they are. What it can't do is
named here, one hook each.
"""

from __future__ import annotations

from typing import Any

import wrapt

# Up to 0.5.12.post1 the function lives with the v2 worker's data, then with the Triton kernels.
CACHE_LOCATIONS = (
    "sglang.srt.speculative.eagle_info_v2",
    "sglang.srt.speculative.triton_ops.cache_locs",
)
ATTENTION_KERNELS = "sglang.srt.layers.attention.triton_ops"


def register() -> None:
    # Building and verifying the draft tree are CUDA ops: put in where those are imported, behind
    # the module's own flag. The verify op is imported from `sgl_kernel` at each call.
    @wrapt.when_imported("sglang.srt.speculative.eagle_utils")
    def _(module: Any) -> None:
        import sgl_kernel

        module._is_cuda = True
        module.sgl_build_tree_kernel_efficient = sgl_kernel.build_tree_kernel_efficient

    for name in CACHE_LOCATIONS:
        wrapt.register_post_import_hook(_launch_cache_location_kernel, name)
    wrapt.register_post_import_hook(_torch_extend, f"{ATTENTION_KERNELS}.extend_attention")
    wrapt.register_post_import_hook(_torch_decode, f"{ATTENTION_KERNELS}.decode_attention")


def _launch_cache_location_kernel(module: Any) -> None:
    # `assign_extend_cache_locs_func` returns None off a GPU; its Triton kernel is interpretable.
    # At 0.5.13 to 0.5.15 `eagle_info_v2` no longer has the function, nor the flag.
    if hasattr(module, "assign_extend_cache_locs_func") and hasattr(module, "_is_cuda"):
        module._is_cuda = True


def _torch_extend(module: Any) -> None:
    from cpu_standin import triton_attention

    # Interpreted attention takes 93 % of the time: 1.7 tokens a second instead of 70.
    module.extend_attention_fwd = triton_attention.bound_like(
        module.extend_attention_fwd, triton_attention.extend
    )


def _torch_decode(module: Any) -> None:
    from cpu_standin import triton_attention

    module.decode_attention_fwd = triton_attention.bound_like(
        module.decode_attention_fwd, triton_attention.decode
    )
