"""How each rule's matter is looked at, on the real SGLang of this process.

Arguments are parsed and resolved by SGLang, configs read by it, layers set by its `ModelRunner` and
captured by a real target, whose layers alone are mocked: attention wants a server's backend. What
is mocked of a runner, `newest` and `release_0_5_9` tell.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from sglang_eagle3_patch.settings import PREFIX
from tests.contract.beyond import newest, release_0_5_9
from tests.contract.beyond.world import World, under_the_hooks
from tests.contract.releases.doctor_observed import DEGRADED, SERVES
from tests.unit.checkpoint import drafts
from tests.unit.doctor.cases import LAYERS, OLDEST


def own(world: World) -> Any:
    """Return the module that tells what is its release's own."""
    return release_0_5_9 if world.case.engine.release == OLDEST else newest


def captured_states(
    target: Any, world: World, monkeypatch: pytest.MonkeyPatch
) -> list[torch.Tensor]:
    """Run the target's own forward; return the states `[1, H]` it captured, full of the numbers
    of the layers whose inputs they are."""
    target.model.layers = torch.nn.ModuleList(own(world).Recorder() for _ in range(LAYERS))
    result = own(world).forward(target, torch.zeros(1, drafts.HIDDEN), monkeypatch)
    return list(result[1]) if isinstance(result, tuple) else []


def name_layers(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Do what the launcher's own flag does."""
    if world.case.launch.aux_layers:
        named = ":".join(map(str, world.case.launch.aux_layers))
        monkeypatch.setenv(f"{PREFIX}_OPTIONS", f"aux_layers={named}")


def capture(world: World, monkeypatch: pytest.MonkeyPatch) -> str:
    """Capture, and give the draft's `fc` what was captured."""
    name_layers(world, monkeypatch)
    target = world.built_target()
    own(world).set_capture(target, world, monkeypatch)
    states = captured_states(target, world, monkeypatch)
    world.built_draft(world.draft_config().hf_config).model.fc(torch.cat(states, dim=-1))
    inputs = tuple(int(state[0, 0]) for state in states)
    return SERVES if inputs == world.trained else DEGRADED


def graphs(world: World, monkeypatch: pytest.MonkeyPatch) -> str:
    """Start, and look what the target is set to whenever graphs are captured, and afterwards."""
    target = world.built_target()
    captured = release_0_5_9.start(target, world, monkeypatch)
    captured.append(tuple(target.model.layers_to_capture))
    return SERVES if set(captured) == {world.trained} else DEGRADED


def can_capture(world: World, monkeypatch: pytest.MonkeyPatch) -> str:
    """Capture with the target's class, or the language model that it holds."""
    target = world.built_target()
    own(world).set_capture(target, world, monkeypatch)
    inputs = tuple(getattr(target, "language_model", target).model.layers_to_capture)
    return SERVES if inputs == world.trained else DEGRADED


def can_share(world: World, _monkeypatch: pytest.MonkeyPatch) -> str:
    """Ask the target's class for its embedding and head as a draft worker does."""
    target = world.bare_target()
    target.model = SimpleNamespace(embed_tokens=torch.nn.Embedding(1, 1))
    target.lm_head = torch.nn.Linear(1, 1)
    own(world).embedding_and_head(target)
    return SERVES


def longest_context(world: World, _monkeypatch: pytest.MonkeyPatch) -> str:
    """Read the draft as its worker does: with the target's context."""
    served = world.target_config().context_len
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
    from sglang.srt.runtime_context import get_spec

    size = world.told("speculative_draft_window_size")
    with get_spec().override(speculative_draft_window_size=size):
        built = world.built_draft(world.draft_config().hf_config)
    (layer,) = built.model.layers
    return SERVES if layer.self_attn.attn.sliding_window_size == -1 else DEGRADED


def rotation(world: World, _monkeypatch: pytest.MonkeyPatch) -> str:
    """Rotate by the positions that a target without vision has, and by plain rope."""
    from sglang.srt.layers.rotary_embedding import get_rope

    config = world.draft_config().hf_config
    positions, width = torch.arange(8), config.num_attention_heads * drafts.HEAD_DIM
    plain = get_rope(
        drafts.HEAD_DIM,
        rotary_dim=drafts.HEAD_DIM,
        max_position=config.max_position_embeddings,
        base=int(world.case.draft.rope.theta or 10000),
    )
    rotations = (decoder_layer(world.built_draft(config)).self_attn.rotary_emb, plain)
    built, wanted = (
        rotate(positions, *torch.randn(2, 8, width, generator=torch.Generator().manual_seed(0)))
        for rotate in rotations
    )
    return SERVES if all(map(torch.equal, built, wanted)) else DEGRADED


def lookup(world: World, _monkeypatch: pytest.MonkeyPatch) -> str:
    """Look up every token of the target in the embedding that it lends the draft."""
    built = world.built_draft(world.draft_config().hf_config)
    built.load_weights(list(load_file(world.draft / "model.safetensors").items()))
    rows = world.target_config().hf_config.vocab_size
    embedding = torch.nn.Parameter(torch.randn(rows, drafts.HIDDEN), requires_grad=False)
    built.set_embed(embedding)
    found = built.model.embed_tokens(torch.arange(rows))
    return SERVES if torch.equal(found, embedding) else DEGRADED


def load_format(world: World, monkeypatch: pytest.MonkeyPatch) -> str:
    """Load the draft with the loader of its format, as a draft worker's runner does."""
    from sglang.srt.configs.device_config import DeviceConfig
    from sglang.srt.configs.load_config import LoadConfig
    from sglang.srt.model_executor.model_runner import ModelRunner
    from sglang.srt.model_loader.loader import ShardedStateLoader, get_model_loader
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    file, config = world.draft / "model.safetensors", world.draft_config()
    tensors = load_file(file)
    asked = world.told("speculative_draft_load_format") or world.told("load_format")
    if asked == "sharded_state":
        whole = world.built_draft(config.hf_config)
        whole.load_weights(list(tensors.items()))
        file.unlink()
        ShardedStateLoader.save_model(whole, str(world.draft))

    def load(runner: Any) -> None:
        runner.load_config = LoadConfig(load_format=asked)
        runner.loader = get_model_loader(runner.load_config, config)
        runner.model = runner.loader.load_model(
            model_config=config, device_config=DeviceConfig("cpu", gpu_id=-1)
        )

    under_the_hooks(load, monkeypatch)
    runner = object.__new__(ModelRunner)
    runner.is_draft_worker, runner.spec_algorithm = True, SpeculativeAlgorithm.EAGLE3
    runner.load_model()
    filled = runner.model.model.fc.weight.float()
    return SERVES if torch.equal(filled, tensors["fc.weight"].float()) else DEGRADED


def parsing(world: World, _monkeypatch: pytest.MonkeyPatch) -> str:
    world.parsed()
    return SERVES


def checking(world: World, _monkeypatch: pytest.MonkeyPatch) -> str:
    world.resolved().check_server_args()
    return SERVES


def algorithm(world: World, _monkeypatch: pytest.MonkeyPatch) -> str:
    """Look what is run: by all but EAGLE3 a runner has its target capture nothing."""
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    runs = SpeculativeAlgorithm.from_string(world.told("speculative_algorithm"))
    return SERVES if runs.is_eagle3() else DEGRADED


def speculating(world: World, _monkeypatch: pytest.MonkeyPatch) -> str:
    algorithm = world.told("speculative_algorithm")
    return SERVES if algorithm == "EAGLE3" else f"runs {algorithm}"


def quantisation(world: World, _monkeypatch: pytest.MonkeyPatch) -> str:
    method = world.draft_config().quantization
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
    layer = decoder_layer(draft)
    held = {name: value.nan_to_num(-1.0) for name, value in draft.named_parameters()}
    held["rope"] = layer.self_attn.rotary_emb.cos_sin_cache
    epsilon = layer.input_layernorm.variance_epsilon
    return {**{name: value.tolist() for name, value in held.items()}, "epsilon": epsilon}


def decoder_layer(draft: Any) -> Any:
    return draft.model.midlayer if hasattr(draft.model, "midlayer") else draft.model.layers[0]
