"""Other speculation is out of the hooks' reach: what raises for EAGLE-3 is not in its way.

Either a hook sits on a class that only EAGLE-3 drafts have, or it returns at once, having looked at
nothing but the algorithm: the objects handed to it here tell of every other look.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import wrapt

from sglang_eagle3_patch.engine.patch import Risk
from sglang_eagle3_patch.hooks import (
    PATCHES,
    acceptance,
    aux_capture,
    cpu_lengths,
    draft_positions,
    draft_weights,
    eagle3_mode,
    fc_guard,
    kimi_capture,
    load_paths,
    wrapper_capture,
)
from tests.contract.test_eagle3_mode import CHAIN, resolved_algorithm
from tests.cpu_sglang.pair import forms
from tests.server import other_drafts

ALGORITHMS = ("NONE", "EAGLE", "STANDALONE", "NGRAM", "DFLASH", "DSPARK", "FROZEN_KV_MTP", "UNO")
# Modules of classes that nothing but an EAGLE-3 draft is built of.
OF_EAGLE3 = ("sglang.srt.models.llama_eagle3", "sglang.srt.models.kimi_k25_eagle3")
# The workers, with what they build themselves, and the draft models of other speculation.
OTHERS = (
    "sglang.srt.speculative.standalone_worker_v2.StandaloneWorkerV2",
    "sglang.srt.speculative.standalone_worker_v2.StandaloneDraftWorker",
    "sglang.srt.speculative.ngram_worker.NGRAMWorker",
    "sglang.srt.speculative.dflash_worker_v2.DFlashWorkerV2",
    "sglang.srt.speculative.multi_layer_eagle_worker_v2.MultiLayerEagleWorkerV2",
    "sglang.srt.speculative.multi_layer_eagle_worker_v2.MultiLayerEagleDraftWorker",
    "sglang.srt.speculative.frozen_kv_mtp_worker_v2.FrozenKVMTPWorkerV2",
    "sglang.srt.speculative.frozen_kv_mtp_worker_v2.FrozenKVMTPDraftWorker",
    "sglang.srt.models.llama.LlamaForCausalLM",
    "sglang.srt.models.llama.LlamaModel",
    "sglang.srt.models.llama_eagle.LlamaForCausalLMEagle",
    "sglang.srt.models.llama_eagle.LlamaModel",
    "sglang.srt.models.dflash.DFlashDraftModel",
    "sglang.srt.models.deepseek_nextn.DeepseekV3ForCausalLMNextN",
)


def find(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def hooked(owner: type) -> list[str]:
    """The attributes of a class, inherited ones included, that a wrapper of ours is around."""

    def layers(value: Any) -> Iterator[Any]:
        while isinstance(value, wrapt.FunctionWrapper):
            yield value._self_wrapper
            value = value.__wrapped__

    return [
        name
        for name in dir(owner)
        for wrapper in layers(inspect.getattr_static(owner, name))
        if wrapper.__module__.startswith("sglang_eagle3_patch.")
    ]


@pytest.mark.usefixtures("plugin")
@pytest.mark.parametrize("path", OTHERS)
def test_classes_of_other_speculation_carry_no_hook(path: str) -> None:
    assert hooked(find(path)) == []


@pytest.mark.usefixtures("plugin")
def test_a_hook_would_be_seen_on_a_class_and_below_it() -> None:
    eagle3 = find("sglang.srt.models.llama_eagle3.LlamaForCausalLMEagle3")
    assert "load_weights" in hooked(eagle3)
    assert hooked(type("Child", (eagle3,), {})) == hooked(eagle3)


class Watched:
    """Tells, in `looks`, of every attribute that is read or set and was not given to it."""

    def __init__(self, looks: list[str], **given: Any) -> None:
        object.__setattr__(self, "_looks", looks)
        object.__setattr__(self, "_given", given)

    def __getattribute__(self, name: str) -> Any:
        given = object.__getattribute__(self, "_given")
        if name not in given:
            object.__getattribute__(self, "_looks").append(name)
            raise AttributeError(name)
        return given[name]

    def __setattr__(self, name: str, value: Any) -> None:
        object.__getattribute__(self, "_looks").append(f"{name} =")


Call = Callable[[Any, list[str]], tuple[Any, tuple[Any, ...]]]


def of_a_runner(is_draft: bool) -> Call:
    def call(algorithm: Any, looks: list[str]) -> tuple[Any, tuple[Any, ...]]:
        runner = Watched(
            looks,
            is_draft_worker=is_draft,
            spec_algorithm=algorithm,
            # What `ModelRunner` sets for every algorithm but EAGLE3, where it has it.
            eagle_use_aux_hidden_state=False,
            startup_weight_load=None,
            model=Watched(looks),
        )
        return runner, ()

    return call


def of_a_worker(algorithm: Any, looks: list[str]) -> tuple[Any, tuple[Any, ...]]:
    runner = SimpleNamespace(model=Watched(looks))
    worker = Watched(
        looks, speculative_algorithm=algorithm, draft_runner=runner, draft_model_runner=runner
    )
    return worker, ()


def of_decode_results(algorithm: Any, looks: list[str]) -> tuple[Any, tuple[Any, ...]]:
    return Watched(looks), (Watched(looks, spec_algorithm=algorithm), Watched(looks))


def of_attention(algorithm: Any, looks: list[str]) -> tuple[Any, tuple[Any, ...]]:
    batch = Watched(looks, spec_algorithm=algorithm)
    return Watched(looks), (None, None, None, None, batch)


def of_arguments(algorithm: Any, looks: list[str]) -> tuple[Any, tuple[Any, ...]]:
    # EAGLE is the one that a draft is looked at for; `test_eagle3_mode` has it.
    name = "NGRAM" if algorithm.name == "EAGLE" else algorithm.name
    arguments = Watched(
        looks,
        _resolution_finished=False,
        speculative_algorithm=name,
        speculative_draft_model_path="draft",
    )
    return arguments, ()


JUDGED: dict[Any, list[Call]] = {
    acceptance.around_decode_result: [of_decode_results],
    cpu_lengths.forward_extend: [of_attention],
    cpu_lengths.forward_decode: [of_attention],
    draft_positions.draft_forward: [of_a_worker],
    aux_capture.after_capture_is_set: [of_a_runner(True), of_a_runner(False)],
    aux_capture.before_graphs: [of_a_runner(True), of_a_runner(False)],
    draft_weights.remember_first_load: [of_a_runner(True), of_a_runner(False)],
    wrapper_capture.after_load: [of_a_runner(True), of_a_runner(False)],
    fc_guard.before_sharing: [of_a_worker],
    fc_guard.after_worker_init: [of_a_worker],
    eagle3_mode.before_resolution: [of_arguments],
    load_paths.before_resolution: [of_arguments],
}
CONFIG_READERS = [
    hook.wrapper
    for patch in PATCHES
    for hook in patch.hooks
    if hook.attribute == "PretrainedConfig.get_config_dict"
]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize(
    ("wrapper", "call"),
    [
        pytest.param(wrapper, call, id=f"{wrapper.__name__}-{number}")
        for wrapper, calls in JUDGED.items()
        for number, call in enumerate(calls)
    ],
)
@pytest.mark.usefixtures("rank")
def test_a_shared_hook_looks_at_the_algorithm_alone(
    wrapper: Any, call: Call, algorithm: str
) -> None:
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    looks: list[str] = []
    instance, args = call(SpeculativeAlgorithm[algorithm], looks)
    given: list[Any] = []

    def stock(*args: Any, **kwargs: Any) -> str:
        given.append((args, kwargs))
        return "stock's"

    assert wrapper(stock, instance, args, {}) == "stock's"
    assert given == [(args, {})]
    assert looks == []


@pytest.mark.usefixtures("rank")
def test_a_smaller_standalone_draft_may_replay_its_graph() -> None:
    """Up to 0.5.11 the target's states come along in STANDALONE too, as wide as the target, beside
    a buffer as wide as the draft; SGLang skips the copy, and the draft reads neither. The runner
    is faked: real ones capture CUDA graphs."""
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    standalone = SpeculativeAlgorithm.STANDALONE
    runner = SimpleNamespace(
        buffers=SimpleNamespace(hidden_states=torch.zeros(4, 64)),
        eagle_worker=SimpleNamespace(speculative_algorithm=standalone),
        model_runner=SimpleNamespace(spec_algorithm=standalone),
    )
    states = SimpleNamespace(hidden_states=torch.zeros(4, 128))
    batch = SimpleNamespace(spec_info=states)
    assert fc_guard.replay_draft_extend(lambda *_: "stock's", runner, (batch,), {}) == "stock's"


@pytest.mark.usefixtures("plugin")
def test_arguments_of_other_speculation_are_resolved_as_ever(tmp_path: Path) -> None:
    draft = forms.write(tmp_path / "standalone", *other_drafts.standalone())
    assert resolved_algorithm(draft, "STANDALONE", **CHAIN) == "STANDALONE"
    draft = forms.write(tmp_path / "dflash", *other_drafts.dflash())
    # This release serves DFLASH on no CPU: a server of an older one is in tests/server.
    with pytest.raises(ValueError, match="DFLASH speculative decoding is not supported by"):
        resolved_algorithm(draft, "DFLASH", **CHAIN)


@pytest.mark.parametrize("reader", CONFIG_READERS)
@pytest.mark.parametrize("draft", [other_drafts.standalone, other_drafts.dflash])
def test_configs_of_other_drafts_pass_as_they_are(reader: Any, draft: Any) -> None:
    result = (draft()[1], {})
    before = repr(result)
    assert reader(lambda *args: result, None, ("draft",), {}) is result
    assert repr(result) == before


@pytest.mark.parametrize("is_draft", [True, False])
@pytest.mark.parametrize("draft", [other_drafts.standalone, other_drafts.dflash])
def test_overrides_reach_other_models_as_they_are(
    draft: Any, is_draft: bool, tmp_path: Path
) -> None:
    folder = str(forms.write(tmp_path / "draft", *draft()))
    overrides = '{"rope_theta": 7.0}'
    given: list[Any] = []

    def stock(
        model_path: str, model_override_args: str = "{}", is_draft_model: bool = False
    ) -> None:
        given.append((model_path, model_override_args, is_draft_model))

    load_paths.draft_config_init(stock, None, (folder, overrides), {"is_draft_model": is_draft})
    assert given == [(folder, overrides, is_draft)]


def test_every_hook_that_can_do_harm_is_judged_here() -> None:
    judged = {
        *JUDGED,
        *CONFIG_READERS,
        load_paths.draft_config_init,  # above
        fc_guard.replay_draft_extend,
        kimi_capture.after_init,  # lends what a class lacks, and overwrites nothing
    }
    left = [
        hook.path
        for patch in PATCHES
        for hook in patch.hooks
        if patch.risk is not Risk.OBSERVABILITY
        and hook.module not in OF_EAGLE3
        and hook.wrapper not in judged
    ]
    assert left == []
