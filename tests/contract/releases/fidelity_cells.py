"""The drafts whose numbers are compared on every release, and the logits that they must give.

Golden ones were computed by real trainers (`tests/oracles`). The other producers' configs and
names are those of `tests/unit/checkpoint/drafts.py`, filled with the golden files' weights; what
they were trained to compute is the plain torch reference's word.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from sglang_eagle3_patch.checkpoint.header import TensorHeader
from sglang_eagle3_patch.checkpoint.layouts import canonical_name
from sglang_eagle3_patch.checkpoint.spec import DraftSpec
from sglang_eagle3_patch.reference import ReferenceDraft
from tests.contract import flagged_drafts
from tests.cpu_sglang.pair.forms import Tensors
from tests.oracles import golden_files as golden
from tests.unit.checkpoint import drafts as producers

Config = dict[str, Any]
EVERY_ROW = tuple(range(golden.LENGTH))
TRAINER, REFERENCE, NOBODY = "its trainer", "the reference", "nothing computes it"
TRAINED_ON = "an embedding trained on from the target's"


@dataclass(frozen=True)
class Cell:
    """One draft folder, in words and as it is written, and what it must compute.

    `wanted` are the logits of `rows` in each step, None where no class computes them: such a
    draft can only be refused. `judge` says whose they are. `lent` are the target's embedding and
    head, `[V, H]` both.
    """

    producer: str
    flags: str
    config: Config
    tensors: Tensors
    wanted: list[Tensor] | None
    judge: str
    rows: tuple[int, ...] = EVERY_ROW
    inputs: tuple[Tensor, Tensor] = field(default_factory=golden.inputs)
    lent: tuple[Tensor, Tensor] = field(default_factory=lambda: targets_own())

    @property
    def layout(self) -> str:
        """How the decoder layers are named."""
        found = (re.match(r"(.*?(?:midlayer|layers)(?:\.\d+)?)\.", name) for name in self.tensors)
        return ", ".join(sorted({match[1] for match in found if match}))

    @property
    def name(self) -> str:
        """The cell's name, unlike any other's."""
        return f"{self.producer} | {self.layout} | {self.flags}"


def targets_own() -> tuple[Tensor, Tensor]:
    """Return embedding and head `[V, H]` of the target that the golden files are of."""
    embedding = load_file(golden.FOLDER / "shared.safetensors")["embed_tokens.weight"].float()
    return embedding, random_weights((golden.VOCAB, golden.HIDDEN), 1)


def cells() -> list[Cell]:
    """Return all of them."""
    return [
        *map(_golden, golden.cases()),
        *_renamed(),
        *_producers(),
        *_ropes(),
        *_mla_flags(),
        *_tables(),
        *_beyond_the_layer(),
    ]


_IN_WORDS = {"specforge": "SpecForge", "modelopt": "ModelOpt", "torchspec": "TorchSpec"}


def _golden(case: golden.Case) -> Cell:
    library = case.library.partition("-")[0]
    return Cell(
        f"{_IN_WORDS.get(library, library)} {golden.version(case.library)}",
        case.name,
        case.config,
        case.tensors(),
        list(case.logits),
        TRAINER,
        golden.ROWS,
    )


def _case(library: str, name: str = "plain") -> Cell:
    return _golden(next(x for x in golden.cases() if (x.library, x.name) == (library, name)))


def _renamed() -> Iterable[Cell]:
    """SpecForge's plain draft under the names that other tools give it."""
    plain = _case("specforge")
    for prefix in ("model.", "module.", "draft_model.", "eagle_module."):
        tensors = {prefix + name: value for name, value in plain.tensors.items()}
        yield replace(plain, flags=f"plain, dumped as {prefix}*", tensors=tensors)
    tensors = {canonical_name(name): value for name, value in plain.tensors.items()}
    yield replace(plain, flags="plain, renamed for vLLM", tensors=tensors)
    config = {**plain.config, "norm_output": True}
    # As SGLang takes it: to SpecForge it would have meant something else.
    wanted = reference(config, tensors, {"norm_before_residual": False})
    yield Cell("nobody known", "norm_output: true", config, tensors, wanted, REFERENCE)
    for said, changes in (
        ("tie_word_embeddings: true beside an own head", {"tie_word_embeddings": True}),
        ("target_hidden_size: null", {"target_hidden_size": None}),
        ("draft_vocab_size: null beside an own head", {"draft_vocab_size": None}),
    ):
        yield replace(plain, flags=f"plain, {said}", config={**plain.config, **changes})
    normed = _case("specforge", "fc_norm")
    unstated = {key: value for key, value in normed.config.items() if key != "fc_norm"}
    yield replace(normed, flags="fc_norm, which its config leaves out", config=unstated)
    linear = {"rope_type": "linear", "factor": 4.0, "rope_theta": golden.THETA}
    biased = {**plain.tensors, "fc.bias": random_weights((golden.HIDDEN,), 3)}
    for said, config, tensors in (
        ("rope_type: linear", {**plain.config, "rope_parameters": linear}, plain.tensors),
        ("bias: true, with fc.bias", {**plain.config, "bias": True}, biased),
    ):
        wanted = reference(config, tensors, {})
        yield Cell(plain.producer, said, config, tensors, wanted, REFERENCE)
    partial = {**plain.config["rope_parameters"], "partial_rotary_factor": 0.5}
    yield replace(
        plain,
        flags="rope_parameters.partial_rotary_factor: 0.5",
        config={**plain.config, "rope_parameters": partial},
        wanted=_half_rotated(plain),
        judge=REFERENCE,
        rows=EVERY_ROW,
    )


def _half_rotated(cell: Cell) -> list[Tensor]:
    """Return the logits of the cell's draft with the first half of each head rotated.

    The reference rotates whole heads, elements i and i + d/2 as a pair: with the elements of q and
    k put in another order, which their product doesn't see, the pairs to be rotated come first,
    and the others are given no turns.
    """
    half, quarter = golden.HEAD_DIM // 2, golden.HEAD_DIM // 4
    elements = torch.arange(golden.HEAD_DIM)
    first, second = elements[:quarter], elements[quarter:half]
    order = torch.cat([first, elements[half:-quarter], second, elements[-quarter:]])

    def reordered(name: str, value: Tensor) -> Tensor:
        if not name.endswith((".q_proj.weight", ".k_proj.weight")):
            return value
        return value.unflatten(0, (-1, golden.HEAD_DIM))[:, order].flatten(0, 1)

    tensors = {name: reordered(name, value) for name, value in cell.tensors.items()}
    draft = ReferenceDraft.from_spec(spec_of(cell.config, tensors), tensors)
    turns = golden.THETA ** (-torch.arange(0, half, 2) / half)
    draft._frequencies = torch.cat([turns, torch.zeros(quarter)])
    return draft.forward(*golden.inputs(), golden.STEPS)


_KNOWN_CLASSES = ({producers.SGLANG}, {"Eagle3DeepseekV2ForCausalLM"}, {producers.TRAINER})


def _producers() -> Iterable[Cell]:
    for name, (_, config, headers) in producers.WRITTEN.items():
        config, headers = _completed(name, config, headers)
        tensors = filled(headers)
        spec = spec_of(config, tensors)
        told = dict.fromkeys(spec.flags.unstated, False)
        wanted = None
        # Without d2t no draft id means a target id.
        if "lm_head.weight" not in spec.tensors or spec.has_d2t or not _is_pruned(tensors):
            wanted = reference(config, tensors, told)
        judge = NOBODY if wanted is None else REFERENCE
        cell = Cell(name, "as written", config, tensors, wanted, judge)
        yield cell
        if set(config["architectures"]) not in (*_KNOWN_CLASSES, {producers.CONVERTER}):
            rewritten = {**config, "architectures": [producers.SGLANG]}
            yield replace(cell, flags="architectures rewritten", config=rewritten)
            if config["num_hidden_layers"] != spec.num_layers:
                rewritten = {**rewritten, "num_hidden_layers": spec.num_layers}
                yield replace(
                    cell, flags="architectures and num_hidden_layers rewritten", config=rewritten
                )


def _ropes() -> Iterable[Cell]:
    """Drafts trained with another theta than their config states, or stating rope in two places.

    The reference is given a config that states what was trained, whatever the package makes of it.
    """
    linear = {"rope_type": "linear", "factor": 4.0}
    for name, changes, said in (
        ("SafeAILab", {}, "rope_theta: 1e6"),
        ("AngelSlim", {}, "rope_theta: 1e6"),
        (
            "AngelSlim",
            {"architectures": [producers.SGLANG]},
            "rope_theta: 1e6, architectures rewritten",
        ),
        ("TorchSpec MHA", {"rope_scaling": linear}, "rope_theta: 1e6, rope_type: linear"),
    ):
        _, config, headers = producers.WRITTEN[name]
        config, headers = _completed(name, config, headers)
        config, tensors = {**config, **changes, "rope_theta": 1e6}, filled(headers)
        wanted = reference({**config, "rope_theta": 10000.0}, tensors, {})
        yield Cell(name, said, config, tensors, wanted, REFERENCE)
    plain = _case("specforge")
    stated = {**plain.config, "rope_theta": golden.THETA, "rope_parameters": linear}
    trained = {**plain.config, "rope_parameters": {**linear, "rope_theta": golden.THETA}}
    yield replace(
        plain,
        flags="rope_parameters: linear, without theta, beside rope_theta",
        config=stated,
        wanted=reference(trained, plain.tensors, {}),
        judge=REFERENCE,
        rows=EVERY_ROW,
    )
    yield replace(
        plain,
        flags="rope_theta: 1e6 beside another in rope_parameters",
        config={**plain.config, "rope_theta": 1e6},
        wanted=None,
        judge=NOBODY,
    )


def _completed(
    name: str, config: Config, headers: Mapping[str, TensorHeader]
) -> tuple[Config, Mapping[str, TensorHeader]]:
    """Fill in what the table, of which nothing is computed, leaves short."""
    if "rope_scaling" in config:
        config = {**config, "rope_scaling": flagged_drafts.deepseek_config()["rope_scaling"]}
    if name == "speculators 0.9 trainer, two layers":
        layer = {**config["transformer_layer_config"], "num_hidden_layers": 2}
        config = {**config, "transformer_layer_config": layer}
    if name == "TorchSpec MHA":  # without d2t, since its vocabulary is the target's
        head = TensorHeader("BF16", (golden.VOCAB, golden.HIDDEN))
        config = {**config, "draft_vocab_size": golden.VOCAB}
        headers = {**headers, "lm_head.weight": head}
    return config, headers


def _mla_flags() -> Iterable[Cell]:
    for residual, fc_input, output in product(
        (False, True), ("", "norm_before_fc", "fc_norm"), (False, True)
    ):
        flags = {"norm_before_residual": residual, fc_input: True, "norm_output": output}
        flags.pop("", None)
        config = flagged_drafts.deepseek_config(**flags)
        tensors = flagged_drafts.tensors_for(config)
        inputs = flagged_drafts.inputs(config)
        said = "+".join(flag for flag, on in flags.items() if on) or "plain"
        yield Cell(
            "any, MLA",
            said,
            config,
            tensors,
            reference(config, tensors, {}, inputs),
            REFERENCE,
            inputs=inputs,
            lent=(
                tensors["embed_tokens.weight"],
                random_weights(tuple(tensors["lm_head.weight"].shape), 1),
            ),
        )


def _tables() -> Iterable[Cell]:
    """Drafts whose embedding is another than the target's, and drafts without a head."""
    mla = next(cell for cell in _mla_flags() if cell.flags == "plain")
    for cell in (_case("specforge"), mla):
        targets = cell.lent[0]
        foreign = random_weights(tuple(targets.shape), 4) * targets.std() * targets.shape[1] ** 0.5
        for said, config, embedding, computed in (
            (TRAINED_ON, {}, targets + foreign / 2, "its own"),
            ("an embedding as it was initialised", {}, foreign, "the target's"),
            (
                "an embedding of its own, embed_requires_grad: true",
                {"embed_requires_grad": True},
                foreign,
                "its own",
            ),
        ):
            tensors = {**cell.tensors, "embed_tokens.weight": embedding}
            used = tensors if computed == "its own" else _without(tensors, "embed_tokens.weight")
            yield _with_tables(cell, f"plain, {said}", {**cell.config, **config}, tensors, used)
        headless = _without(cell.tensors, "lm_head.weight", "d2t", "t2d")
        for said, vocab in (("", cell.config["vocab_size"]), (", draft_vocab_size: null", None)):
            config = {**cell.config, "draft_vocab_size": vocab}
            flags = f"plain, without a head{said}"
            yield _with_tables(cell, flags, config, headless, headless)
    plain = _case("specforge")
    yield replace(
        plain,
        flags="plain, without a head under a vocabulary of its own",
        tensors=_without(plain.tensors, "lm_head.weight"),
        wanted=None,
        judge=NOBODY,
    )


def _with_tables(cell: Cell, flags: str, config: Config, tensors: Tensors, used: Tensors) -> Cell:
    """Return the cell with other tensors, of which it computes with those `used`."""
    wanted = reference(config, used, {}, cell.inputs, cell.lent)
    return replace(
        cell,
        flags=flags,
        config=config,
        tensors=tensors,
        wanted=wanted,
        judge=REFERENCE,
        rows=EVERY_ROW,
    )


def _without(tensors: Tensors, *names: str) -> Tensors:
    return {name: value for name, value in tensors.items() if name not in names}


# Another function than the layer that all engines know; each at a value that changes the numbers.
_OTHER_FUNCTIONS: Mapping[str, Config] = {
    "parallel_drafting: true": {"parallel_drafting": True},
    "residual_scale: 0.5": {"residual_scale": 0.5},
    "use_residual: false": {"use_residual": False},
    "embedding_multiplier: 12.0": {"embedding_multiplier": 12.0},
    "eagle_config.eh_proj_before_attn: true": {"eagle_config": {"eh_proj_before_attn": True}},
    "hidden_act: gelu": {"hidden_act": "gelu"},
    "rope_type: dynamic": {
        "rope_parameters": {"rope_type": "dynamic", "factor": 4.0, "rope_theta": golden.THETA}
    },
    "eagle_config.use_last_layernorm: false": {"eagle_config": {"use_last_layernorm": False}},
    "eagle_config.use_mtp_layernorm: true": {"eagle_config": {"use_mtp_layernorm": True}},
    "eagle_config.next_layer_regular: false": {"eagle_config": {"next_layer_regular": False}},
    "eagle_config.parallel_draft_step: 4": {"eagle_config": {"parallel_draft_step": 4}},
    "eagle_config.use_input_layernorm_in_first_layer: false": {
        "eagle_config": {"use_input_layernorm_in_first_layer": False}
    },
    "eagle_config.residual_scale: 0.5": {"eagle_config": {"residual_scale": 0.5}},
}
_OTHER_TENSORS: Mapping[str, tuple[int, ...]] = {
    "mask_hidden": (1, 1, golden.AUX * golden.HIDDEN),
    "midlayer.layer_scale": (golden.HIDDEN,),
    "fc.bias": (golden.HIDDEN,),
    "midlayer.mlp.down_proj.bias": (golden.HIDDEN,),
}


def _beyond_the_layer() -> Iterable[Cell]:
    plain = replace(_case("specforge"), producer="nobody known", wanted=None, judge=NOBODY)
    for said, changes in _OTHER_FUNCTIONS.items():
        yield replace(plain, flags=said, config={**plain.config, **changes})
    for tensor, shape in _OTHER_TENSORS.items():
        tensors = {**plain.tensors, tensor: random_weights(shape, 2)}
        yield replace(plain, flags=f"a tensor {tensor}", tensors=tensors)
    theirs = _case("speculators")
    plain = replace(plain, tensors=theirs.tensors)
    scaled = {**theirs.config, "residual_scale": 0.5}
    yield replace(plain, flags="residual_scale: 0.5, speculators' config", config=scaled)
    unstated = {**theirs.config}
    del unstated["norm_before_residual"]
    yield replace(
        plain, flags="norm_before_residual unstated, speculators' config", config=unstated
    )


def filled(headers: Mapping[str, TensorHeader]) -> Tensors:
    """Return tensors for the headers: the golden files' weights, random where they have none."""
    shared = load_file(golden.FOLDER / "shared.safetensors")
    tensors = {}
    for number, (name, header) in enumerate(headers.items()):
        known = canonical_name(name).replace("layers.1.hidden_norm", "layers.1.input_layernorm")
        value = shared.get(known)
        fits = value is not None and tuple(value.shape) == header.shape
        tensors[name] = value if fits else random_weights(header.shape, 100 + number)
    return tensors


def random_weights(shape: tuple[int, ...], seed: int) -> Tensor:
    """Return seeded weights: vectors about 1, matrices that keep the scale of what they take."""
    noise = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return 1 + 0.3 * noise if len(shape) == 1 else noise / shape[-1] ** 0.5


def _is_pruned(tensors: Tensors) -> bool:
    return tensors["lm_head.weight"].shape[0] < golden.VOCAB


def spec_of(config: Config, tensors: Tensors) -> DraftSpec:
    """Return what the package makes of a draft."""
    headers = {name: TensorHeader("F32", tuple(value.shape)) for name, value in tensors.items()}
    return DraftSpec.of(config, headers)


def reference(
    config: Config,
    tensors: Tensors,
    told: Mapping[str, bool],
    inputs: tuple[Tensor, Tensor] | None = None,
    lent: tuple[Tensor, Tensor] | None = None,
) -> list[Tensor]:
    """Return the logits of the plain torch reference, which is `told` what the spec leaves open."""
    spec = spec_of(config, tensors)
    flags = replace(spec.flags, **told)
    draft = ReferenceDraft.from_spec(spec, tensors, *(lent or targets_own()), flags=flags)
    return draft.forward(*(inputs or golden.inputs()), golden.STEPS)
