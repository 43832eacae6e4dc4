"""fc-guard: a draft's `fc` is never skipped in silence.

Why: SGLang fuses aux hidden states only `if hidden_states.shape[-1] != embeds.shape[-1]`. When
the target hands over one state instead of several, the widths agree and `fc` is skipped: the
server is healthy and every draft is rejected.
Where: the inner model's `forward` of both draft classes; the draft-extend graph runner's replay,
which skips its copy when widths differ; the workers' start, so that what can be told before
serving is told before serving.
How: a worker whose algorithm captures nothing refuses a draft that needs it. Draft decode may
recur on the drafter's own states; every other forward gets its states from the target and must
bring exactly `fc`'s input width. Shapes are Python numbers: no device sync, and nothing runs when
a captured graph is replayed.
When it can go: when upstream decides on the forward mode instead of the width.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sglang_eagle3_patch.checkpoint.config import EAGLE3_ARCHITECTURES
from sglang_eagle3_patch.engine.patch import Hook, Patch, Risk
from sglang_eagle3_patch.errors import DraftError
from sglang_eagle3_patch.hooks.parts.expected_tensors import (
    fc_input_width,
    inner_model,
    uses_aux_hidden_states,
)
from sglang_eagle3_patch.hooks.parts.launch_facts import (
    captured_layers,
    facts,
    speculative_algorithm,
)
from sglang_eagle3_patch.hooks.parts.source_probe import raises_over

NAME = "fc-guard"


def forward(
    wrapped: Callable[..., Any], model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Around the inner model's `forward(input_ids, positions, forward_batch, …)`."""
    batch = kwargs["forward_batch"] if "forward_batch" in kwargs else args[2]
    mode = batch.forward_mode
    if not (mode.is_decode() or mode.is_idle()):
        hidden_states = getattr(batch.spec_info, "hidden_states", None)
        if hidden_states is not None and hidden_states.shape[0] > 0:
            check_width(model, hidden_states.shape[-1], mode)
    return wrapped(*args, **kwargs)


def check_width(model: Any, width: int, mode: Any) -> None:
    """Raise `DraftError` unless target states of `width` go through the model's `fc`."""
    if not uses_aux_hidden_states(model):
        return
    wanted, embed_width = fc_input_width(model.fc), model.config.hidden_size
    if width == wanted and width != embed_width:
        return
    name = getattr(mode, "name", mode)
    if width == wanted:
        problem = (
            f"fc would be skipped in {name}: it takes {wanted} values, as many as the draft's "
            f"embedding has, and SGLang tells aux hidden states from its own by their width"
        )
        fix = "serve this draft with an engine that does not decide by width"
    else:
        problem = (
            f"hidden states of width {width} reach the draft in {name}, but its fc takes {wanted}"
            + (" and would be skipped" if width == embed_width else "")
            + f" (algorithm {speculative_algorithm()}, captured layers: {captured_layers()})"
        )
        fix = (
            "start with --speculative-algorithm EAGLE3 and a target whose class captures "
            "aux hidden states"
        )
    raise DraftError(NAME, problem, fix)


def before_sharing(
    wrapped: Callable[..., Any], worker: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Before `EagleDraftWorker.init_lm_head`, when both models are loaded."""
    check_algorithm(worker.draft_runner.model, worker.speculative_algorithm)
    return wrapped(*args, **kwargs)


def after_worker_init(
    wrapped: Callable[..., Any], worker: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """After `EAGLEWorker.__init__`, the worker of releases up to 0.5.12.post1."""
    result = wrapped(*args, **kwargs)
    check_algorithm(worker.draft_model_runner.model, worker.speculative_algorithm)
    return result


def check_algorithm(draft: Any, algorithm: Any) -> None:
    """Raise `DraftError` when the algorithm captures nothing and the draft is EAGLE-3's."""
    needs_states = type(draft).__name__ in EAGLE3_ARCHITECTURES and uses_aux_hidden_states(draft)
    if needs_states:
        facts.fc_width = fc_input_width(inner_model(draft).fc)
    if needs_states and not algorithm.is_eagle3():
        raise DraftError(
            NAME,
            f"{type(draft).__name__} takes {fc_input_width(inner_model(draft).fc)} values of aux "
            f"hidden states, and with --speculative-algorithm {algorithm.name} none are captured: "
            "fc would be skipped",
            "start with --speculative-algorithm EAGLE3",
        )


def replay_draft_extend(
    wrapped: Callable[..., Any], runner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Around the draft-extend graph's replay, whose copy is skipped when widths differ.

    A STANDALONE draft takes no states of the target's, and up to 0.5.11 they come along all the
    same, in the target's width.
    """
    if not runner.eagle_worker.speculative_algorithm.is_eagle3():
        return wrapped(*args, **kwargs)
    batch = kwargs["forward_batch"] if "forward_batch" in kwargs else args[0]
    states = getattr(batch.spec_info, "hidden_states", None)
    buffer = getattr(getattr(runner, "buffers", runner), "hidden_states", None)
    # An idle rank brings no rows, of the draft's own width; nothing of it is computed.
    if states is None or buffer is None or states.shape[0] == 0:
        return wrapped(*args, **kwargs)
    if states.shape[-1] != buffer.shape[-1]:
        raise DraftError(
            NAME,
            f"hidden states of width {states.shape[-1]} can't enter the draft-extend graph, "
            f"captured for {buffer.shape[-1]}: it would run on what an earlier step left there",
            "start with --speculative-algorithm EAGLE3, or without graphs (--disable-cuda-graph)",
        )
    return wrapped(*args, **kwargs)


def decides_by_mode(model_class: Any) -> bool:
    """Whether the inner model's `forward` raises over widths by the forward mode."""
    return raises_over(model_class, "forward", "is_decode", "shape")


def refuses_algorithm(worker_class: Any) -> bool:
    """Whether the worker raises when its algorithm captures nothing."""
    methods = ("init_lm_head", "__init__")
    return any(raises_over(worker_class, name, "is_eagle3") for name in methods)


def refuses_widths(runner_class: Any) -> bool:
    """Whether the replay raises over the width of what can't be copied."""
    methods = ("execute", "replay")
    return any(raises_over(runner_class, name, "hidden_states", "shape") for name in methods)


PATCH = Patch(
    name=NAME,
    title="Refuse hidden states that would skip the draft's fc",
    hooks=(
        Hook(
            module="sglang.srt.models.llama_eagle3",
            attribute="LlamaModel.forward",
            parameters=("input_ids", "positions", "forward_batch"),
            wrapper=forward,
            fixed_when=decides_by_mode,
        ),
        Hook(
            module="sglang.srt.models.kimi_k25_eagle3",
            attribute="Eagle3MLAModel.forward",
            absent_module_ok=True,
            parameters=("input_ids", "positions", "forward_batch"),
            wrapper=forward,
            fixed_when=decides_by_mode,
        ),
        Hook(
            module="sglang.srt.speculative.eagle_worker_v2",
            attribute="EagleDraftWorker.init_lm_head",
            wrapper=before_sharing,
            fixed_when=refuses_algorithm,
        ),
        Hook(
            module="sglang.srt.speculative.eagle_worker",
            attribute="EAGLEWorker.__init__",
            absent_module_ok=True,
            wrapper=after_worker_init,
            fixed_when=refuses_algorithm,
        ),
        Hook(
            module="sglang.srt.speculative.eagle_draft_extend_cuda_graph_runner",
            attribute="EAGLEDraftExtendCudaGraphRunner.execute",
            parameters=("forward_batch",),
            wrapper=replay_draft_extend,
            optional=True,
            slot="replay",
            fixed_when=refuses_widths,
        ),
        Hook(
            module="sglang.srt.speculative.eagle_draft_extend_cuda_graph_runner",
            attribute="EAGLEDraftExtendCudaGraphRunner.replay",
            parameters=("forward_batch",),
            wrapper=replay_draft_extend,
            slot="replay",
            fixed_when=refuses_widths,
        ),
    ),
    processes=("scheduler",),
    applies=">=0.5.9",
    reason="fc is applied only if the width differs from the embedding's.",
    upstream="https://github.com/sgl-project/sglang/pull/21272",
    remove_when="the draft's forward raises on target states that don't fit fc",
    risk=Risk.NUMERICS,
)
