"""startup-watch: a start says where it is, what came of it, and where it waits when it stalls.

Why: a slow capture of graphs and a true hang look the same from outside: GPUs full and idle, no
line in the log for minutes.
Where: `Scheduler.__init__`, within which a scheduler starts, and its first batch; the methods of
`ModelRunner` that load, allocate and build; `capture` and the method that captures one size of
every graph runner, whose classes moved at 0.5.14. The other processes' `__init__`, so that
`sglang-eagle3 stacks` can ask them.
How: the hooks assign attributes (`startup/stages.py`); a thread beside them reads those and writes
the log (`startup/watch.py`). Around a captured size there is a clock reading and one assignment,
no log and no call of a device. Memory is asked for between two stages. The thread ends with the
first batch.
When it can go: when upstream tells of these stages and of a stall in them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from sglang_eagle3_patch.engine.patch import Hook, Patch, Risk, Wrapper
from sglang_eagle3_patch.hooks.parts import starting
from sglang_eagle3_patch.startup.stages import TENSOR, Progress, Stage

NAME = "startup-watch"


def around_scheduler_init(
    wrapped: Callable[..., Any], _scheduler: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Around `Scheduler.__init__(server_args, …)`; a subclass's is one start with it."""
    if starting.now is not None:
        return wrapped(*args, **kwargs)
    starting.safely(starting.begin, kwargs["server_args"] if "server_args" in kwargs else args[0])
    try:
        result = wrapped(*args, **kwargs)
    except BaseException:
        starting.safely(starting.end)
        raise
    starting.safely(starting.ready)
    return result


def around_run_batch(
    wrapped: Callable[..., Any], _scheduler: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Around `Scheduler.run_batch`: the first one is the server's warm-up request."""
    if starting.now is not None:
        starting.safely(starting.batch_begins)
    return wrapped(*args, **kwargs)


def after_batch_result(
    wrapped: Callable[..., Any], _scheduler: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """After `Scheduler.process_batch_result`, which waits for what the batch computed."""
    result = wrapped(*args, **kwargs)
    if starting.now is not None:
        starting.safely(starting.first_batch_is_done)
    return result


def within(target: Stage, draft: Stage | None = None) -> Wrapper:
    """Return the wrapper of a method of `ModelRunner` that is a stage of its own."""

    def around(
        wrapped: Callable[..., Any], runner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if starting.now is None:
            return wrapped(*args, **kwargs)
        stage = draft if draft and getattr(runner, "is_draft_worker", False) else target
        with starting.now.progress.within(stage, starting.memory):
            return wrapped(*args, **kwargs)

    return around


def around_capture(
    wrapped: Callable[..., Any], runner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Around a graph runner's `capture`, whichever model and forward it is for.

    Up to 0.5.13 the draft's runners, no children of the target's, call its method by its class.
    """
    if starting.now is None:
        return wrapped(*args, **kwargs)
    stage = capture_stage(args[0] if runner is None else runner)
    with starting.now.progress.within(stage, starting.memory):
        return wrapped(*args, **kwargs)


def capture_stage(runner: Any) -> Stage:
    """Return the stage that a graph runner's capture is, by its class and its model."""
    name = type(runner).__name__
    of_draft = getattr(getattr(runner, "model_runner", None), "is_draft_worker", False)
    if "DraftExtend" in name:
        return Stage.DRAFT_EXTEND_GRAPHS
    if any(word in name for word in ("Prefill", "Piecewise", "Breakable")):
        return Stage.DRAFT_PREFILL_GRAPHS if of_draft else Stage.TARGET_PREFILL_GRAPHS
    return Stage.DRAFT_GRAPHS if of_draft or "Draft" in name else Stage.TARGET_GRAPHS


def beginning(kind: str) -> Wrapper:
    """Return the wrapper of the method that captures one size, whose first argument it is.

    The argument is called `bs`, `size`, `num_seqs` or `num_tokens`; it is always given by position.
    """

    def around(
        wrapped: Callable[..., Any], _runner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if starting.now is not None:
            starting.now.progress.begin(kind, args[0] if args else next(iter(kwargs.values())))
        return wrapped(*args, **kwargs)

    return around


def count_tensors(
    wrapped: Callable[..., Any], _loader: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Around `DefaultModelLoader._get_all_weights`, which yields names and tensors."""
    weights = wrapped(*args, **kwargs)
    return weights if starting.now is None else _counted(weights, starting.now.progress)


def _counted(weights: Iterator[Any], progress: Progress) -> Iterator[Any]:
    for number, weight in enumerate(weights, 1):
        progress.begin(TENSOR, number)
        yield weight


def answer_for_stacks(
    wrapped: Callable[..., Any], _instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Before the `__init__` of a process that is no scheduler: it answers for its stacks."""
    starting.safely(starting.answer)
    return wrapped(*args, **kwargs)


_RUNNER = "sglang.srt.model_executor.model_runner"


def _runner_stage(method: str, target: Stage, draft: Stage | None = None, **how: Any) -> Hook:
    return Hook(
        module=how.pop("module", _RUNNER),
        attribute=f"{how.pop('owner', 'ModelRunner')}.{method}",
        wrapper=within(target, draft),
        **how,
    )


def _graph_runner(
    module: str, owner: str, whole: str, one: str, kind: str, slot: str | None = None
) -> tuple[Hook, Hook]:
    """The hooks of a class that captures; only some releases have one without a slot."""
    return (
        Hook(
            module=f"sglang.srt.model_executor.{module}",
            attribute=f"{owner}.{whole}",
            wrapper=around_capture,
            absent_module_ok=slot is None,
            slot=slot,
        ),
        Hook(
            module=f"sglang.srt.model_executor.{module}",
            attribute=f"{owner}.{one}",
            wrapper=beginning(kind),
            absent_module_ok=slot is None,
            slot=slot and f"one size of {slot}",
        ),
    )


def _draft_runner(module: str, owner: str) -> tuple[Hook, Hook]:
    """The hooks of a draft's class; since 0.5.14 it captures as the target's does."""
    first, second = (
        Hook(
            module=f"sglang.srt.speculative.{module}",
            attribute=f"{owner}.{method}",
            wrapper=beginning("batch size"),
            optional=method == "capture_one_shape",
            slot=owner,
        )
        for method in ("capture_one_shape", "capture_one_batch_size")
    )
    return first, second


# Module, class, its whole capture, that of one size, what sizes are of, and who else does it.
_GRAPH_RUNNERS = (
    (
        "runner.decode_cuda_graph_runner",
        "DecodeCudaGraphRunner",
        "capture",
        "capture_one_shape",
        "batch size",
        "graphs",
    ),
    (
        "cuda_graph_runner",
        "CudaGraphRunner",
        "capture",
        "capture_one_batch_size",
        "batch size",
        "graphs",
    ),
    (
        "runner.prefill_cuda_graph_runner",
        "PrefillCudaGraphRunner",
        "capture",
        "capture_one_shape",
        "tokens",
        "prefill graphs",
    ),
    (
        "piecewise_cuda_graph_runner",
        "PiecewiseCudaGraphRunner",
        "capture",
        "capture_one_batch_size",
        "tokens",
        "prefill graphs",
    ),
    (
        "breakable_cuda_graph_runner",
        "BreakableCudaGraphRunner",
        "_capture_all",
        "_capture_one",
        "tokens",
        None,
    ),
    (
        "cpu_graph_runner",
        "CPUGraphRunner",
        "capture",
        "capture_one_batch_size",
        "batch size",
        "CPU graphs",
    ),
)

PATCH = Patch(
    name=NAME,
    title="Say where a start is, what came of it, and where it waits when it stalls",
    hooks=(
        Hook(
            module="sglang.srt.managers.scheduler",
            attribute="Scheduler.__init__",
            parameters=("server_args",),
            wrapper=around_scheduler_init,
        ),
        Hook(
            module="sglang.srt.managers.scheduler",
            attribute="Scheduler.run_batch",
            wrapper=around_run_batch,
        ),
        Hook(
            module="sglang.srt.managers.scheduler",
            attribute="Scheduler.process_batch_result",
            wrapper=after_batch_result,
        ),
        _runner_stage("init_torch_distributed", Stage.RANKS),
        _runner_stage("load_model", Stage.TARGET_WEIGHTS, Stage.DRAFT_WEIGHTS),
        Hook(
            module="sglang.srt.model_loader.loader",
            attribute="DefaultModelLoader._get_all_weights",
            wrapper=count_tensors,
        ),
        _runner_stage(
            "init_memory_pool",
            Stage.TARGET_POOLS,
            Stage.DRAFT_POOLS,
            module="sglang.srt.model_executor.model_runner_kv_cache_mixin",
            owner="ModelRunnerKVCacheMixin",
            optional=True,
            absent_module_ok=True,
            slot="pools",
        ),
        # Last, since its module is always imported: if neither is there, it is told.
        _runner_stage("alloc_memory_pool", Stage.TARGET_POOLS, Stage.DRAFT_POOLS, slot="pools"),
        _runner_stage(
            "init_attention_backends",
            Stage.TARGET_ATTENTION,
            Stage.DRAFT_ATTENTION,
            optional=True,
            slot="attention",
        ),
        _runner_stage(
            "init_attention_backend",
            Stage.TARGET_ATTENTION,
            Stage.DRAFT_ATTENTION,
            slot="attention",
        ),
        _runner_stage("kernel_warmup", Stage.KERNELS, optional=True),
        *(hook for row in _GRAPH_RUNNERS for hook in _graph_runner(*row)),
        *_draft_runner("eagle_draft_cuda_graph_runner", "EAGLEDraftCudaGraphRunner"),
        *_draft_runner("eagle_draft_extend_cuda_graph_runner", "EAGLEDraftExtendCudaGraphRunner"),
        *(
            Hook(
                module=f"sglang.srt.managers.{module}",
                attribute=f"{owner}.__init__",
                parameters=("server_args",),
                wrapper=answer_for_stacks,
            )
            for module, owner in (
                ("detokenizer_manager", "DetokenizerManager"),
                ("tokenizer_manager", "TokenizerManager"),
                ("data_parallel_controller", "DataParallelController"),
            )
        ),
    ),
    processes=("main", "scheduler", "detokenizer", "data-parallel controller"),
    applies=">=0.5.9",
    reason="Slow capture and a true hang look the same, and both look like nothing.",
    upstream="none: https://github.com/sgl-project/sglang/issues/4417 and its like stay open",
    remove_when="upstream tells the stages of a start, and of a stall with stacks",
    risk=Risk.OBSERVABILITY,
)
