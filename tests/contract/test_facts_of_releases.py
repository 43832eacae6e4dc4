"""`EngineFacts` against the real SGLang of this environment, whichever release it is.

No rank is set up, so that this runs on every release: model classes are built with their layers
and process groups replaced, setters run on a bare target, loaders on a bare draft.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import dis
import importlib.util
import inspect
import sys
from itertools import pairwise
from types import CodeType, FunctionType, MethodType, SimpleNamespace
from typing import Any

import pytest

from sglang_eagle3_patch import facts
from sglang_eagle3_patch.facts import DraftClass, EngineFacts, TargetClass

NUM_LAYERS = 24
HIDDEN = 8
# Stands for a config field that isn't there.
ABSENT = object()


@pytest.fixture(scope="module")
def known() -> EngineFacts:
    found = facts.installed()
    assert found is not None
    assert found.release in facts.known_releases()
    return found


@pytest.fixture(scope="module")
def models() -> dict[str, type]:
    """Return every model class that imports here, by architecture."""
    from sglang.srt.models.registry import ModelRegistry

    assert len(ModelRegistry.models) > 100
    return dict(ModelRegistry.models)


class TestTargets:
    def test_every_registered_architecture_is_there(
        self, known: EngineFacts, models: dict[str, type]
    ) -> None:
        assert set(models) <= set(known.targets)

    def test_methods(self, known: EngineFacts, models: dict[str, type]) -> None:
        from torch.nn import Module

        # What hands on to an object that only its instances hold can't be told by its class.
        ordinary = (None, Module.__getattr__)
        handing = {
            arch
            for arch, model in models.items()
            if getattr(model, "__getattr__", None) not in ordinary
        }
        for said, name in (
            ("captures", "set_eagle3_layers_to_capture"),
            ("gives_embed_and_head", "get_embed_and_head"),
            ("takes_embed_and_head", "set_embed_and_head"),
        ):
            told = {arch: getattr(known.targets[arch], said) for arch in models}
            real = {
                arch: hasattr(model, name) or (None if arch in handing else False)
                for arch, model in models.items()
            }
            assert told == real

    def test_language_models(self, known: EngineFacts, models: dict[str, type]) -> None:
        told = {arch: bool(known.targets[arch].holds_language_model) for arch in models}
        real = {arch: bool(_setting_a_language_model(model)) for arch, model in models.items()}
        assert told == real
        named = {arch: known.targets[arch].language_model for arch in models}
        assert sum(name is not None for name in named.values()) > 10
        for arch, name in named.items():
            if name is not None:
                assert any(
                    name in (*code.co_names, *code.co_varnames)
                    for code in _setting_a_language_model(models[arch])
                )

    @pytest.mark.parametrize(
        "ids",
        [
            None,
            (1, NUM_LAYERS // 2 - 1, NUM_LAYERS - 4),
            (2, NUM_LAYERS // 2, NUM_LAYERS - 3),
            (0, 5, NUM_LAYERS),
        ],
    )
    def test_captured_layers(
        self,
        known: EngineFacts,
        models: dict[str, type],
        ids: tuple[int, ...] | None,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        told, real = {}, {}
        for arch, model in models.items():
            target = known.targets[arch]
            layers = target.captured_layers(ids, NUM_LAYERS)
            if layers is not None:
                told[arch] = layers
                real[arch] = _really_captured(model, _inner(target, model), ids, monkeypatch)
        assert told == real
        capturing = [arch for arch in models if known.targets[arch].captures]
        assert len(capturing) > 30
        # Mindspore's class picks its inner model at run time.
        assert set(capturing) - set(told) <= {"MindSporeForCausalLM"}


def _setting_a_language_model(model: type) -> list[CodeType]:
    """Return the compiled methods of a class and its ancestors that set `self.language_model`."""
    methods = [value for ancestor in model.__mro__ for value in vars(ancestor).values()]
    return [
        method.__code__
        for method in methods
        if isinstance(method, FunctionType)
        and "language_model" in method.__code__.co_names
        and any(
            (on.argval, step.opname, step.argval) == ("self", "STORE_ATTR", "language_model")
            for on, step in pairwise(dis.get_instructions(method))
        )
    ]


def _inner(target: TargetClass, model: type) -> Any:
    """Return the class a setter hands on to, from the module that builds it or its functions."""
    if target.delegates_to is None:
        return None
    for module in list(sys.modules.values()):
        if getattr(module, "__name__", "").startswith("sglang.srt.models."):
            found = getattr(module, target.delegates_to, None)
            if found is not None and found.__module__ == module.__name__:
                return found
    raise AssertionError(f"{model.__name__}: there is no class {target.delegates_to}")


def _really_captured(
    model: type, inner: Any, ids: tuple[int, ...] | None, monkeypatch: pytest.MonkeyPatch
) -> Any:
    setter: Any = model.set_eagle3_layers_to_capture  # type: ignore[attr-defined]
    last = SimpleNamespace(is_last_rank=True)
    for function in (setter, getattr(inner, "set_eagle3_layers_to_capture", setter)):
        for name, value in (
            ("get_pp_group", last),
            ("get_parallel", SimpleNamespace(pp_group=last)),
        ):
            if name in function.__globals__:
                monkeypatch.setitem(function.__globals__, name, lambda value=value: value)
    target = _bare_target(inner)
    setter(target, None if ids is None else list(ids))
    held = target.language_model if inner is not None else target
    captured = getattr(held.model, "layers_to_capture", None)
    return tuple(captured if captured is not None else held.language_model.layers_to_capture)


def _bare_target(inner: Any = None) -> Any:
    config = SimpleNamespace(num_hidden_layers=NUM_LAYERS)
    config.text_config = config
    model = SimpleNamespace(layers=[SimpleNamespace() for _ in range(NUM_LAYERS)])

    def remember(layers: list[int]) -> None:
        model.layers_to_capture = layers

    model.set_eagle3_layers_to_capture = remember
    target = SimpleNamespace(
        config=config, model=model, pp_group=SimpleNamespace(is_last_rank=True)
    )
    if inner is not None:
        target.language_model = _bare_target()
        target.language_model.set_eagle3_layers_to_capture = MethodType(
            inner.set_eagle3_layers_to_capture, target.language_model
        )
    else:
        target.language_model = SimpleNamespace()
    return target


def test_every_draft_class_is_described(known: EngineFacts, models: dict[str, type]) -> None:
    drafts = {"LlamaForCausalLMEagle3", "Eagle3DeepseekV2ForCausalLM"} & set(models)
    assert set(known.drafts) == drafts
    assert "LlamaForCausalLMEagle3" in drafts


@pytest.fixture(params=["LlamaForCausalLMEagle3", "Eagle3DeepseekV2ForCausalLM"])
def architecture(request: pytest.FixtureRequest, known: EngineFacts) -> str:
    if request.param not in known.drafts:
        pytest.skip(f"SGLang {known.release} has no {request.param}")
    return request.param


@pytest.fixture
def told(architecture: str, known: EngineFacts) -> DraftClass:
    return known.drafts[architecture]


class Builder:
    """Builds a real draft class whose layers are empty modules that take any arguments."""

    def __init__(self, model_class: type, monkeypatch: pytest.MonkeyPatch) -> None:
        import torch

        class Empty(torch.nn.Module):
            def __init__(self, *arguments: Any, **named: Any) -> None:
                super().__init__()
                self.arguments = arguments
                self.self_attn = SimpleNamespace(attn=SimpleNamespace(sliding_window_size=-1))

        class Linear(Empty):
            @property
            def in_features(self) -> Any:
                return self.arguments[0]

        self.model_class = model_class
        self.module = module = sys.modules[model_class.__module__]
        self.arguments = arguments = SimpleNamespace(speculative_draft_window_size=None)
        replaced: dict[str, Any] = {
            **dict.fromkeys(("ParallelLMHead", "VocabParallelEmbedding"), Empty),
            **dict.fromkeys(("RMSNorm", "LogitsProcessor", "Eagle3MLADecoderLayer"), Empty),
            "LlamaDecoderLayer": Empty,
            "ColumnParallelLinear": Linear,
            "layer_stack": contextlib.nullcontext,
            "get_embedding_tp_kwargs": dict,
            "get_pp_group": lambda: None,
            "get_parallel": lambda: SimpleNamespace(pp_group=None),
            "get_spec": lambda: arguments,
            "get_global_server_args": lambda: arguments,
            "get_server_args": lambda: arguments,
            "triton_symm_mem_ag": SimpleNamespace(
                MultimemAllGatherer=Empty, recommended_max_tokens=lambda **named: 1
            ),
        }
        for name, value in replaced.items():
            if hasattr(module, name):
                monkeypatch.setattr(module, name, value)

    def __call__(self, **changes: Any) -> Any:
        config: dict[str, Any] = {
            "model_type": "llama",
            "vocab_size": 16,
            "draft_vocab_size": 12,
            "hidden_size": HIDDEN,
            "num_hidden_layers": 1,
            "rms_norm_eps": 1e-6,
            "tie_word_embeddings": False,
            **changes,
        }
        config = {name: value for name, value in config.items() if value is not ABSENT}
        return self.model_class(SimpleNamespace(**config))


@pytest.fixture
def build(architecture: str, models: dict[str, type], monkeypatch: pytest.MonkeyPatch) -> Builder:
    return Builder(models[architecture], monkeypatch)


class TestDrafts:
    def test_decoder(self, told: DraftClass, build: Builder) -> None:
        draft = build()
        held = [name for name in ("midlayer", "layers") if hasattr(draft.model, name)]
        assert held == [told.decoder]

    def test_several_layers(self, told: DraftClass, build: Builder) -> None:
        if told.several_layers:
            assert len(build(num_hidden_layers=2).model.layers) == 2
        else:
            with pytest.raises(ValueError, match="only supports 1 layer"):
                build(num_hidden_layers=2)

    def test_norm_flags(self, told: DraftClass, build: Builder) -> None:
        def made(**flags: bool) -> tuple[list[str], Any]:
            model = build(**flags).model
            return sorted(name for name, _ in model.named_modules()), getattr(
                model, "norm_output", None
            )

        flags = ("fc_norm", "norm_before_fc", "norm_before_residual", "norm_output", "use_aux_norm")
        felt = [flag for flag in flags if made(**{flag: True}) != made(**{flag: False})]
        assert felt == list(told.norm_flags)

    def test_number_of_aux_states(self, told: DraftClass, build: Builder) -> None:
        four, five = [1, 2, 3, 4], [1, 2, 3, 4, 5]
        nested = "eagle_config.eagle_aux_hidden_state_layer_ids"
        given: dict[str, tuple[int, dict[str, Any]]] = {
            nested: (4, {"eagle_config": {"eagle_aux_hidden_state_layer_ids": four}}),
            "eagle_aux_hidden_state_layer_ids": (5, {"eagle_aux_hidden_state_layer_ids": five}),
            "num_aux_hidden_states": (2, {"num_aux_hidden_states": 2}),
        }
        assert build().model.fc.in_features == HIDDEN * (told.num_aux_default or 0)
        felt = [
            place
            for place, (number, fields) in given.items()
            if build(**fields).model.fc.in_features == HIDDEN * number
        ]
        assert sorted(felt) == sorted(told.num_aux_from or ())
        everything = {name: value for _, fields in given.values() for name, value in fields.items()}
        first = given[told.num_aux_from[0]][0] if told.num_aux_from else told.num_aux_default or 0
        assert build(**everything).model.fc.in_features == HIDDEN * first

    def test_draft_vocab_size(self, told: DraftClass, build: Builder) -> None:
        assert build(draft_vocab_size=None).load_lm_head_from_target
        if told.draft_vocab_size_optional:
            assert build(draft_vocab_size=ABSENT).load_lm_head_from_target
        else:
            with pytest.raises(AttributeError, match="draft_vocab_size"):
                build(draft_vocab_size=ABSENT)

    def test_window(self, told: DraftClass, build: Builder) -> None:
        build.arguments.speculative_draft_window_size = 7
        size = getattr(build(), "get_attention_sliding_window_size", lambda: None)()
        assert (size == 7) == told.draft_window

    def test_names(self, told: DraftClass, architecture: str, models: dict[str, type]) -> None:
        decoder = {"layers": "layers.0", "midlayer": "midlayer"}[told.decoder or ""]
        own = [f"{decoder}.hidden_norm.weight", *(f"fc_norm.{part}.weight" for part in range(3))]
        parameters = [f"model.{name}" for name in own]
        loaded = _loads(models[architecture], parameters)
        assert loaded(own) == own
        assert loaded(parameters) == (parameters if told.takes_model_prefix else [])
        foreign = [
            *(f"{other}.hidden_norm.weight" for other in {"layers.0", "midlayer"} - {decoder}),
            *(f"aux_norm_{place}.weight" for place in ("low", "mid", "high")),
        ]
        assert loaded(foreign) == [name for name in foreign if _renamed(told, name) in own]

    def test_norm_before_residual(self, told: DraftClass, build: Builder) -> None:
        source = inspect.getsource(build.module)
        assert ("norm_before_residual" in source) == ("norm_before_residual" in told.norm_flags)


def _renamed(told: DraftClass, name: str) -> str:
    for rename in told.renames:
        if rename.anywhere:
            name = name.replace(rename.old, rename.new)
        elif name.startswith(rename.old):
            name = rename.new + name.removeprefix(rename.old)
    return name


def _loads(model: type, parameters: list[str]) -> Any:
    """Return what tells which of some names a class's own `load_weights` puts in a parameter."""
    import torch

    def loaded(names: list[str]) -> list[str]:
        taken: list[int] = []

        def take(parameter: Any, weight: torch.Tensor, *rest: Any) -> None:
            taken.append(int(weight))

        held = [(name, SimpleNamespace(weight_loader=take)) for name in parameters]
        draft = SimpleNamespace(named_parameters=lambda: held, post_load_weights=lambda: None)
        weights = [(name, torch.tensor(index)) for index, name in enumerate(names)]
        model.load_weights(draft, iter(weights))  # type: ignore[attr-defined]
        return [names[index] for index in taken]

    return loaded


@pytest.fixture(scope="module")
def actions() -> dict[str, argparse.Action]:
    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    return dict(parser._option_string_actions)


class TestLaunch:
    def test_flags(self, known: EngineFacts, actions: dict[str, argparse.Action]) -> None:
        real = sorted(flag for flag in actions if flag.startswith("--speculative-"))
        assert list(known.launch.speculative_flags) == real
        assert len(real) > 20

    def test_load_formats(self, known: EngineFacts, actions: dict[str, argparse.Action]) -> None:
        assert list(actions["--load-format"].choices or ()) == list(known.launch.load_formats or ())


class TestWorkers:
    def test_accepted_lists(self, known: EngineFacts) -> None:
        from sglang.srt.managers.utils import GenerationBatchResult
        from sglang.srt.speculative import eagle_info

        lists = dict(known.workers.accepted_lists)
        fields = {field.name for field in dataclasses.fields(GenerationBatchResult)}
        assert lists.pop("GenerationBatchResult") in fields
        v1 = getattr(eagle_info, "EagleVerifyOutput", None)
        if v1 is not None:
            assert lists.pop("EagleVerifyOutput") in {f.name for f in dataclasses.fields(v1)}
        assert lists == {}

    def test_plugins(self, known: EngineFacts) -> None:
        assert known.workers.plugins == bool(importlib.util.find_spec("sglang.srt.plugins"))
