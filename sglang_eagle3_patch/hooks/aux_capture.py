"""aux-capture: the target hands over the aux hidden states that the draft was trained on.

Why: SGLang reads the layer ids from one place under a blanket except and falls back to defaults,
adds 1 to them by a rule that differs per target class, and takes `use_aux_hidden_state: false`
at its word even when the draft has an `fc` over several layers, which is then skipped. Releases
up to 0.5.10.post1 capture their CUDA graphs with default layers and set the ids afterwards.
Where: `PretrainedConfig.get_config_dict` for the flag, so that every reader of the draft's config
sees the same; the method of `ModelRunner` that sets the capture; in those older releases also
`ModelRunner.load_model`, so that the ids are set before graphs are captured.
How: the draft's headers say how many states `fc` takes. After SGLang has set the layers, those
really set are read back from the target, corrected where the draft's config is certain about
them, and compared with what `fc` takes.
When it can go: when upstream resolves ids with their source and checks them against the draft.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from sglang_eagle3_patch.checkpoint import aux_layers
from sglang_eagle3_patch.checkpoint.config import ConfigNotUnderstood, is_eagle3
from sglang_eagle3_patch.checkpoint.spec import DraftSpec
from sglang_eagle3_patch.engine.patch import Hook, Patch, Risk
from sglang_eagle3_patch.errors import DraftError
from sglang_eagle3_patch.hooks.parts.launch_facts import facts
from sglang_eagle3_patch.hooks.parts.local_draft import read_draft, with_hub_headers
from sglang_eagle3_patch.hooks.parts.source_probe import raises_over, source_says
from sglang_eagle3_patch.hooks.parts.target_capture import (
    capture_exactly,
    captured_inputs,
    capturing_module,
    remember_layers,
    set_layers,
)
from sglang_eagle3_patch.settings import Settings

logger = logging.getLogger(__name__)

NAME = "aux-capture"
_NAME_THEM = "name the layers it was trained on: SGLANG_EAGLE3_PATCH_OPTIONS=aux_layers=…"
# Methods of ModelRunner by which releases since 0.5.11 set the layers before graphs are captured.
_SETS_BEFORE_GRAPHS = ("init_aux_hidden_state_capture", "init_attention_backends")


def get_config_dict(
    wrapped: Callable[..., Any], _class: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Around `get_config_dict(path, …)`: a draft with an `fc` over several layers uses them."""
    result = wrapped(*args, **kwargs)
    config = result[0]
    if not (isinstance(config, dict) and is_eagle3(config)):
        return result
    eagle_config = config.get("eagle_config") or {}
    if not isinstance(eagle_config, dict) or eagle_config.get("use_aux_hidden_state", True):
        return result
    path = args[0] if args else kwargs["pretrained_model_name_or_path"]
    spec = read_draft(str(path), kwargs.get("revision"), NAME)
    if spec is None or (spec.num_aux or 0) < 2:
        return result
    logger.warning(
        "sglang-eagle3-patch: %s: %s says use_aux_hidden_state: false, but its fc takes %d aux "
        "hidden states; they are captured. Fix: correct eagle_config in its config.json.",
        NAME,
        path,
        spec.num_aux,
    )
    corrected = {**config, "eagle_config": {**eagle_config, "use_aux_hidden_state": True}}
    return (corrected, *result[1:])


def after_capture_is_set(
    wrapped: Callable[..., Any], runner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """After the target's `ModelRunner` has set which layers are captured."""
    result = wrapped(*args, **kwargs)
    if runner.is_draft_worker:
        return result
    facts.algorithm = getattr(runner.spec_algorithm, "name", None)
    if runner.spec_algorithm.is_eagle3():
        holder = capturing_module(runner.model)
        facts.captured_layers = () if holder is None else tuple(captured_inputs(holder))
        _check_runner(runner)
    return result


def before_graphs(
    wrapped: Callable[..., Any], runner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """After `ModelRunner.load_model`, where ids would be set only after graphs are captured.

    The graph runner asks the target to capture without naming layers, which means the defaults.
    From here on it means the layers that were named last.
    """
    result = wrapped(*args, **kwargs)
    late = not any(hasattr(type(runner), name) for name in _SETS_BEFORE_GRAPHS)
    if late and not runner.is_draft_worker and getattr(runner, "eagle_use_aux_hidden_state", False):
        remember_layers(runner.model)
        set_layers(runner.model, getattr(runner, "eagle_aux_hidden_state_layer_ids", None))
        _check_runner(runner)
    return result


def _check_runner(runner: Any) -> None:
    draft = getattr(runner.server_args, "speculative_draft_model_path", None)
    if draft:
        revision = getattr(runner.server_args, "speculative_draft_model_revision", None)
        spec = read_draft(draft, revision, NAME)
        if spec is not None:
            # Who wrote the draft, and what its ids mean, its tensors' names tell.
            spec = with_hub_headers(spec, draft, revision)
        check_capture(runner.model, spec, draft)


def check_capture(target: Any, spec: DraftSpec | None, draft: str) -> None:
    """Correct and check the layers that the target model captures for the draft.

    Raises `DraftError` when they can't be what the draft was trained on.
    """
    holder = capturing_module(target)
    if holder is None or spec is None or not spec.is_eagle3:
        logger.info(
            "sglang-eagle3-patch: %s: captured layers can't be checked (%s)",
            NAME,
            "the target keeps them elsewhere" if holder is None else f"{draft} is not local",
        )
        return
    num_layers = len(holder.layers)
    try:
        option = Settings.from_environment().aux_layers
        wanted = aux_layers.resolve(spec.config, num_layers, option, spec.producer)
    except ConfigNotUnderstood as error:
        raise DraftError(NAME, f"{draft}: {error}", "correct the draft's config.json") from error
    if wanted.inputs is not None and not capture_exactly(target, holder, wanted.inputs):
        raise DraftError(
            NAME,
            f"the draft wants the inputs of layers {list(wanted.inputs)} ({wanted.source}), and "
            f"{type(target).__name__} can't capture them: it would capture "
            f"{captured_inputs(holder)}",
            "serve it with a release whose target class can",
        )
    captured = captured_inputs(holder)
    facts.captured_layers, facts.layers_from = tuple(captured), wanted.source
    _refuse_impossible(captured, num_layers, spec, draft, wanted.source)
    logger.log(
        logging.INFO if wanted.certain else logging.WARNING,
        "sglang-eagle3-patch: %s: inputs of layers %s of %d are captured (%s)%s",
        NAME,
        captured,
        num_layers,
        wanted.source,
        "" if wanted.certain else f". Fix: if the draft was trained on others, {_NAME_THEM}",
    )
    if spec.num_aux is None:
        logger.warning(
            "sglang-eagle3-patch: %s: how many aux hidden states the fc of %s takes was not "
            "checked: its weights are no local safetensors files",
            NAME,
            draft,
        )
    if num_layers in captured:
        logger.warning(
            "sglang-eagle3-patch: %s: the input of layer %d is the output of the last layer, "
            "which few target classes capture. Fix: if drafts are rejected, %s",
            NAME,
            num_layers,
            _NAME_THEM,
        )


def _refuse_impossible(
    captured: list[int], num_layers: int, spec: DraftSpec, draft: str, source: str
) -> None:
    problem = ""
    if spec.producer.ids_in_layer_order:
        captured = sorted(captured)  # as both its trainer and SGLang take them
    if captured != sorted(set(captured)):
        problem = "they are not distinct and ascending, and are captured in layer order"
    elif captured[-1] > num_layers:
        problem = f"the target has {num_layers} layers"
    elif spec.num_aux is not None and spec.num_aux != len(captured):
        problem = f"the draft's fc takes {spec.num_aux} aux hidden states"
    if problem:
        raise DraftError(
            NAME,
            f"inputs of layers {captured} are captured for {draft} ({source}), but {problem}",
            _NAME_THEM,
        )


def corrects_the_flag(_config_class: Any) -> bool:
    """Whether SGLang's own reader of configs, which moved, overrides `use_aux_hidden_state`."""
    readers = ("srt/utils/hf_transformers/config.py", "srt/utils/hf_transformers_utils.py")
    return any(source_says(file, "use_aux_hidden_state") for file in readers)


def checks_capture(runner_class: Any) -> bool:
    """Whether the method that sets the layers raises when they can't be the draft's."""
    methods = (*_SETS_BEFORE_GRAPHS, "initialize")
    return any(raises_over(runner_class, name, "layers_to_capture") for name in methods)


PATCH = Patch(
    name=NAME,
    title="Capture the layers the draft was trained on, and check them",
    hooks=(
        Hook(
            module="transformers.configuration_utils",
            attribute="PretrainedConfig.get_config_dict",
            parameters=("pretrained_model_name_or_path",),
            wrapper=get_config_dict,
            fixed_when=corrects_the_flag,
        ),
        Hook(
            module="sglang.srt.model_executor.model_runner",
            attribute="ModelRunner.init_aux_hidden_state_capture",
            wrapper=after_capture_is_set,
            fixed_when=checks_capture,
            optional=True,
            slot="capture",
        ),
        Hook(
            module="sglang.srt.model_executor.model_runner",
            attribute="ModelRunner.init_attention_backends",
            wrapper=after_capture_is_set,
            fixed_when=checks_capture,
            optional=True,
            slot="capture",
        ),
        Hook(
            module="sglang.srt.model_executor.model_runner",
            attribute="ModelRunner.initialize",
            wrapper=after_capture_is_set,
            fixed_when=checks_capture,
            slot="capture",
        ),
        Hook(
            module="sglang.srt.model_executor.model_runner",
            attribute="ModelRunner.load_model",
            wrapper=before_graphs,
            fixed_when=checks_capture,
        ),
    ),
    processes=("main", "scheduler"),
    applies=">=0.5.9",
    reason="Layer ids are guessed, and nothing compares them with what the draft's fc takes.",
    upstream="https://github.com/sgl-project/sglang/pull/25454",
    remove_when="upstream resolves ids with their source and checks their number against fc",
    risk=Risk.NUMERICS,
    after=("draft-config", "kimi-capture", "wrapper-capture"),
)
