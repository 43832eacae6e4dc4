"""Lets a stock SGLang release serve EAGLE-3 on a CPU, and repairs nothing else.

Two routes, chosen per release by EAGLE3_CPU_STANDIN:

cpu     SGLang >= 0.5.16 has a CPU path for EAGLE. It runs with the `intel_amx` attention backend
        and calls the ops of `sgl_kernel`, which the package beside this one provides in torch.
triton  SGLang 0.5.9 to 0.5.15 has none. The Triton backend runs interpreted, the tree ops go
        where the CUDA ones are imported, and attention is done in torch for speed.

Variables which SGLang and Triton read while they are imported are the environment's to set, on both
routes SGLANG_USE_CPU_ENGINE=1 (without it SGLang wants vllm's rotary embedding), on the second
TRITON_INTERPRET=1.

Every hook waits for the module it is about, so that nothing of SGLang or torch is imported early.
Whatever a GPU server would do wrong with a checkpoint, a server on this stand-in does wrong too.
"""

from __future__ import annotations

from cpu_standin import (
    gpu_only_imports,
    platform_facts,
    server_defaults,
    torch_device_calls,
    triton_route,
)
from cpu_standin.route import chosen_route


def start() -> None:
    """Register the hooks of the chosen route; see `route.chosen_route` for what it raises."""
    route = chosen_route()
    torch_device_calls.register(route)
    server_defaults.register(route)
    if route == "cpu":
        platform_facts.register()
    else:
        gpu_only_imports.register()
        triton_route.register()
