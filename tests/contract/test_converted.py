"""Converted drafts on SGLang's stock classes: they load whole and compute what was trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from sglang_eagle3_patch.checkpoint.conversion.convert import plan_conversion
from sglang_eagle3_patch.checkpoint.conversion.options import Options, Target
from sglang_eagle3_patch.checkpoint.layouts import canonical_name
from sglang_eagle3_patch.checkpoint.spec import DraftSpec
from sglang_eagle3_patch.facts.store import facts_for
from sglang_eagle3_patch.parity.checkpoints import draft_tensors, random_target
from sglang_eagle3_patch.parity.compare import TOLERANCE, random_inputs, relative_difference
from sglang_eagle3_patch.parity.sglang_draft import SglangDraft
from sglang_eagle3_patch.reference import ReferenceDraft
from tests.contract.conftest import DraftFactory
from tests.contract.drafts import Tensors, unfilled
from tests.cpu_sglang.pair import forms
from tests.unit.convert.written import config_of

CHECKPOINTS = Path(__file__).parents[1] / "checkpoints"
# Folders as trainers write them, and whether the plugin must be there for their numbers.
SOURCES = {
    "specforge-0.2.0": False,
    "speculators-0.9.0-plain": False,
    "speculators-0.9.0-2layer": True,
    "speculators-0.9.0-default-0.9": True,
    "speculators-0.9.0-fcnorm": True,
    "mla": False,
    "pair": False,
}
STEPS = 3


def source_of(kind: str, tmp_path: Path) -> Path:
    if kind == "mla":
        return forms.write(tmp_path / "in", *forms.mla())
    if kind == "pair":
        return forms.write_form("speculators", tmp_path / "in")
    return CHECKPOINTS / kind


def convert(source: Path, out: Path, *, needs_plugin: bool) -> Path:
    facts = facts_for("0.5.23")
    assert facts is not None
    hidden = DraftSpec.read(source).target_hidden_size
    assert hidden is not None
    target = Target("LlamaForCausalLM", 8, hidden, facts.targets["LlamaForCausalLM"])
    options = Options(facts, target=target, needs_plugin=needs_plugin)
    plan_conversion(source, options).write(out, verify=True)
    return out


@pytest.mark.parametrize("kind", SOURCES)
def test_a_converted_folder_loads_whole_on_stock(
    kind: str, make_draft: DraftFactory, tmp_path: Path
) -> None:
    source = source_of(kind, tmp_path)
    out = convert(source, tmp_path / "out", needs_plugin=SOURCES[kind])
    draft = make_draft(config_of(out))
    draft.load_weights(iter(load_file(out / "model.safetensors").items()))
    left = [n for n in unfilled(draft) if not n.endswith("layers.1.input_layernorm.weight")]
    assert left == []
    assert_equal(draft, load_file(source / "model.safetensors"))


def assert_equal(draft: Any, tensors: Tensors) -> None:
    """Compare every parameter with the tensors of the source, fused ones put together."""
    wanted = {canonical_name(name): tensor for name, tensor in tensors.items()}
    seen = {"t2d"}
    for name, parameter in draft.named_parameters():
        canonical = canonical_name(name)
        later_norm = canonical.startswith("layers.1.") and "hidden_norm" in canonical
        if later_norm:
            canonical = canonical.replace("hidden_norm", "input_layernorm")
        elif canonical == "layers.1.input_layernorm.weight":
            continue  # SGLang's class has it and doesn't use it
        parts = [canonical]
        for fused, single in FUSED.items():
            if fused in canonical:
                parts = [canonical.replace(fused, part) for part in single]
        if canonical == "embed_tokens.weight" and canonical not in wanted:
            continue  # the target's
        expected = torch.cat([wanted[part] for part in parts])
        assert torch.equal(parameter.float(), expected.float()), name
        seen.update(parts)
    if "d2t" in wanted:
        offsets = wanted["d2t"]
        assert torch.equal(draft.hot_token_id, offsets + torch.arange(len(offsets)))
        seen.add("d2t")
    assert seen >= wanted.keys()


FUSED = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
    "fused_qkv_a_proj_with_mqa": ("q_a_proj", "kv_a_proj_with_mqa"),
}


def difference_on_stock(source: Path, out: Path) -> float:
    """Run stock SGLang on `out` and the reference on `source`: the largest difference."""
    spec, tensors = DraftSpec.read(source), draft_tensors(source)
    shared, vocab = random_target(spec, 0), spec.sizes.vocab
    assert vocab is not None
    aux, token_ids = random_inputs(spec.tensors["fc.weight"].shape[1], vocab, STEPS, 0)
    wanted = ReferenceDraft.from_spec(spec, tensors, *shared).forward(aux, token_ids, STEPS)
    served = SglangDraft(out).load(draft_tensors(out), *shared).forward(aux, token_ids, STEPS)
    return max(relative_difference(a, b) for a, b in zip(served, wanted, strict=True))


@pytest.mark.parametrize("kind", [kind for kind, plugin in SOURCES.items() if not plugin])
@pytest.mark.usefixtures("rank")
def test_stock_computes_what_was_trained(kind: str, tmp_path: Path) -> None:
    source = source_of(kind, tmp_path)
    out = convert(source, tmp_path / "out", needs_plugin=False)
    assert difference_on_stock(source, out) <= TOLERANCE


@pytest.mark.usefixtures("rank")
def test_what_needs_the_plugin_is_something_else_on_stock(tmp_path: Path) -> None:
    """So the converter is right to ask for a word before it writes that."""
    source = CHECKPOINTS / "speculators-0.9.0-nbr"
    out = convert(source, tmp_path / "out", needs_plugin=True)
    assert difference_on_stock(source, out) > 100 * TOLERANCE


@pytest.mark.parametrize("kind", [kind for kind, plugin in SOURCES.items() if plugin])
@pytest.mark.usefixtures("plugin")
def test_the_plugin_computes_it(kind: str, tmp_path: Path) -> None:
    source = source_of(kind, tmp_path)
    out = convert(source, tmp_path / "out", needs_plugin=True)
    assert difference_on_stock(source, out) <= TOLERANCE
