"""A stand-in for sgl-kernel on a CPU, in plain torch: what EAGLE-3 serving calls, nothing else.

The real package is compiled for CUDA, or for CPUs with AMX. This one is for tests and the demo:
it is right, not fast. It loads only where EAGLE3_CPU_STANDIN is set, and never on a machine whose
GPU torch can use. Ops it doesn't have stay absent, so that SGLang's own fallbacks in torch apply.
"""

from __future__ import annotations

from cpu_standin.route import chosen_route

# Both guards speak before anything else is imported.
chosen_route()

from sgl_kernel.guard import refuse_gpu_machine  # noqa: E402

refuse_gpu_machine()

from sgl_kernel import registration  # noqa: E402
from sgl_kernel.cache_locations import (  # noqa: E402
    assign_draft_cache_locs_contiguous_cpu,
    assign_extend_cache_locs_cpu,
    assign_req_to_token_pool_cpu,
    build_draft_decode_metadata_cpu,
    fill_accept_out_cache_loc_cpu,
)
from sgl_kernel.kv_moves import copy_all_layer_kv_cache_cpu  # noqa: E402
from sgl_kernel.tokens import fill_bonus_tokens_cpu, rotate_input_ids_cpu  # noqa: E402
from sgl_kernel.tree import build_tree_kernel_efficient_cpu  # noqa: E402
from sgl_kernel.verify import verify_tree_greedy_cpu  # noqa: E402

# Names of the CUDA ops, which the Triton route calls; the semantics are the same.
build_tree_kernel_efficient = build_tree_kernel_efficient_cpu
verify_tree_greedy = verify_tree_greedy_cpu

registration.register()

__all__ = [
    "assign_draft_cache_locs_contiguous_cpu",
    "assign_extend_cache_locs_cpu",
    "assign_req_to_token_pool_cpu",
    "build_draft_decode_metadata_cpu",
    "build_tree_kernel_efficient",
    "build_tree_kernel_efficient_cpu",
    "copy_all_layer_kv_cache_cpu",
    "fill_accept_out_cache_loc_cpu",
    "fill_bonus_tokens_cpu",
    "rotate_input_ids_cpu",
    "verify_tree_greedy",
    "verify_tree_greedy_cpu",
]
