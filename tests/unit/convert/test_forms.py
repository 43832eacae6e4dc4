"""Every producer's draft keeps its bytes, under names and a config that mean the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import safetensors
from safetensors.torch import load_file

from sglang_eagle3_patch.checkpoint.conversion.convert import PROVENANCE
from sglang_eagle3_patch.checkpoint.conversion.options import NotConvertible
from sglang_eagle3_patch.checkpoint.header import DTYPE_BITS, read_file_header
from sglang_eagle3_patch.checkpoint.layouts import canonical_name
from sglang_eagle3_patch.checkpoint.spec import DraftSpec
from tests.cpu_sglang.pair import forms
from tests.unit.checkpoint import drafts
from tests.unit.convert import written

CHECKPOINTS = sorted((Path(__file__).parents[2] / "checkpoints").iterdir())
SAID = {"norm_before_residual": False, "norm_output": False, "double_input_norm": False}
# What each of `drafts.WRITTEN` is refused for, though its flags are told; the rest converts.
REFUSED = {
    "ModelOpt Megatron, two layers": "there is no d2t",
    "TorchSpec MHA": "there is no d2t",
}


def canonical(values: dict[str, bytes]) -> dict[str, bytes]:
    """Return tensors by canonical names, later layers' norms called as SGLang calls them."""
    found = {}
    for name, value in values.items():
        name = canonical_name(name)
        if not name.startswith("layers.0."):
            name = name.replace(".input_layernorm.", ".hidden_norm.")
        found[name] = value
    return found


def converted(source: Path, out: Path, **changes: object) -> dict[str, bytes]:
    """Convert, compare the bytes of every tensor with the source's, and return them."""
    written.convert(source, out, written.options(**{"flags": SAID, **changes}))
    after = written.read(out)
    assert canonical(after) == canonical(written.read(source))
    return after


@pytest.mark.parametrize("kind", drafts.WRITTEN)
def test_every_producers_draft(kind: str, tmp_path: Path) -> None:
    _, config, headers = drafts.WRITTEN[kind]
    source = written.write(tmp_path / "in", config, headers)
    wanted = {"needs_plugin": True}
    if kind in REFUSED:
        with pytest.raises(NotConvertible, match=REFUSED[kind]):
            converted(source, tmp_path / "out", **wanted)
        return
    before = written.snapshot(source)
    # A converter copies ids as they were typed: only the user can say what they name.
    if "converter" in kind:
        wanted["aux_inputs"] = (2, 4, 5)
    names = converted(source, tmp_path / "out", **wanted)
    assert written.snapshot(source) == before
    spec, old = DraftSpec.read(tmp_path / "out"), DraftSpec.read(source)
    assert spec.is_eagle3
    assert spec.sizes == old.sizes
    assert spec.rope.kind == old.rope.kind
    assert spec.config["num_hidden_layers"] == old.num_layers
    assert all(n.startswith("layers.") or not n.startswith("midlayer.") for n in names)
    assert not spec.unknown_tensors
    assert not spec.unknown_keys
    assert None not in [v for k, v in spec.config.items() if k != "draft_vocab_size"]


@pytest.mark.parametrize("folder", CHECKPOINTS, ids=lambda folder: folder.name)
def test_the_trainers_own_files(folder: Path, tmp_path: Path) -> None:
    flags = DraftSpec.read(folder).flags
    wanted = {"flags": {}, "needs_plugin": bool(flags.norm_before_residual)}
    converted(folder, tmp_path / "out", **wanted)
    after = DraftSpec.read(tmp_path / "out")
    assert after.flags == flags
    assert after.rope == DraftSpec.read(folder).rope
    old, new = (
        load_file(folder / "model.safetensors"),
        load_file(tmp_path / "out" / "model.safetensors"),
    )
    assert len(old) == len(new)


@pytest.mark.parametrize("form", forms.FORMS)
def test_the_forms_of_the_trained_pair(form: str, tmp_path: Path) -> None:
    source = forms.write_form(form, tmp_path / "in")
    target = written.Target("KimiK25ForConditionalGeneration", 8, 128, None)
    facts = written.options().facts
    target = written.Target(target.architecture, 8, 128, facts.targets[target.architecture])
    flags = {} if DraftSpec.read(source).flags.norm_before_residual else SAID
    names = converted(source, tmp_path / "out", target=target, flags=flags, needs_plugin=True)
    assert "layers.0.self_attn.q_proj.weight" in names


def test_a_latent_attention_draft(tmp_path: Path) -> None:
    source = forms.write(tmp_path / "in", *forms.mla())
    target = written.Target("LlamaForCausalLM", 8, 128, written.target().rule)
    converted(source, tmp_path / "out", target=target)
    config = written.config_of(tmp_path / "out")
    assert config["architectures"] == ["Eagle3DeepseekV2ForCausalLM"]
    assert config["rope_parameters"]["rope_type"] == config["rope_scaling"]["rope_type"] == "yarn"
    assert "head_dim" not in config


@pytest.mark.parametrize(
    ("release", "to", "plugin", "begin"),
    [
        ("0.5.9", "sglang", False, "midlayer."),
        ("0.5.11", "sglang", False, "midlayer."),
        ("0.5.12", "sglang", False, "layers.0."),
        ("0.5.23", "sglang", False, "layers.0."),
        ("0.5.9", "canonical", False, "layers.0."),
        # Where the plugin has to rename anyway, names that can't be taken for SpecForge's.
        ("0.5.9", "sglang", True, "layers.0."),
    ],
)
@pytest.mark.parametrize("prefix", ["midlayer.", "layers.0."])
def test_names_are_those_of_the_release(
    release: str, to: str, plugin: bool, begin: str, prefix: str, tmp_path: Path
) -> None:
    config = drafts.flat(drafts.SGLANG, norm_before_residual=plugin)
    source = written.write(tmp_path / "in", config, drafts.top() | drafts.layer(prefix))
    wanted = written.options(release, to=to, needs_plugin=plugin)
    written.convert(source, tmp_path / "out", wanted)
    layer = [name for name in written.read(tmp_path / "out") if "proj" in name]
    assert layer
    assert all(name.startswith(begin) for name in layer)


def test_shards_stay_shards_and_get_an_index(tmp_path: Path) -> None:
    _, config, headers = drafts.WRITTEN["speculators 0.9 trainer, two layers"]
    source = written.write(tmp_path / "in", config, headers, shards=3)
    (source / "stray.safetensors").write_bytes(b"not in the index")
    names = converted(source, tmp_path / "out", needs_plugin=True)
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    assert index["weight_map"].keys() == names.keys()
    assert index["metadata"]["total_size"] == sum(map(len, names.values()))
    assert len(list((tmp_path / "out").glob("*.safetensors"))) == 3
    assert "layers.1.hidden_norm.weight" in names


def test_every_tensor_is_aligned(tmp_path: Path) -> None:
    """Also behind one of odd size, and where one of odd size was dropped: torch wants it so."""
    headers = {
        "verifier_mask": drafts.TensorHeader("BOOL", (3,)),
        "t2d": drafts.TensorHeader("BOOL", (drafts.VOCAB + 1,)),
        **drafts.top("t2d"),
        **drafts.layer("midlayer."),
    }
    values = written.values_of(headers)
    values["t2d"] += b"\0"  # padded, as some targets' vocabularies are
    source = written.write(tmp_path / "in", drafts.flat(drafts.SGLANG), headers, values)
    conversion = written.convert(source, tmp_path / "out", written.options(flags=SAID))
    assert conversion.plan.dropped == ("verifier_mask",)
    file = tmp_path / "out" / "model.safetensors"
    found = read_file_header(file)
    for name, tensor in found.tensors.items():
        assert found.begins[name] % (DTYPE_BITS[tensor.dtype] // 8) == 0, name
    assert len(load_file(file)) == len(headers) - 1


def test_other_files_go_along_and_code_does_not(tmp_path: Path) -> None:
    _, config, headers = drafts.WRITTEN["SpecForge"]
    source = written.write(tmp_path / "in", config, headers)
    for name in ("tokenizer.json", "generation_config.json", "config.py", ".hidden", "o.bin"):
        (source / name).write_text(name)
    (source / "loop").symlink_to("loop")
    (source / "folder").mkdir()
    converted(source, tmp_path / "out")
    assert {file.name for file in (tmp_path / "out").iterdir()} == {
        *("config.json", "model.safetensors", "tokenizer.json", "generation_config.json")
    }
    assert (tmp_path / "out" / "tokenizer.json").read_text() == "tokenizer.json"


def test_provenance_tells_the_source(tmp_path: Path) -> None:
    _, config, headers = drafts.WRITTEN["SpecForge"]
    source = written.write(tmp_path / "in", config, headers)
    converted(source, tmp_path / "out", tool_version="1.2.3")
    with safetensors.safe_open(tmp_path / "out" / "model.safetensors", "pt") as file:
        metadata = file.metadata()
    told = json.loads(metadata[PROVENANCE])
    assert metadata["format"] == "pt"
    assert told["version"] == "1.2.3"
    assert told["sglang"] == "0.5.23"
    assert told["renamed"] == 10
    assert len(told["source_header_sha256"]["model.safetensors"]) == 64
    # Twice the same is the same, and already SGLang's own.
    again = written.convert(tmp_path / "out", tmp_path / "again", written.options(flags=SAID))
    assert again.plan.renamed == 0
    assert written.config_of(tmp_path / "again") == written.config_of(tmp_path / "out")
