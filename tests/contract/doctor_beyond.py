"""How what no draft class shows of a draft is observed in this process, on the real SGLang.

Arguments are parsed and resolved by SGLang, configs read by it, layers set and captured by a real
target. Mocked are a target's layers (attention wants a server's backend), its forward's residual,
and the building of backends.
"""

from __future__ import annotations

import json
import re
from argparse import ArgumentParser
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import MagicMock

import pytest
import torch
from safetensors.torch import load_file

from sglang_eagle3_patch.checkpoint.launch import LONGER_CONTEXT
from sglang_eagle3_patch.checkpoint.rules import Case
from sglang_eagle3_patch.hooks import wrapper_capture
from sglang_eagle3_patch.settings import PREFIX
from tests.contract.releases.doctor_fixtures import Side
from tests.contract.releases.doctor_observed import DEGRADED, REFUSES, SERVES
from tests.contract.releases.fidelity_cells import filled
from tests.cpu_sglang.pair import forms
from tests.unit.checkpoint import drafts
from tests.unit.doctor.cases import LAYERS, TARGET

CHAIN = (
    *("--speculative-num-steps", "3"),
    *("--speculative-eagle-topk", "1"),
    *("--speculative-num-draft-tokens", "4"),
)
# A launcher's own flag, which SGLang is not given.
_OUR_FLAG = "--eagle3-aux-layers"


@dataclass(frozen=True)
class World:
    """A case on the disk: a draft with weights, a target's config.

    `trained` are the inputs of the layers that the draft was trained on.
    """

    case: Case
    side: Side
    trained: tuple[int, ...] | None
    draft: Path
    target: Path

    def parsed(self) -> Any:
        """Return the arguments of the launch as SGLang's parser takes them."""
        from sglang.srt.server_args import ServerArgs

        given = list(self.case.launch.given)
        if _OUR_FLAG in given:
            place = given.index(_OUR_FLAG)
            del given[place : place + 2]
        parser = ArgumentParser()
        ServerArgs.add_cli_args(parser)
        files = ["--model-path", str(self.target), "--speculative-draft-model-path"]
        argv = [*files, str(self.draft), "--device", "cpu", *CHAIN, *given]
        return ServerArgs.from_cli_args(parser.parse_args(argv))

    def resolved(self) -> Any:
        """Return them as SGLang resolves them."""
        arguments = self.parsed()
        arguments.resolve_once()
        return arguments

    def draft_config(self, **more: Any) -> Any:
        """Return SGLang's `ModelConfig` of the draft under this launch."""
        from sglang.srt.configs.model_config import ModelConfig

        return ModelConfig.from_server_args(
            self.resolved(), model_path=str(self.draft), is_draft_model=True, **more
        )

    def built_draft(self, config: Any) -> Any:
        """Return a real draft of SGLang's, its parameters NaN until they are loaded."""
        built = model_class(config.architectures)(config)
        with torch.no_grad():
            for parameter in built.parameters():
                parameter.fill_(torch.nan)
        return built

    def bare_target(self) -> Any:
        """Return an instance of the target's real class with nothing in it."""
        found = model_class(self.case.target.architectures if self.case.target else ())
        target = found.__new__(found)
        torch.nn.Module.__init__(target)
        return target


def model_class(architectures: Any) -> Any:
    from sglang.srt.models.registry import ModelRegistry

    return ModelRegistry.resolve_model_cls(list(architectures))[0]


def write(told: Case, side: Side, trained: tuple[int, ...] | None, folder: Path) -> World:
    """Write a case's files below `folder`: what it lacks is as the healthy case has it."""
    written = {name: told.draft.tensors[known] for name, known in told.draft.names.items()}
    draft = forms.write(folder / "draft", filled(written), dict(told.draft.config))
    if told.files is not None and "model.safetensors" not in told.files:
        (draft / "model.safetensors").unlink()
    target = folder / "target"
    target.mkdir()
    config = {**drafts.flat("", draft_vocab_size=None), **(told.target or TARGET).config}
    (target / "config.json").write_text(json.dumps(config))
    return World(told, side, trained, draft, target)


class Recorder(torch.nn.Module):
    """A layer that computes nothing but its number, and hands over its input when asked to."""

    def forward(self, _positions: Any, hidden: Any, _batch: Any, *, capture_output: Any) -> Any:
        if capture_output is not None:
            capture_output(hidden)
        return hidden + 1


def captured_states(target: Any, monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """Run the target's own forward; return the states `[1, H]` it captured, full of the numbers
    of the layers whose inputs they are."""
    from sglang.srt.models import llama

    monkeypatch.setattr(llama.residual_batch, "start", lambda _batch: None)
    monkeypatch.setattr(llama.residual_batch, "final_norm", lambda hidden, _batch, _norm: hidden)
    target.model.layers = torch.nn.ModuleList(Recorder() for _ in range(LAYERS))
    embedded = torch.zeros(1, drafts.HIDDEN)
    result = target.model(None, None, None, input_embeds=embedded)
    return list(result[1]) if isinstance(result, tuple) else []


def set_capture(target: Any, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a target's real `ModelRunner` set what is captured for the draft, as at its start."""
    from sglang.srt.configs.model_config import ModelConfig
    from sglang.srt.model_executor import model_runner
    from sglang.srt.model_executor.model_runner_components import spec_aux_hidden_state
    from sglang.srt.runtime_context import get_spec
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    runner = object.__new__(model_runner.ModelRunner)
    runner.model, runner.is_draft_worker = target, False
    runner.server_args, runner.spec_algorithm = world.resolved(), SpeculativeAlgorithm.EAGLE3
    runner.kv_index_translator = MagicMock()
    with get_spec().override(speculative_draft_model_path=str(world.draft)):
        runner.spec_aux_config = spec_aux_hidden_state.resolve_spec_aux_hidden_state_config(
            server_args=runner.server_args,
            model_config=ModelConfig.from_server_args(runner.server_args),
            spec_algorithm=runner.spec_algorithm,
            is_draft_worker=False,
        )
    monkeypatch.setattr(model_runner, "resolve_attention_backend_strs", MagicMock())
    monkeypatch.setattr(model_runner, "build_attention_backends", MagicMock())
    runner.init_attention_backends()


def capture(world: World, monkeypatch: pytest.MonkeyPatch) -> str:
    """Capture, and give the draft's `fc` what was captured."""
    from sglang.srt.configs.model_config import ModelConfig

    if world.case.launch.aux_layers:
        named = ":".join(map(str, world.case.launch.aux_layers))
        monkeypatch.setenv(f"{PREFIX}_OPTIONS", f"aux_layers={named}")
    config = ModelConfig.from_server_args(world.resolved()).hf_config
    target = model_class(config.architectures)(config)
    set_capture(target, world, monkeypatch)
    states = captured_states(target, monkeypatch)
    world.built_draft(world.draft_config().hf_config).model.fc(torch.cat(states, dim=-1))
    inputs = tuple(int(state[0, 0]) for state in states)
    return SERVES if inputs == world.trained else DEGRADED


def can_capture(world: World, monkeypatch: pytest.MonkeyPatch) -> str:
    """Capture with the target's class: a wrapper has nothing in it but its language model."""
    from sglang.srt.configs.model_config import ModelConfig
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    config = ModelConfig.from_server_args(world.resolved()).hf_config
    language_model, target = model_class(["LlamaForCausalLM"])(config), world.bare_target()
    if type(target) is type(language_model):
        target = language_model
    else:
        target.language_model = language_model
    if world.side == "plugin":
        algorithm = SpeculativeAlgorithm.EAGLE3
        loaded = SimpleNamespace(model=target, is_draft_worker=False, spec_algorithm=algorithm)
        wrapper_capture.after_load(lambda: None, loaded, (), {})
    set_capture(target, world, monkeypatch)
    inputs = tuple(language_model.model.layers_to_capture)
    return SERVES if inputs == world.trained else DEGRADED


def can_share(world: World, _monkeypatch: pytest.MonkeyPatch) -> str:
    """Ask the target's class for its embedding and head as a draft worker does."""
    from sglang.srt.speculative.pp_draft_embedding import resolve_target_embed_and_head

    target = world.bare_target()
    target.model = SimpleNamespace(embed_tokens=torch.nn.Embedding(1, 1))
    target.lm_head = torch.nn.Linear(1, 1)
    resolve_target_embed_and_head(target)
    return SERVES


def longest_context(world: World, _monkeypatch: pytest.MonkeyPatch) -> str:
    """Read the draft as its worker does: with the target's context."""
    from sglang.srt.configs.model_config import ModelConfig

    served = ModelConfig.from_server_args(world.resolved()).context_len
    config = world.draft_config(context_length=served)
    assert config.context_len == served
    return SERVES if served <= world.case.draft.config["max_position_embeddings"] else DEGRADED


def weights(world: World, _monkeypatch: pytest.MonkeyPatch) -> str:
    from sglang.srt.configs.device_config import DeviceConfig
    from sglang.srt.configs.load_config import LoadConfig
    from sglang.srt.model_loader.loader import get_model_loader

    config = world.draft_config()
    loader = get_model_loader(LoadConfig(), config)
    loader.load_model(model_config=config, device_config=DeviceConfig("cpu", gpu_id=-1))
    return SERVES


def window(world: World, _monkeypatch: pytest.MonkeyPatch) -> str:
    from sglang.srt.arg_groups.overrides import resolving_view
    from sglang.srt.runtime_context import get_spec

    size = resolving_view(world.resolved()).speculative_draft_window_size
    with get_spec().override(speculative_draft_window_size=size):
        built = world.built_draft(world.draft_config().hf_config)
    (layer,) = built.model.layers
    return SERVES if layer.self_attn.attn.sliding_window_size == -1 else DEGRADED


def parsing(world: World, _monkeypatch: pytest.MonkeyPatch) -> str:
    world.parsed()
    return SERVES


def checking(world: World, _monkeypatch: pytest.MonkeyPatch) -> str:
    world.resolved().check_server_args()
    return SERVES


def speculating(world: World, _monkeypatch: pytest.MonkeyPatch) -> str:
    from sglang.srt.arg_groups.overrides import resolving_view

    algorithm = resolving_view(world.resolved()).speculative_algorithm
    return SERVES if algorithm == "EAGLE3" else f"runs {algorithm}"


def quantisation(world: World, _monkeypatch: pytest.MonkeyPatch) -> str:
    from sglang.srt.arg_groups.overrides import resolving_view

    method = resolving_view(world.resolved()).speculative_draft_model_quantization
    return SERVES if method in (None, "unquant") else DEGRADED


def overrides(world: World, _monkeypatch: pytest.MonkeyPatch) -> str:
    """Load the draft as it is read with the overrides, and compare it with itself without."""
    from sglang.srt.configs.model_config import ModelConfig

    tensors = list(load_file(world.draft / "model.safetensors").items())
    plain = ModelConfig(str(world.draft), is_draft_model=True)
    wanted, built = (
        world.built_draft(config.hf_config) for config in (plain, world.draft_config())
    )
    wanted.load_weights(tensors)
    built.load_weights(tensors)
    return SERVES if computes(built) == computes(wanted) else DEGRADED


def computes(draft: Any) -> dict[str, Any]:
    """Return what a draft computes with, as lists; its embedding, lent by the target, is NaN."""
    layer = draft.model.layers[0]
    held = {name: value.nan_to_num(-1.0) for name, value in draft.named_parameters()}
    held["rope"] = layer.self_attn.rotary_emb.cos_sin_cache
    epsilon = layer.input_layernorm.variance_epsilon
    return {**{name: value.tolist() for name, value in held.items()}, "epsilon": epsilon}


class Observed(NamedTuple):
    """What looks at a rule's matter, and the errors that a refusal ends in on either side."""

    look: Callable[[World, pytest.MonkeyPatch], str]
    stock: str = ""
    plugin: str = ""


_CLASS_LACKS = "does not implement set_eagle3_layers_to_capture"
_NO_GETTER = "has no attribute 'get_embed_and_head'"
_TOO_FEW_STATES = "shapes cannot be multiplied"
_NO_WEIGHTS = "Cannot find any model weights"
_TOO_LONG = "greater than the derived context_length"
_EAGLE_ALONE = "currently only supports EAGLE"
# Under the plugin too SGLang's setter is the first to meet the ids of `eagle_config`.
_NO_NUMBERS = "can only concatenate str"
OBSERVED: Mapping[str, Observed] = {
    "E3-files-weights": Observed(weights, _NO_WEIGHTS, _NO_WEIGHTS),
    "E3-layers-unreadable": Observed(
        capture, _NO_NUMBERS, f"{_NO_NUMBERS}|no list of layer numbers"
    ),
    "E3-layers-place": Observed(capture),
    "E3-layers-captured": Observed(capture),
    "E3-layers-order": Observed(capture, _TOO_FEW_STATES, "are not distinct and ascending"),
    "E3-layers-range": Observed(capture, _TOO_FEW_STATES, "the target has 8 layers"),
    "E3-layers-last": Observed(capture, _TOO_FEW_STATES, _TOO_FEW_STATES),
    "E3-window-untrained": Observed(window),
    "E3-context-short": Observed(longest_context, _TOO_LONG, _TOO_LONG),
    "E3-context-untrained": Observed(longest_context),
    "E3-target-capture": Observed(can_capture, _CLASS_LACKS, _CLASS_LACKS),
    "E3-target-embedding": Observed(can_share, _NO_GETTER, _NO_GETTER),
    "E3-launch-no-speculation": Observed(speculating),
    "E3-launch-flags": Observed(parsing, "SystemExit", "SystemExit"),
    "E3-launch-quantization": Observed(quantisation),
    "E3-launch-structure": Observed(overrides, "^AssertionError", "of another structure: "),
    "E3-launch-computation": Observed(overrides),
    "E3-launch-pipeline": Observed(checking, _EAGLE_ALONE, _EAGLE_ALONE),
}


def seen(rule: str, world: World, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return what comes of a case here; an error that isn't the rule's is one of the test's."""
    observed = OBSERVED[rule]
    refusal = observed.stock if world.side == "stock" else observed.plugin
    if world.case.launch.longer_context_allowed:
        monkeypatch.setenv(LONGER_CONTEXT, "1")
    try:
        return observed.look(world, monkeypatch)
    except (Exception, SystemExit) as error:
        if refusal and re.search(refusal, f"{type(error).__name__}: {error}"):
            return REFUSES
        raise
