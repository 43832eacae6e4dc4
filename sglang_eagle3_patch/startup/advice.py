"""What to do about a stall, by the stage in which it is."""

from __future__ import annotations

from collections.abc import Collection

from sglang_eagle3_patch.startup.stages import Stage

DISABLE_DRAFT_EXTEND = "SGLANG_DISABLE_DRAFT_EXTEND_CUDA_GRAPH"
_RANKS = (
    "one rank waits for another that does not come: look at the rank that is elsewhere; if all are "
    "in the same collective, try NCCL_DEBUG=INFO, and NCCL_P2P_DISABLE=1 for a moment"
)
_WEIGHTS = (
    "look whether the disk or the hub is read at all; copy the checkpoint to a local disk, and "
    "load it with fewer processes at once"
)
_MEMORY = "start with a smaller --mem-fraction-static, so that the pools leave room for the graphs"
_DRAFT_ATTENTION = (
    "name an attention backend that fits the draft: --speculative-draft-attention-backend "
    "flashinfer, fa3 or triton"
)


def advice(stage: Stage | None, switches: Collection[str]) -> list[str]:
    """Return what to try, the most telling first.

    `switches` are the flags (`--…`) and variables that the release in hand knows: of those that
    moved between releases only what exists is named.
    """
    if stage is None or stage is Stage.RANKS:
        return [_RANKS]
    if stage in (Stage.TARGET_WEIGHTS, Stage.DRAFT_WEIGHTS):
        return [_WEIGHTS, _RANKS]
    if stage in (Stage.TARGET_POOLS, Stage.DRAFT_POOLS):
        return [_MEMORY, _RANKS]
    if stage is Stage.TARGET_ATTENTION:
        return ["name another attention backend: --attention-backend", _RANKS]
    if stage is Stage.DRAFT_ATTENTION:
        return [_DRAFT_ATTENTION, _RANKS]
    if stage is Stage.KERNELS:
        return ["kernels may be built or tuned: look for a compiler among the processes", _RANKS]
    if stage is Stage.FIRST_BATCH:
        return [
            "tell graphs from kernels: start with --disable-cuda-graph",
            "start with --skip-server-warmup, and send a short request of your own",
        ]
    return [*_capture(stage, switches), _RANKS]


def _capture(stage: Stage, switches: Collection[str]) -> list[str]:
    without = "tell capture from the model: start once with --disable-cuda-graph"
    of_prefill = stage in (Stage.TARGET_PREFILL_GRAPHS, Stage.DRAFT_PREFILL_GRAPHS)
    for flag in ("--disable-prefill-cuda-graph", "--disable-piecewise-cuda-graph"):
        if of_prefill and flag in switches:
            without = f"tell capture from the model: start once with {flag}"
            break
    size = "prefill" if of_prefill else "decode"
    sized = f"--cuda-graph-max-bs-{size}"
    told = [without]
    if stage is Stage.DRAFT_EXTEND_GRAPHS and DISABLE_DRAFT_EXTEND in switches:
        told.append(f"leave out this graph alone: {DISABLE_DRAFT_EXTEND}=1")
    if sized in switches or not of_prefill:
        told.append(f"capture fewer sizes: {sized if sized in switches else '--cuda-graph-max-bs'}")
    if stage in (Stage.DRAFT_GRAPHS, Stage.DRAFT_EXTEND_GRAPHS, Stage.DRAFT_PREFILL_GRAPHS):
        told.append(_DRAFT_ATTENTION)
    return told
