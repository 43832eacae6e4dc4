"""A case as files on the disk and as arguments of a launch, read by the real SGLang."""

from __future__ import annotations

import inspect
import json
from argparse import ArgumentParser
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import wrapt

from sglang_eagle3_patch.checkpoint.rules import Case
from tests.contract.beyond.cases import Compared
from tests.contract.releases.doctor_fixtures import Side
from tests.contract.releases.fidelity_cells import filled
from tests.cpu_sglang.pair import forms
from tests.unit.checkpoint import drafts
from tests.unit.doctor.cases import TARGET

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
        """Return them as SGLang resolves them; old releases do while they take them."""
        arguments = self.parsed()
        if hasattr(arguments, "resolve_once"):
            arguments.resolve_once()
        return arguments

    def told(self, name: str) -> Any:
        """Return one argument as SGLang tells it to who asks."""
        arguments = self.resolved()
        try:
            from sglang.srt.arg_groups.overrides import resolving_view
        except ImportError:
            return getattr(arguments, name)
        return getattr(resolving_view(arguments), name)

    def target_config(self) -> Any:
        """Return SGLang's `ModelConfig` of the target under this launch."""
        from sglang.srt.configs.model_config import ModelConfig

        return ModelConfig.from_server_args(self.resolved())

    def draft_config(self, context_length: int | None = None) -> Any:
        """Return SGLang's `ModelConfig` of the draft under this launch.

        `context_length` is the target's, which old workers write into the arguments.
        """
        from sglang.srt.configs.model_config import ModelConfig

        arguments, more = self.resolved(), {}
        if context_length is not None:
            if hasattr(arguments, "resolve_once"):
                more = {"context_length": context_length}
            else:
                arguments.context_length = context_length
        return ModelConfig.from_server_args(
            arguments, model_path=str(self.draft), is_draft_model=True, **more
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

    def built_target(self) -> Any:
        """Return a real target of SGLang's; some classes ask for more than a llama's config has."""
        config = deepcopy(self.target_config().hf_config)
        config.use_bias = False
        config.mm_hidden_size, config.vision_feature_layer = config.hidden_size, -1
        config.projector_hidden_act, config.multimodal_projector_bias = "gelu", True
        config.vision_config, config.text_config = SimpleNamespace(), SimpleNamespace()
        return model_class(config.architectures)(config)


def model_class(architectures: Any) -> Any:
    from sglang.srt.models.registry import ModelRegistry

    return ModelRegistry.resolve_model_cls(list(architectures))[0]


def under_the_hooks(load: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every `ModelRunner` load its model by `load`, under the hooks on `load_model`."""
    from sglang.srt.model_executor.model_runner import ModelRunner

    owner, name = ModelRunner, "load_model"
    found = inspect.getattr_static(owner, name)
    while isinstance(found, wrapt.FunctionWrapper):
        owner, name, found = found, "__wrapped__", found.__wrapped__
    monkeypatch.setattr(owner, name, load)


def loaded(target: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every `ModelRunner` load `target`."""

    def load(runner: Any) -> None:
        runner.model, runner.dtype = target, torch.float32

    under_the_hooks(load, monkeypatch)


def write(given: Compared, folder: Path) -> World:
    """Write a case's files below `folder`: what it lacks is as the healthy case has it."""
    told = given.case
    written = {name: told.draft.tensors[known] for name, known in told.draft.names.items()}
    draft = forms.write(folder / "draft", filled(written), dict(told.draft.config))
    if told.files is not None and "model.safetensors" not in told.files:
        (draft / "model.safetensors").unlink()
    target = folder / "target"
    target.mkdir()
    config = {**drafts.flat("", draft_vocab_size=None), **(told.target or TARGET).config}
    (target / "config.json").write_text(json.dumps(config))
    return World(told, given.side, given.trained, draft, target)
