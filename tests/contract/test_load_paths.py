"""Draft weights and configs that do not come the plain way: formats, revisions, inherited flags."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sglang_eagle3_patch.checkpoint.locate import local_folder
from sglang_eagle3_patch.errors import DraftError
from sglang_eagle3_patch.hooks import aux_capture, draft_weights, load_paths
from tests.contract.test_eagle3_mode import CHAIN
from tests.contract.test_weight_updates import draft_runner
from tests.cpu_sglang.pair import forms

# What becomes of a draft under each load format that the release has. The first hand every tensor
# to `load_weights` (presharded on its first start only); the next fill the model past it (remote
# from key-value stores only); SGLang itself refuses a draft under the others. A format that a
# release adds fails here until it is looked at.
ACCOUNTED = """
auto pt safetensors npcache mistral fastsafetensors instanttensor local_cached rdma jax presharded
bitsandbytes runai_streamer
"""
REFUSED = ["sharded_state", "remote", "remote_instance", "ipc_cache", "private"]
SGLANGS_ERROR = ["layered", "gguf", "flash_rl", "expert_pack"]


def load_format(name: str) -> Any:
    from sglang.srt.configs.load_config import LoadFormat

    return LoadFormat(name)


@pytest.mark.usefixtures("rank")
def test_every_load_format_has_been_looked_at() -> None:
    from sglang.srt.configs.load_config import LoadFormat

    assert {fmt.value for fmt in LoadFormat} == {
        *ACCOUNTED.split(),
        *REFUSED,
        *SGLANGS_ERROR,
        "dummy",
    }


def loaded(draft: Path, name: str, quantization: str | None = None) -> Any:
    """The draft as SGLang's own loader for the format makes it, behind `ModelRunner.load_model`'s
    hook: a real runner loads on a worker's start only."""
    from sglang.srt.configs.device_config import DeviceConfig
    from sglang.srt.configs.load_config import LoadConfig
    from sglang.srt.configs.model_config import ModelConfig
    from sglang.srt.model_loader.loader import get_model_loader
    from sglang.srt.runtime_context import get_context

    config = ModelConfig(
        str(draft),
        dtype="bfloat16" if quantization else get_context().server_args.dtype,
        quantization=quantization,
        is_draft_model=True,
    )
    runner = draft_runner(None)
    runner.load_config = LoadConfig(load_format=load_format(name))
    loader = runner.loader = get_model_loader(runner.load_config, config)

    def load() -> None:
        runner.model = loader.load_model(
            model_config=config, device_config=DeviceConfig("cpu", gpu_id=-1)
        )

    draft_weights.remember_first_load(load, runner, (), {})
    return runner.model


def write_pickled(folder: Path, tensors: forms.Tensors, file: str) -> Path:
    folder.mkdir()
    torch.save(tensors, folder / file)
    (folder / "config.json").write_text(json.dumps(forms.sglang_config()))
    return folder


@pytest.mark.usefixtures("plugin")
class TestFormats:
    @pytest.mark.parametrize("name", ["auto", "safetensors"])
    def test_safetensors(self, native_draft: Path, name: str) -> None:
        draft = loaded(native_draft, name)
        assert torch.equal(draft.model.fc.weight, forms.drafter_weights()["fc.weight"])

    # To SGLang "pt" is files of that name. Its cache of numpy arrays takes no bfloat16.
    @pytest.mark.parametrize(
        ("name", "file"),
        [("auto", "pytorch_model.bin"), ("pt", "model.pt"), ("npcache", "pytorch_model.bin")],
    )
    def test_pickled(self, tmp_path: Path, name: str, file: str) -> None:
        tensors = {name: value.float() for name, value in forms.drafter_weights().items()}
        tensors["d2t"] = tensors["d2t"].long()
        draft = loaded(write_pickled(tmp_path / "draft", tensors, file), name)
        assert torch.equal(draft.model.fc.weight, tensors["fc.weight"])

    def test_pickled_is_accounted_for(self, tmp_path: Path) -> None:
        tensors = forms.drafter_weights()
        del tensors["midlayer.self_attn.k_proj.weight"]
        draft = write_pickled(tmp_path / "draft", tensors, "model.pt")
        with pytest.raises(DraftError, match=r"1 missing: layers.0.self_attn.k_proj.weight"):
            loaded(draft, "pt")

    def test_dummy_weights_are_asked_for_as_such(self, native_draft: Path) -> None:
        draft = loaded(native_draft, "dummy")
        # What comes now is an update, so that a part of it is enough.
        draft.load_weights([("fc.weight", torch.full((128, 384), 0.5))])
        assert bool((draft.model.fc.weight == 0.5).all())

    def test_a_sharded_state_is_refused(self, native_draft: Path, tmp_path: Path) -> None:
        from sglang.srt.model_loader.loader import ShardedStateLoader

        folder = tmp_path / "sharded"
        folder.mkdir()
        (folder / "config.json").write_text((native_draft / "config.json").read_text())
        ShardedStateLoader.save_model(loaded(native_draft, "auto"), str(folder))
        with pytest.raises(
            DraftError,
            match=r"sharded_state \(ShardedStateLoader\) fills LlamaForCausalLMEagle3 without .* "
            "--speculative-draft-load-format auto",
        ):
            loaded(folder, "sharded_state")

    def test_a_presharded_dump_is_refused_once_it_is_there(
        self, native_draft: Path, tmp_path: Path
    ) -> None:
        draft = forms.write_form("native", tmp_path / "draft")
        # The first start loads the checkpoint itself, and leaves the dump that later ones take.
        assert torch.equal(
            loaded(draft, "presharded").model.fc.weight, forms.drafter_weights()["fc.weight"]
        )
        with pytest.raises(DraftError, match=r"\(PreshardedModelLoader\) fills"):
            loaded(draft, "presharded")

    @pytest.mark.parametrize("name", REFUSED)
    def test_what_bypasses_load_weights_is_refused_by_name(self, name: str) -> None:
        # The loaders of most want a peer, a daemon or a store to load from.
        runner = draft_runner(torch.nn.Module())
        runner.load_config.load_format = load_format(name)
        with pytest.raises(DraftError, match=rf"load format {name} \(object\) fills Module"):
            draft_weights.remember_first_load(lambda: None, runner, (), {})

    def test_the_weight_cache_has_its_own_remedy(self) -> None:
        with pytest.raises(DraftError, match="--weight-cache-mode off"):
            draft_weights.refuse_unaccounted("Draft", "ipc_cache", "IpcModelLoader")

    def test_sglang_refuses_layers_one_by_one(self, native_draft: Path) -> None:
        with pytest.raises(ValueError, match="`load_weights_to_module` method"):
            loaded(native_draft, "layered")

    def test_sglang_refuses_a_folder_as_gguf(self, native_draft: Path) -> None:
        with pytest.raises(ValueError, match="is not a file"):
            loaded(native_draft, "gguf")

    def test_sglang_refuses_flash_rl_for_drafts(self, native_draft: Path) -> None:
        # It builds the draft in fp8, which asks for a device's capability first on some machines.
        with pytest.raises((ValueError, TypeError, AssertionError, RuntimeError)):
            loaded(native_draft, "flash_rl")


class TestRevisions:
    """A hub draft with two revisions in the cache; nothing is downloaded."""

    @pytest.fixture
    def hub_draft(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
        import huggingface_hub.constants

        folder = tmp_path / "hub" / "models--acme--draft"
        # The second revision has a head of its own, and its config does not state a vocabulary.
        config = forms.sglang_config()
        del config["draft_vocab_size"]
        tensors = forms.drafter_weights()
        headless = {k: v for k, v in tensors.items() if k not in ("lm_head.weight", "d2t", "t2d")}
        for name, commit, kept in [("main", "a" * 40, headless), ("two", "b" * 40, tensors)]:
            forms.write(folder / "snapshots" / commit, kept, config)
            (folder / "refs").mkdir(exist_ok=True)
            (folder / "refs" / name).write_text(commit)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
        return "acme/draft"

    @pytest.mark.parametrize(("revision", "vocab"), [(None, None), ("main", None), ("two", 320)])
    @pytest.mark.usefixtures("plugin")
    def test_the_config_is_decided_by_its_own_tensors(
        self, hub_draft: str, revision: str | None, vocab: int | None
    ) -> None:
        from sglang.srt.utils.hf_transformers_utils import get_config

        config = get_config(hub_draft, trust_remote_code=False, revision=revision)
        assert config.draft_vocab_size == vocab

    def test_captured_layers_are_checked_against_the_revision(
        self, hub_draft: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        read: list[bool] = []
        monkeypatch.setattr(
            aux_capture, "check_capture", lambda _target, spec, _draft: read.append(spec.has_head)
        )
        for revision in (None, "two"):
            arguments = SimpleNamespace(
                speculative_draft_model_path=hub_draft, speculative_draft_model_revision=revision
            )
            aux_capture._check_runner(SimpleNamespace(server_args=arguments, model=None))
        assert read == [False, True]

    def test_a_revision_that_is_not_here_is_not_another_one(self, hub_draft: str) -> None:
        assert local_folder(hub_draft, "three") is None


def launch(draft: Path, **more: Any) -> Any:
    """The arguments of a launch."""
    from sglang.srt.server_args import ServerArgs

    return ServerArgs(
        model_path=str(forms.TARGET),
        device="cpu",
        trust_remote_code=True,
        speculative_draft_model_path=str(draft),
        **{"speculative_algorithm": "EAGLE3", **CHAIN, **more},
    )


def resolved(draft: Path, **more: Any) -> Any:
    """The arguments of a launch as SGLang resolves them."""
    from sglang.srt.arg_groups.overrides import resolving_view

    arguments = launch(draft, **more)
    arguments.resolve_once()
    return resolving_view(arguments)


QUANTISED_CONFIG = {"quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic"}}


class TestInheritedQuantisation:
    @pytest.mark.usefixtures("rank")
    def test_stock_builds_the_draft_as_the_target(self, native_draft: Path) -> None:
        view = resolved(native_draft, quantization="fp8")
        assert view.speculative_draft_model_quantization == "fp8"

    @pytest.mark.usefixtures("plugin")
    def test_built_as_the_target_it_is_rounded(self, native_draft: Path) -> None:
        # Of the methods that quantise while loading, the one that this CPU can build.
        linear = loaded(native_draft, "auto", "w8a8_fp8").model.layers[0].self_attn.o_proj
        assert linear.weight.dtype is torch.float8_e4m3fn
        served = linear.weight.float().t() * linear.weight_scale
        trained = forms.drafter_weights()["midlayer.self_attn.o_proj.weight"].float()
        assert 0.01 < float((served - trained).norm() / trained.norm()) < 0.1

    @pytest.mark.parametrize("algorithm", ["EAGLE3", "EAGLE"])
    @pytest.mark.parametrize("form", ["native", "speculators"])
    @pytest.mark.usefixtures("plugin")
    def test_a_plain_draft_stays_plain(
        self, tmp_path: Path, form: str, algorithm: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        draft = forms.write_form(form, tmp_path / "draft")
        view = resolved(draft, quantization="fp8", speculative_algorithm=algorithm)
        assert view.speculative_draft_model_quantization is None
        assert view.quantization == "fp8"
        assert caplog.text.count("--speculative-draft-model-quantization unquant") == 1

    @pytest.mark.usefixtures("plugin")
    def test_the_drafts_own_flag_is_obeyed(self, native_draft: Path) -> None:
        view = resolved(
            native_draft, quantization="fp8", speculative_draft_model_quantization="fp8"
        )
        assert view.speculative_draft_model_quantization == "fp8"

    @pytest.mark.parametrize("how", ["config", "file", "dtype"])
    @pytest.mark.usefixtures("plugin")
    def test_a_quantised_draft_is_left_alone(
        self, tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        tensors, config = forms.native()
        if how == "config":
            config |= QUANTISED_CONFIG
        if how == "dtype":
            name = "midlayer.mlp.up_proj.weight"
            tensors[name] = tensors[name].to(torch.float8_e4m3fn)
        draft = forms.write(tmp_path / "draft", tensors, config)
        if how == "file":
            (draft / "hf_quant_config.json").write_text("{}")
        given = SimpleNamespace(
            speculative_algorithm="EAGLE3",
            speculative_draft_model_path=str(draft),
            speculative_draft_model_revision=None,
            speculative_draft_model_quantization=None,
            quantization="fp8",
            json_model_override_args="{}",
        )
        load_paths.before_resolution(lambda: None, given, (), {})
        assert given.speculative_draft_model_quantization is None
        assert caplog.text == ""


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
COMPUTATION = {"rope_scaling": YARN, "rms_norm_eps": 1e-2, "index_topk": 8, "head_dim": 32}


def computed(config: Any) -> tuple[float, str | None]:
    """What the overrides would change, as a config has it."""
    return config.rms_norm_eps, (config.rope_scaling or {}).get("rope_type")


class TestOverrides:
    """`--json-model-override-args`, written over the target's config and the draft's alike."""

    @pytest.mark.usefixtures("rank")
    def test_stock_writes_them_over_the_draft(self, native_draft: Path) -> None:
        from sglang.srt.configs.model_config import ModelConfig

        overrides = json.dumps({"hidden_size": 64})
        config = ModelConfig(str(native_draft), model_override_args=overrides, is_draft_model=True)
        assert config.hf_config.hidden_size == 64

    @pytest.mark.parametrize(
        ("key", "value"),
        [
            ("hidden_size", 64),
            ("num_hidden_layers", 2),
            ("vocab_size", 163840),
            ("architectures", ["DeepseekV3ForCausalLM"]),
            ("tie_word_embeddings", True),
        ],
    )
    @pytest.mark.usefixtures("plugin")
    def test_another_structure_is_refused(
        self, native_draft: Path, key: str, value: object
    ) -> None:
        with pytest.raises(DraftError) as refusal:
            resolved(native_draft, json_model_override_args=json.dumps({key: value}))
        stated = forms.sglang_config()[key]
        assert f"{key} {json.dumps(value)} over {json.dumps(stated)}" in str(refusal.value)
        assert "SGLANG_EAGLE3_PATCH=-load-paths" in str(refusal.value)

    @pytest.mark.usefixtures("plugin")
    def test_another_computation_is_kept_from_the_draft_and_told_once(
        self, native_draft: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        from sglang.srt.configs.model_config import ModelConfig

        arguments = launch(native_draft, json_model_override_args=json.dumps(COMPUTATION))
        arguments.resolve_once()
        assert caplog.text.count("change what it computes: rms_norm_eps, rope_scaling;") == 1
        own = ModelConfig(str(native_draft), is_draft_model=True).hf_config
        served = ModelConfig.from_server_args(
            arguments, model_path=str(native_draft), is_draft_model=True
        ).hf_config
        assert computed(served) == computed(own)
        assert served.index_topk == 8
        target = ModelConfig.from_server_args(arguments).hf_config
        assert computed(target) == (1e-2, "yarn")

    @pytest.mark.usefixtures("rank")
    def test_stock_lets_the_draft_compute_by_them(self, native_draft: Path) -> None:
        from sglang.srt.configs.model_config import ModelConfig

        arguments = launch(native_draft, json_model_override_args=json.dumps(COMPUTATION))
        arguments.resolve_once()
        served = ModelConfig.from_server_args(
            arguments, model_path=str(native_draft), is_draft_model=True
        ).hf_config
        assert computed(served) == (1e-2, "yarn")

    @pytest.mark.usefixtures("plugin")
    def test_a_draft_of_another_kind_is_left_alone(self, tmp_path: Path) -> None:
        from sglang.srt.configs.model_config import ModelConfig

        tensors, config = forms.native()
        config |= {"architectures": ["LlamaForCausalLM"]}
        draft = forms.write(tmp_path / "draft", tensors, config)
        served = ModelConfig(
            str(draft), model_override_args=json.dumps(COMPUTATION), is_draft_model=True
        ).hf_config
        assert served.rms_norm_eps == 1e-2

    @pytest.mark.usefixtures("plugin")
    def test_what_the_draft_does_not_read_is_no_matter(
        self, native_draft: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        overrides = {"text_config": {"rope_theta": 5e6}, "index_topk": 8, "head_dim": 32}
        with caplog.at_level(logging.WARNING):
            resolved(native_draft, json_model_override_args=json.dumps(overrides))
        assert "load-paths" not in caplog.text
