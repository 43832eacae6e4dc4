"""What can't be converted is refused with the reason; what the plugin computes needs a word."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sglang_eagle3_patch.checkpoint.conversion.convert import plan_conversion
from sglang_eagle3_patch.checkpoint.conversion.options import NotConvertible
from sglang_eagle3_patch.checkpoint.conversion.source import AbsoluteToOffset
from sglang_eagle3_patch.checkpoint.header import CheckpointUnreadable, TensorHeader
from sglang_eagle3_patch.checkpoint.spec import DraftSpec
from tests.unit.checkpoint import drafts
from tests.unit.convert import written

PLAIN = drafts.top() | drafts.layer("layers.0.")
FLAGS = {"norm_before_residual": False}
ONE = b"\x80\x3f"


def flat(**changes: Any) -> drafts.Config:
    return drafts.flat(drafts.SGLANG, norm_before_residual=False, **changes)


def without(*names: str) -> drafts.Headers:
    return {name: header for name, header in PLAIN.items() if name not in names}


def extra(**shapes: tuple[int, ...]) -> drafts.Headers:
    return PLAIN | drafts.floats(**shapes)


def full_rank() -> drafts.Headers:
    """Return a draft with latent attention whose queries aren't projected down first."""
    rows = drafts.HEADS * (drafts.NOPE + drafts.ROPE)
    query = drafts.floats(**{"layers.0.self_attn.q_proj.weight": (rows, 2 * drafts.HIDDEN)})
    layer = drafts.layer("layers.0.", mla=True)
    return drafts.top() | query | {k: v for k, v in layer.items() if ".q_" not in k}


def peagle() -> drafts.Config:
    config = drafts.speculators("PEagleDraftModel", "0.9.0")
    return {**config, "speculators_model_type": "peagle"}


# What is there, and what the refusal must say of it; none of it is the plugin's to mend.
HOPELESS: dict[str, tuple[drafts.Config, drafts.Headers, str]] = {
    "P-EAGLE by its tensor": (flat(), extra(mask_hidden=(1, 1, 192)), "P-EAGLE"),
    "P-EAGLE by its config": (peagle(), PLAIN, "P-EAGLE"),
    "another algorithm": (
        {**drafts.speculators("X", "0.9.0"), "speculators_model_type": "dflash"},
        PLAIN,
        "dflash draft",
    ),
    "eh_proj": (flat(), extra(**{"eh_proj.weight": (64, 128)}), "eh_proj"),
    "EAGLE-1": (flat(), without("layers.0.hidden_norm.weight"), "EAGLE-1"),
    "no d2t": (flat(), without("d2t"), "no d2t that says which"),
    "no head": (flat(), without("lm_head.weight"), "lacks lm_head.weight"),
    "no fc": (flat(), without("fc.weight"), "lacks fc.weight"),
    "no q_proj": (flat(), without("layers.0.self_attn.q_proj.weight"), "lacks .*q_proj"),
    "gelu": (flat(hidden_act="gelu"), PLAIN, "hidden_act is gelu"),
    "biases in the MLP": (
        flat(),
        extra(**{"layers.0.mlp.up_proj.bias": (drafts.INTERMEDIATE,)}),
        "biases in its MLP",
    ),
    "a bias of fc": (flat(), extra(**{"fc.bias": (drafts.HIDDEN,)}), "biases in its MLP or fc"),
    "something new": (flat(), extra(**{"fc2.weight": (64, 64)}), "has fc2.weight"),
    "no last norm": (
        flat(eagle_config={"use_last_layernorm": False}),
        PLAIN,
        "without a norm before its head",
    ),
    "an option of ModelOpt": (
        flat(eagle_config={"use_mtp_layernorm": True}),
        PLAIN,
        "use_mtp_layernorm is True",
    ),
    "SpecForge of an unknown date": (
        flat(norm_output=False),
        drafts.top() | drafts.layer("midlayer."),
        "does not tell its date.*--flag norm_before_head=true",
    ),
    "norm_output of one of several": (
        flat(norm_output=True),
        drafts.top("t2d") | drafts.layer("midlayer."),
        "does not tell its date.*--flag norm_output",
    ),
    "ModelOpt's second norm": (
        flat(eagle_config=drafts.MODELOPT),
        drafts.top("t2d") | drafts.layer("layers.0."),
        r"norms the hidden state twice.*--flag double_input_norm",
    ),
    "two layouts": (flat(), PLAIN | drafts.layer("midlayer."), "several tensors mean"),
    "a wrong head_dim": (flat(head_dim=32), PLAIN, "head_dim: tensors 16, config 32"),
    "another target's width": (flat(target_hidden_size=96), PLAIN, "hidden states of 96"),
    "an fc of no whole states": (flat(target_hidden_size=100), PLAIN, "no whole number"),
    "a head of the target's that doesn't fit": (
        flat(),
        without("lm_head.weight", "d2t", "t2d"),
        "lacks lm_head.weight",
    ),
    "no embedding, and the target's is wider": (
        flat(target_hidden_size=96),
        without("embed_tokens.weight") | drafts.floats(**{"fc.weight": (64, 288)}),
        "lacks embed_tokens.weight",
    ),
    "an fc that SGLang skips": (
        flat(target_hidden_size=32),
        PLAIN | drafts.floats(**{"fc.weight": (64, 64)}),
        "its fc keeps the width",
    ),
    "queries of full rank": (
        drafts.mla(q_lora_rank=None, norm_before_residual=False),
        full_rank(),
        "wants q_lora_rank",
    ),
    "unstated": (
        {k: v for k, v in flat().items() if k != "norm_before_residual"},
        PLAIN,
        "norm_before_residual: unstated.*--flag norm_before_residual=false",
    ),
}


def refuse(tmp_path: Path, config: drafts.Config, headers: drafts.Headers, **changes: Any) -> str:
    values = changes.pop("values", None)
    source = written.write(tmp_path / "in", config, headers, values)
    with pytest.raises(NotConvertible) as refusal:
        plan_conversion(source, written.options(**changes))
    text = str(refusal.value)
    assert "Fix: " in text
    assert "\n" not in text
    return text


@pytest.mark.parametrize("kind", HOPELESS)
@pytest.mark.parametrize("plugin", [False, True], ids=["stock", "plugin"])
def test_what_nobody_computes(kind: str, plugin: bool, tmp_path: Path) -> None:
    config, headers, reason = HOPELESS[kind]
    assert re.search(reason, refuse(tmp_path, config, headers, needs_plugin=plugin))


def test_the_same_draft_without_what_is_wrong_converts(tmp_path: Path) -> None:
    """So that each refusal above is about its own change."""
    plan_conversion(written.write(tmp_path / "in", flat(), PLAIN), written.options())


# What the plugin computes: config, headers, release, the reason.
MENDED: dict[str, tuple[drafts.Config, drafts.Headers, str, str]] = {
    "norm_before_residual": (
        {**flat(), "norm_before_residual": True},
        PLAIN,
        "0.5.23",
        "norm_before_residual is true",
    ),
    "norm_before_fc at 0.5.9": (
        flat(norm_before_fc=True),
        extra(**{"input_norm.weight": (192,)}),
        "0.5.9",
        "norm_before_fc is true",
    ),
    "norm_before_fc at 0.5.12": (
        flat(norm_before_fc=True),
        extra(**{"input_norm.weight": (192,)}),
        "0.5.12",
        "norm_before_fc is true",
    ),
    "norm_output at 0.5.9": (flat(norm_output=True), PLAIN, "0.5.9", "norm_output is true"),
    "q_norm": (
        flat(),
        extra(**{f"layers.0.self_attn.{part}_norm.weight": (drafts.HEAD_DIM,) for part in "qk"}),
        "0.5.23",
        "norms of q and k",
    ),
    "a trained embedding": (flat(embed_requires_grad=True), PLAIN, "0.5.23", "embedding"),
    "an amplitude": (
        flat(rope_scaling={"rope_type": "yarn", "factor": 4.0, "attention_factor": 1.0}),
        PLAIN,
        "0.5.23",
        "amplitude",
    ),
}


@pytest.mark.parametrize("kind", MENDED)
def test_what_the_plugin_computes_wants_a_word(kind: str, tmp_path: Path) -> None:
    config, headers, release, reason = MENDED[kind]
    wanted = written.options(release)
    source = written.write(tmp_path / "in", config, headers)
    with pytest.raises(NotConvertible, match=rf"{reason}.*--needs-plugin"):
        plan_conversion(source, wanted)
    wanted = dataclasses.replace(wanted, needs_plugin=True)
    conversion = written.convert(source, tmp_path / "out", wanted)
    assert any(note.startswith("needs the plugin: ") for note in conversion.plan.notes)
    before, after = DraftSpec.read(source), DraftSpec.read(tmp_path / "out")
    assert after.flags == before.flags


@pytest.mark.parametrize(
    ("release", "accepted"), [("0.5.9", False), ("0.5.12", False), ("0.5.23", True)]
)
def test_a_flag_of_the_class_needs_no_plugin(release: str, accepted: bool, tmp_path: Path) -> None:
    source = written.write(
        tmp_path / "in", flat(norm_before_fc=True), extra(**{"input_norm.weight": (192,)})
    )
    if not accepted:
        with pytest.raises(NotConvertible, match="norm_before_fc"):
            plan_conversion(source, written.options(release))
        return
    assert plan_conversion(source, written.options(release)).plan.config["norm_before_fc"] is True


@pytest.mark.parametrize("said", [{}, {"norm_output": False}])
def test_norm_output_of_an_unknown_writer_is_what_recurs_unless_said(
    said: dict[str, bool], tmp_path: Path
) -> None:
    source = written.write(tmp_path / "in", flat(norm_output=True), PLAIN)
    wanted = dataclasses.replace(written.options("0.5.23"), flags=said)
    plan = plan_conversion(source, wanted).plan
    recurs = not said
    assert plan.config.get("norm_output", False) is recurs
    # So that nobody has to ask again who wrote it.
    assert plan.config["eagle_config"].get("return_hidden_post_norm", False) is recurs
    assert any("nothing tells who wrote it" in note for note in plan.notes) is recurs


class TestReleases:
    def refused(self, tmp_path: Path, release: str, kind: str) -> str:
        _, config, headers = drafts.WRITTEN[kind]
        return refuse(
            tmp_path,
            config,
            headers,
            release=release,
            flags=FLAGS,
            needs_plugin=True,
            target=written.target(release=release),
        )

    def test_several_layers(self, tmp_path: Path) -> None:
        kind = "speculators 0.9 trainer, two layers"
        assert "has one decoder layer" in self.refused(tmp_path, "0.5.11", kind)

    def test_latent_attention(self, tmp_path: Path) -> None:
        text = self.refused(tmp_path, "0.5.11", "TorchSpec MLA for vLLM")
        assert "0.5.11 has no class for it" in text

    def test_another_number_of_states(self, tmp_path: Path) -> None:
        headers = PLAIN | drafts.floats(**{"fc.weight": (drafts.HIDDEN, 4 * drafts.HIDDEN)})
        ids = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 3, 4]}}
        assert "takes 3 aux" in refuse(tmp_path, flat(**ids), headers, release="0.5.9")

    def test_a_window(self, tmp_path: Path) -> None:
        window = {"layer_types": ["sliding_attention"], "sliding_window": 2048}
        assert "window of 2048" in refuse(tmp_path, flat(**window), PLAIN, release="0.5.9")

    def test_a_window_of_some_layers(self, tmp_path: Path) -> None:
        kinds = ["full_attention", "sliding_attention"]
        mixed = flat(layer_types=kinds, sliding_window=2048, num_hidden_layers=2)
        layers = PLAIN | drafts.layer("layers.1.", False, norm="input_layernorm")
        assert "only its layers [1] attend to a window" in refuse(tmp_path, mixed, layers)

    def test_another_targets_draft(self, tmp_path: Path) -> None:
        wider = dataclasses.replace(written.target(), hidden=128)
        assert "the target's have 128" in refuse(tmp_path, flat(), PLAIN, target=wider)


class TestValues:
    def random(self, tmp_path: Path, version: str, norms: bytes) -> Callable[[], Any]:
        config = drafts.speculators(drafts.CONVERTER, version, norm_before_residual=False)
        values = written.values_of(PLAIN)
        for name in PLAIN:
            if name.startswith("layers.") and "norm" in name:
                values[name] = norms * drafts.HIDDEN
        source = written.write(tmp_path / "in", config, PLAIN, values)
        wanted = written.options(aux_inputs=(2, 4, 5))
        return lambda: plan_conversion(source, wanted)

    def test_a_random_decoder(self, tmp_path: Path) -> None:
        with pytest.raises(NotConvertible, match="never trained"):
            self.random(tmp_path, "0.3.0", ONE)()

    def test_a_trained_one(self, tmp_path: Path) -> None:
        self.random(tmp_path, "0.3.0", b"\x81\x3f")()

    def test_ones_of_another_writer(self, tmp_path: Path) -> None:
        self.random(tmp_path, "0.9.0", ONE)()

    def with_map(self, tmp_path: Path, targets: list[int], *, offsets: bool) -> Path:
        values = written.values_of(PLAIN)
        table = [t - i for i, t in enumerate(targets)] if offsets else targets
        values["d2t"] = written.integers(table)
        return written.write(tmp_path / "in", flat(), PLAIN, values)

    def test_target_ids_become_offsets(self, tmp_path: Path) -> None:
        source = self.with_map(tmp_path, written.KNOWN, offsets=False)
        conversion = written.convert(source, tmp_path / "out")
        offsets = [t - i for i, t in enumerate(written.KNOWN)]
        assert written.read(tmp_path / "out")["d2t"] == written.integers(offsets)
        assert "d2t: target ids made offsets" in conversion.plan.changes

    def test_offsets_stay(self, tmp_path: Path) -> None:
        source = self.with_map(tmp_path, written.KNOWN, offsets=True)
        assert not [m for m in plan_conversion(source, written.options()).plan.moves if m.transform]

    @pytest.mark.parametrize(
        ("targets", "reason"),
        [
            ([0] * drafts.DRAFT_VOCAB, "occur twice"),
            ([900, *written.KNOWN[1:]], "outside 0 to 319"),
        ],
    )
    def test_a_broken_map(self, targets: list[int], reason: str, tmp_path: Path) -> None:
        source = self.with_map(tmp_path, targets, offsets=True)
        with pytest.raises(NotConvertible, match=reason):
            plan_conversion(source, written.options())

    def test_a_map_that_can_be_read_in_two_ways(self, tmp_path: Path) -> None:
        headers = without("t2d")
        values = {**written.values_of(headers), "d2t": written.integers(range(drafts.DRAFT_VOCAB))}
        source = written.write(tmp_path / "in", flat(), headers, values)
        with pytest.raises(NotConvertible, match="target ids would fit too"):
            plan_conversion(source, written.options())

    def test_a_map_in_pieces_is_the_same(self) -> None:
        change, ids = AbsoluteToOffset("I64"), written.integers(written.KNOWN)
        pieces = [change(at, ids[at : at + 40]) for at in range(0, len(ids), 40)]
        offsets = [target - draft for draft, target in enumerate(written.KNOWN)]
        assert b"".join(pieces) == written.integers(offsets)

    def test_a_map_of_floats(self, tmp_path: Path) -> None:
        headers = {**PLAIN, "d2t": TensorHeader("F32", (drafts.DRAFT_VOCAB,))}
        values = {**written.values_of(PLAIN), "d2t": bytes(4 * drafts.DRAFT_VOCAB)}
        source = written.write(tmp_path / "in", flat(), headers, values)
        with pytest.raises(CheckpointUnreadable, match="d2t is F32"):
            plan_conversion(source, written.options())
