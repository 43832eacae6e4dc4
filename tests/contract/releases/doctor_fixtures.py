"""The drafts for which the doctor's verdicts are compared with what SGLang's classes do.

For each rule the draft that breaks it (`tests/unit/doctor/broken.py`), filled with the golden
files' weights; what the trainers wrote; the trained pair in its forms. Those of `fidelity_cells`
are compared too, by what `fidelity.json` holds of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from safetensors.torch import load_file
from torch import Tensor

from sglang_eagle3_patch.checkpoint.config_keys import never_computed
from sglang_eagle3_patch.checkpoint.target import TargetSpec
from sglang_eagle3_patch.parity.compare import random_inputs
from sglang_eagle3_patch.reference import ReferenceUnavailable
from tests.contract.drafts import drop, prefixed
from tests.contract.releases.fidelity_cells import (
    NOBODY,
    REFERENCE,
    Cell,
    Config,
    filled,
    random_weights,
    reference,
    spec_of,
)
from tests.cpu_sglang.pair import forms
from tests.cpu_sglang.pair.forms import Tensors
from tests.oracles import golden_files as golden
from tests.unit.doctor.broken import BROKEN
from tests.unit.doctor.cases import TARGET

Side = Literal["stock", "plugin"]
CHECKPOINTS = Path(__file__).parents[2] / "checkpoints"

_BEYOND = "tests/contract/test_doctor_beyond_classes.py"
_BY_THE_SERVER = "given to the server at its start, which no draft class sees"
_BY_THE_TARGET = "a matter of the target's class: tests/contract/test_facts_of_releases.py"
_BY_THE_WORKER = f"the worker sets what is captured: {_BEYOND}"
_BY_THE_FILES = "the server finds and opens the files, a draft class is given tensors"
# What a draft class can't show, and why. Its rules don't count where a class is looked at.
NOT_OF_A_CLASS: Mapping[str, str] = {
    "E3-files-weights": f"{_BY_THE_FILES}: {_BEYOND}",
    "E3-files-values-unread": "a hub draft, whose values nobody reads",
    "E3-files-quantised": "quantised layers are built and filled by the server's loader",
    "E3-vocab-target": f"tokens of the target: {_BEYOND}",
    "E3-layers-unreadable": _BY_THE_WORKER,
    "E3-layers-place": _BY_THE_WORKER,
    "E3-layers-captured": _BY_THE_WORKER,
    "E3-layers-order": _BY_THE_WORKER,
    "E3-layers-range": _BY_THE_WORKER,
    "E3-layers-last": _BY_THE_WORKER,
    "E3-layers-graphs": f"the runner sets the layers, and when: {_BEYOND}",
    "E3-window-untrained": f"{_BY_THE_SERVER}: {_BEYOND}",
    "E3-rope-mrope": f"a batch's positions of three kinds are the server's: {_BEYOND}",
    "E3-context-short": f"the server compares the contexts of draft and target: {_BEYOND}",
    "E3-context-untrained": f"positions beyond the trained ones: {_BEYOND}",
    "E3-target-class": _BY_THE_TARGET,
    "E3-target-capture": f"{_BY_THE_TARGET}, {_BEYOND}",
    "E3-target-embedding": f"{_BY_THE_TARGET}, {_BEYOND}",
    "E3-target-recorded": _BY_THE_TARGET,
    "E3-target-name": _BY_THE_TARGET,
    "E3-launch-algorithm": f"{_BY_THE_SERVER}: {_BEYOND}",
    "E3-launch-no-speculation": f"{_BY_THE_SERVER}: {_BEYOND}",
    "E3-launch-flags": f"{_BY_THE_SERVER}: {_BEYOND}",
    "E3-launch-quantization": f"{_BY_THE_SERVER}: {_BEYOND}",
    "E3-launch-structure": f"{_BY_THE_SERVER}: {_BEYOND}",
    "E3-launch-computation": f"{_BY_THE_SERVER}: {_BEYOND}",
    "E3-launch-load-format": f"{_BY_THE_SERVER}: {_BEYOND}",
    "E3-launch-pipeline": f"{_BY_THE_SERVER}: {_BEYOND}",
    "E3-launch-backend": _BY_THE_SERVER,
    "E3-engine-positions": "the worker sets the positions: tests/server/test_matrix.py",
    "E3-engine-release": "no such release can be looked at",
}
# Their broken drafts show nothing in the few rows looked at; cells of `fidelity_cells` show them.
SHOWN_BY_CELLS: Mapping[str, str] = {
    "E3-window-unserved": "speculators 0.9.0 | layers.0 | window",
    "E3-rope-partial": "SpecForge 0.2.0 | midlayer | rope_parameters.partial_rotary_factor: 0.5",
}


@dataclass(frozen=True)
class Fixture:
    """A draft as it is written, the target it is judged beside, and what it was trained to compute.

    `cell.wanted` are the logits of all rows, `tokens` the target ids that the head's rows stand
    for, None where nothing computes them: such a draft can only be refused. `states` are how many
    aux hidden states the target hands over with the plugin, `stock_states` without.
    """

    cell: Cell
    target: TargetSpec
    tokens: Tensor | None
    states: int
    stock_states: int

    @property
    def name(self) -> str:
        return self.cell.flags

    def inputs(self, side: Side) -> tuple[Tensor, Tensor]:
        """Return the states `[T, A * Ht]` that the target hands over, and the tokens."""
        width = self.target.hidden_size or 0
        return _inputs(width * (self.states if side == "plugin" else self.stock_states))


def _inputs(width: int) -> tuple[Tensor, Tensor]:
    """Return states `[T, width]`, the first columns of which are the same for every width."""
    widest = 2 * golden.AUX * 2 * golden.HIDDEN
    states, tokens = random_inputs(widest, golden.VOCAB, golden.STEPS, seed=5)
    return states[:, :width], tokens


def fixtures() -> list[Fixture]:
    """Return all of them."""
    return [*_broken(), *_trainers(), *_pair()]


def _fixture(
    name: str,
    config: Config,
    tensors: Tensors,
    *,
    target: TargetSpec,
    written: Tensors | None = None,
    trained: Config | None = None,
    own_embedding: bool = False,
) -> Fixture:
    """Return the fixture of a draft with these tensors, of which `written` is what became.

    `trained` is the config it was trained by, if that is another one. Its embedding is the
    target's unless it is its own.
    """
    spec = spec_of(config, tensors)
    fc = spec.tensors.get("fc.weight")
    lent = _lent({} if own_embedding else tensors, target)
    wanted = None
    if fc is not None and not never_computed(config) and not spec.unknown_keys:
        told = dict.fromkeys(spec.flags.unstated, False)
        try:
            wanted = reference(trained or config, tensors, told, _inputs(fc.shape[1]), lent=lent)
        except (ReferenceUnavailable, RuntimeError):  # torch: the shapes are of another draft
            wanted = None
    nested = config.get("eagle_config", {})
    ids = nested.get("eagle_aux_hidden_state_layer_ids")
    states = len(ids) if ids else golden.AUX
    return Fixture(
        Cell(
            "",
            name,
            config,
            tensors if written is None else written,
            wanted,
            NOBODY if wanted is None else REFERENCE,
            lent=lent,
        ),
        target,
        _tokens(tensors),
        states,
        # Without aux states stock hands over the target's last hidden state.
        states if nested.get("use_aux_hidden_state", True) else 1,
    )


def _lent(tensors: Tensors, target: TargetSpec) -> tuple[Tensor, Tensor]:
    """Return the target's embedding and head; the embedding is the draft's where it has one."""
    shape = (golden.VOCAB, target.hidden_size or 0)
    embedding = tensors.get("embed_tokens.weight")
    if embedding is None or embedding.shape != shape:
        embedding = random_weights(shape, 2)
    return embedding.float(), random_weights(shape, 1)


def _tokens(tensors: Tensors) -> Tensor | None:
    d2t = next((value for name, value in tensors.items() if name.endswith("d2t")), None)
    head = next((value for name, value in tensors.items() if name.endswith("lm_head.weight")), None)
    if d2t is not None:
        return d2t + torch.arange(len(d2t))
    whole = head is None or len(head) == golden.VOCAB
    return torch.arange(golden.VOCAB) if whole else None


def _changed(name: str, change: Callable[[Tensor], Tensor]) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {**tensors, name: change(tensors[name])}


def _untrained(tensors: Tensors) -> Tensors:
    return {
        name: torch.ones_like(value) if name.startswith("layers.") and value.dim() == 1 else value
        for name, value in tensors.items()
    }


# What headers alone don't say of the files that break a rule.
_VALUES: Mapping[str, Callable[[Tensors], Tensors]] = {
    "E3-files-dtypes": _changed(
        "midlayer.mlp.up_proj.weight", lambda weight: weight.to(torch.float8_e4m3fn)
    ),
    "E3-files-not-finite": _changed("norm.weight", lambda norm: norm * torch.nan),
    "E3-files-untrained": _untrained,
    "E3-names-clash": _changed("layers.0.hidden_norm.weight", lambda norm: 2 * norm),
    "E3-vocab-map-absolute": _changed("d2t", lambda d2t: d2t + torch.arange(len(d2t))),
    "E3-vocab-map-values": _changed("d2t", torch.zeros_like),
    "E3-vocab-map-shape": _changed("d2t", Tensor.float),
    "E3-vocab-marks": _changed("t2d", lambda marks: torch.ones(len(marks), dtype=torch.bool)),
}
_TRAINED_BY: Mapping[str, Config] = {"E3-rope-untrained": {"rope_theta": 10000.0}}


def _broken() -> Iterator[Fixture]:
    for name, row in BROKEN.items():
        if name in NOT_OF_A_CLASS or name in SHOWN_BY_CELLS:
            continue
        config = dict(row.case.draft.config)
        headers = {
            written: row.case.draft.tensors[canonical]
            for written, canonical in row.case.draft.names.items()
        }
        tensors = filled(headers)
        damage = _VALUES.get(name, lambda tensors: tensors)
        target = row.case.target or TARGET
        yield _fixture(
            name,
            config,
            tensors,
            target=target,
            written=damage(tensors),
            trained={**config, **_TRAINED_BY.get(name, {})},
            own_embedding=name == "E3-vocab-embedding-overwritten",
        )


def _trainers() -> Iterator[Fixture]:
    for folder in sorted(CHECKPOINTS.iterdir()):
        config = json.loads((folder / "config.json").read_text())
        yield _fixture(folder.name, config, load_file(folder / "model.safetensors"), target=TARGET)


def _pair() -> Iterator[Fixture]:
    target = TargetSpec.read(forms.TARGET)
    made = {
        **{name: make() for name, make in forms.FORMS.items()},
        "founding-weak": forms.founding_weak(),
        "mla": forms.mla(),
        "mla-weak": forms.mla_weak(),
    }
    tensors, config = forms.founding()
    for prefix in ("model.", "module."):
        made[f"prefixed with {prefix}"] = prefixed(prefix)(tensors), config
    for name, (tensors, config) in made.items():
        yield _fixture(f"pair, {name}", config, tensors, target=target)
    tensors, config = forms.native()
    lacking = drop("midlayer.self_attn.k_proj.weight")(tensors)
    yield _fixture("pair, without k", config, tensors, target=target, written=lacking)
