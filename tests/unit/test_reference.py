"""The reference against real trainers' modules (golden files), and against the tiny drafter.

The golden logits were computed by the trainers' own code: see `tests/oracles`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from sglang_eagle3_patch.checkpoint.flags import DraftFlags, undated_flag
from sglang_eagle3_patch.checkpoint.header import TensorHeader
from sglang_eagle3_patch.checkpoint.spec import DraftSpec
from sglang_eagle3_patch.reference import ReferenceDraft, ReferenceUnavailable
from tests.cpu_sglang.pair import forms
from tests.cpu_sglang.pair.drafter import Drafter
from tests.oracles import golden_files as golden

CASES = {f"{case.library}:{case.name}": case for case in golden.cases()}
Tensors = dict[str, Tensor]
Config = dict[str, Any]


def spec_of(config: Config, tensors: Tensors) -> DraftSpec:
    headers = {name: TensorHeader("F32", tuple(value.shape)) for name, value in tensors.items()}
    return DraftSpec.of(config, headers)


def flags_of(case: golden.Case) -> DraftFlags:
    """Return what a golden draft was trained with.

    SpecForge 0.2.0, which saved some, is of before September 2026: what recurs is not normed, and
    `norm_output: false` means no norm before the head. A file doesn't tell its date.
    """
    spec = spec_of(case.config, case.tensors())
    dated = undated_flag(spec.config, spec.producer)
    known: dict[str, Any] = {dated: False} if dated else {}
    return replace(spec.flags, **known)


def reference(case: golden.Case, **flags: bool) -> ReferenceDraft:
    """Return the reference of a golden draft, with these flags instead of its own."""
    spec, own = spec_of(case.config, case.tensors()), cast(dict[str, Any], flags)
    return ReferenceDraft.from_spec(
        spec, case.tensors(), golden.embedding(), flags=replace(flags_of(case), **own)
    )


def served_rows(draft: ReferenceDraft) -> Tensor:
    aux, token_ids = golden.inputs()
    return torch.stack([x[list(golden.ROWS)] for x in draft.forward(aux, token_ids, golden.STEPS)])


def far(logits: Tensor, case: golden.Case, step: int) -> bool:
    """Whether the logits differ as those of another function do."""
    scale = case.logits.abs().max()
    return bool((logits - case.logits)[step].abs().max() > 0.05 * scale)


@pytest.mark.parametrize("name", CASES)
def test_the_trainers_logits(name: str) -> None:
    case = CASES[name]
    logits = served_rows(reference(case))
    assert (logits - case.logits).abs().max() <= 1e-4 * case.logits.abs().max()
    assert torch.equal(logits.argmax(-1), case.logits.argmax(-1))


@pytest.mark.parametrize("name", CASES)
def test_the_residual_tells(name: str) -> None:
    case = CASES[name]
    known = flags_of(case)
    logits = served_rows(reference(case, norm_before_residual=not known.norm_before_residual))
    assert all(far(logits, case, step) for step in range(golden.STEPS))


@pytest.mark.parametrize("name", CASES)
def test_what_recurs_tells_from_the_second_step_on(name: str) -> None:
    case = CASES[name]
    known = flags_of(case)
    logits = served_rows(reference(case, norm_output=not known.norm_output))
    assert [far(logits, case, step) for step in range(golden.STEPS)] == [False, True, True]


@pytest.mark.parametrize(
    ("name", "flag"),
    [("specforge:norm_output", "norm_output"), ("specforge:no-norm_output", "norm_before_head")],
)
def test_what_only_the_date_of_a_draft_tells_is_not_guessed(name: str, flag: str) -> None:
    case = CASES[name]
    spec = spec_of(case.config, case.tensors())
    with pytest.raises(ReferenceUnavailable, match=rf"\(SpecForge\) states {flag}: give flags"):
        ReferenceDraft.from_spec(spec, case.tensors(), golden.embedding())


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("modelopt:")])
def test_modelopts_second_norm_tells(name: str) -> None:
    # By 4 to 7 % of the scale, and more in each step: the gains of the two norms are 1 +- 0.3.
    logits = served_rows(reference(CASES[name], double_input_norm=False))
    assert far(logits, CASES[name], golden.STEPS - 1)


def without(*parts: str) -> Callable[[Config, Tensors], None]:
    def change(config: Config, tensors: Tensors) -> None:
        dropped = [name for name in tensors for part in parts if part in name]
        assert dropped
        for name in dropped:
            del tensors[name]

    return change


def unflagged(flag: str, part: str) -> Callable[[Config, Tensors], None]:
    def change(config: Config, tensors: Tensors) -> None:
        without(part)(config, tensors)
        config[flag] = False

    return change


def layer_with(**changes: Any) -> Callable[[Config, Tensors], None]:
    return lambda config, tensors: config["transformer_layer_config"].update(changes)


def swapped_blocks(config: Config, tensors: Tensors) -> None:
    tensors["fc.weight"] = torch.cat(tensors["fc.weight"].chunk(golden.AUX, 1)[::-1], 1)


PLAIN_ROPE = {"rope_theta": golden.THETA, "rope_type": "default"}
WRONG = {
    "input_norm": ("speculators:norm_before_fc", unflagged("norm_before_fc", "input_norm")),
    "fc_norm": ("speculators:fc_norm", unflagged("fc_norm", "fc_norm")),
    "qk_norm": ("speculators:qk-norm", without("q_norm", "k_norm")),
    "second layer": ("speculators:two-layers", without("layers.1.")),
    "bias of q": ("speculators:biases", without("q_proj.bias")),
    "bias of the mlp": ("speculators:biases", without("down_proj.bias")),
    "yarn": ("speculators:yarn", layer_with(rope_parameters=PLAIN_ROPE)),
    "llama3": ("speculators:llama3-rope", layer_with(rope_parameters=PLAIN_ROPE)),
    "theta": ("speculators:plain", layer_with(rope_parameters=None, rope_theta=100.0)),
    "window": ("speculators:window", layer_with(layer_types=["full_attention"])),
    "window by one": ("speculators:window", layer_with(sliding_window=golden.WINDOW - 1)),
    "aux order": ("speculators:plain", swapped_blocks),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_each_part_tells(wrong: str) -> None:
    name, change = WRONG[wrong]
    case = CASES[name]
    config, tensors = {**case.config}, case.tensors()
    config["transformer_layer_config"] = {**config["transformer_layer_config"]}
    change(config, tensors)
    logits = served_rows(ReferenceDraft.from_spec(spec_of(config, tensors), tensors))
    assert far(logits, case, 0)


def plain_case() -> tuple[Config, Tensors]:
    case = CASES["speculators:plain"]
    return {**case.config}, case.tensors()


def test_intermediate_values_come_by_name_in_order() -> None:
    config, tensors = plain_case()
    draft = ReferenceDraft.from_spec(spec_of(config, tensors), tensors)
    record: Tensors = {}
    logits = draft.forward(*golden.inputs(), 2, record)
    assert list(record)[:9] == [
        "fc",
        *(
            f"step0.layers.0.{name}"
            for name in (
                "input_layernorm",
                "hidden_norm",
                "residual",
                "self_attn",
                "post_attention_layernorm",
                "mlp",
            )
        ),
        "step0.norm",
        "step0.logits",
    ]
    assert torch.equal(record["step1.logits"], logits[1])
    assert torch.equal(record["fc"], draft.fuse(golden.inputs()[0]))


def test_draft_ids_become_target_ids() -> None:
    config, tensors = plain_case()
    draft = ReferenceDraft.from_spec(spec_of(config, tensors), tensors)
    every = torch.arange(golden.DRAFT_VOCAB)
    assert torch.equal(draft.target_ids(every), tensors["t2d"].nonzero()[:, 0])
    del tensors["d2t"]
    draft = ReferenceDraft.from_spec(spec_of(config, tensors), tensors)
    assert torch.equal(draft.target_ids(every), every)


def test_a_second_norm_of_the_hidden_state_is_harmless_only_with_an_even_gain() -> None:
    config, tensors = plain_case()
    spec = spec_of(config, tensors)

    def distance() -> Tensor:
        single, double = (
            served_rows(
                ReferenceDraft.from_spec(
                    spec, tensors, flags=replace(spec.flags, double_input_norm=twice)
                )
            )
            for twice in (False, True)
        )
        return (single - double)[0].abs().max()

    assert distance() > 0.1
    tensors["layers.0.input_layernorm.weight"] = torch.full((golden.HIDDEN,), 1.5)
    assert distance() < 1e-3


def test_embedding_and_head_may_be_the_targets() -> None:
    config, tensors = plain_case()
    embedding, head = tensors.pop("embed_tokens.weight"), tensors.pop("lm_head.weight")
    draft = ReferenceDraft.from_spec(spec_of(config, tensors), tensors, embedding, head)
    expected = CASES["speculators:plain"].logits
    assert (served_rows(draft) - expected).abs().max() < 1e-4


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda c, t: t.pop("embed_tokens.weight"), r"missing: \['embed_tokens.weight'\]"),
        (lambda c, t: t.pop("layers.0.mlp.up_proj.weight"), "missing: .*up_proj"),
        (lambda c, t: t.update(mask_hidden=torch.zeros(1)), r"of no use: \['mask_hidden'\]"),
        (lambda c, t: t.update({"input_norm.weight": torch.ones(192)}), "of no use: .*input_norm"),
        (lambda c, t: t.update({"fc.weight_scale": torch.ones(1)}), "of no use: .*scale"),
        (lambda c, t: t.update({"model.norm.weight": torch.ones(64)}), "two tensors are norm"),
        (lambda c, t: c.pop("norm_before_residual"), "states norm_before_residual: give flags"),
        (lambda c, t: c["transformer_layer_config"].update(hidden_act="gelu"), "'gelu'"),
        (lambda c, t: c["transformer_layer_config"].pop("rms_norm_eps"), "rms_norm_eps"),
        (
            lambda c, t: c["transformer_layer_config"].update(
                rope_parameters={"rope_type": "longrope", "rope_theta": 1e4}
            ),
            "longrope",
        ),
    ],
)
def test_what_would_be_computed_wrongly_is_refused(
    change: Callable[[Config, Tensors], object], problem: str
) -> None:
    config, tensors = plain_case()
    config["transformer_layer_config"] = {**config["transformer_layer_config"]}
    change(config, tensors)
    with pytest.raises(ReferenceUnavailable, match=problem):
        ReferenceDraft.from_spec(spec_of(config, tensors), tensors)


def test_tensors_of_another_draft_are_refused() -> None:
    config, tensors = plain_case()
    spec = spec_of(config, tensors)
    tensors["fc.weight"] = tensors["fc.weight"][:, :-1]
    with pytest.raises(ReferenceUnavailable, match=r"fc.weight is \[64, 191\].*\[64, 192\]"):
        ReferenceDraft.from_spec(spec, tensors)


@pytest.mark.parametrize("norm_before_residual", [False, True])
def test_the_tiny_drafter(norm_before_residual: bool) -> None:
    form = "speculators-norm-before-residual" if norm_before_residual else "native"
    tensors, config = forms.FORMS[form]()
    embedding = load_file(forms.TARGET / "model.safetensors")[
        "language_model.model.embed_tokens.weight"
    ].float()
    drafter = Drafter(norm_before_residual)
    own = {name.replace("layers.0.", "midlayer."): value for name, value in tensors.items()}
    drafter.load_state_dict({name: own[name] for name in drafter.state_dict()})
    torch.manual_seed(0)
    aux, token_ids = torch.randn(24, 384), torch.randint(0, 256, (27,))
    reference = ReferenceDraft.from_spec(spec_of(config, tensors), tensors, embedding=embedding)
    with torch.no_grad():
        expected = drafter(aux[None], token_ids[None], embedding, 3)
    for logits, wanted in zip(reference.forward(aux, token_ids, 3), expected, strict=True):
        torch.testing.assert_close(logits, wanted[0], atol=2e-5, rtol=0)
