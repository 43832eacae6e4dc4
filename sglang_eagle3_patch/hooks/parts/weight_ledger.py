"""The accounting of one pass of weights: what came, what was filled, what was neither."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from sglang_eagle3_patch.checkpoint.layouts import NOT_WEIGHTS, canonical_name
from sglang_eagle3_patch.hooks.parts.expected_tensors import (
    BY_QUANTISATION,
    PACKED_LEAVES,
    SCALE_LEAVES,
    WEIGHT_LEAVES,
    Expected,
    inner_model,
)

Weights = Iterable[tuple[str, Any]]
# How speculators and ModelOpt call the norm of a later layer's input, SGLang's `hidden_norm`.
_LATER_INPUT_NORM = re.compile(r"^layers\.[1-9]\d*\.input_layernorm\.")
# Names that some draft has and an ordinary model has too.
_TARGETS_TOO = re.compile(r"^model\.|^(lm_head|embed_tokens|norm)\.")


def _other_name(name: str) -> str:
    """Return what other trainers call a tensor of the decoder layer; "" for any other tensor.

    Not behind `model.`, where a target has the same names.
    """
    for one, other in (("midlayer.", "layers.0."), ("layers.0.", "midlayer.")):
        if name.startswith(one):
            return other + name.removeprefix(one)
    return ""


@dataclass
class WeightLedger:
    """What became of the tensors of one call of a draft class's `load_weights`."""

    wanted: dict[str, Expected]
    uses_midlayer: bool
    quantised: bool = False
    seen: dict[str, str] = field(default_factory=dict)  # canonical name -> name in the file
    unused: list[str] = field(default_factory=list)
    misshapen: dict[str, str] = field(default_factory=dict)  # canonical name -> both shapes
    filled: set[tuple[str, Any]] = field(default_factory=set)
    kept_back: list[str] = field(default_factory=list)  # a draft's alone, in foreign company
    packed: set[str] = field(default_factory=set)  # modules whose weight came quantised

    @classmethod
    def for_draft(cls, draft: Any, wanted: dict[str, Expected]) -> WeightLedger:
        """Open a ledger for the draft model, whose decoder layer has one of two names."""
        return cls(
            wanted,
            uses_midlayer=hasattr(inner_model(draft), "midlayer"),
            quantised=getattr(draft, "quant_config", None) is not None,
        )

    def pass_on(self, weights: Weights) -> Iterator[tuple[str, Any]]:
        """Yield what fits the model under the names its class knows, and note the rest."""
        late: list[tuple[str, Any]] = []
        for name, tensor in weights:
            if _LATER_INPUT_NORM.search(canonical_name(name)):
                late.append((name, tensor))
            else:
                yield from self._pass_on_one(name, canonical_name(name), tensor)
        for name, tensor in late:
            canonical = canonical_name(name)
            renamed = canonical.replace("input_layernorm", "hidden_norm")
            # A file with both names has told which is which.
            taken = renamed in self.seen or renamed not in self.wanted
            yield from self._pass_on_one(name, canonical if taken else renamed, tensor)

    def _pass_on_one(self, name: str, canonical: str, tensor: Any) -> Iterator[tuple[str, Any]]:
        expected = self.wanted.get(canonical)
        module, _, leaf = canonical.rpartition(".")
        if leaf in ("weight", *PACKED_LEAVES) and _is_packed(tensor):
            self.packed.add(module)
        if expected is None and NOT_WEIGHTS.search(canonical):
            return
        if expected is None and self._belongs_to_quantisation(canonical):
            yield self._name_for_class(canonical), tensor
        elif expected is None:
            self.unused.append(f"{name} {list(tensor.shape)}")
        elif canonical in self.seen:
            self.unused.append(f"{name} (a second {self.seen[canonical]})")
        elif expected.shape is not None and tuple(tensor.shape) != expected.shape:
            self.seen[canonical] = name
            self.misshapen[canonical] = (
                f"{name} {list(tensor.shape)}, wanted {list(expected.shape)}"
            )
        else:
            self.seen[canonical] = name
            yield self._name_for_class(canonical), tensor

    def of_the_draft(self, bucket: Weights, names: frozenset[str]) -> Iterator[tuple[str, Any]]:
        """Yield what of a weight update is the draft's, and note the rest.

        `names` are those of the first load; without any (dummy weights), names that only a draft
        would have are taken. A bucket with a foreign name is the target's as a whole. Iterators
        are not looked through beforehand, they may hold a whole target. Names that a target has
        too (`lm_head.weight`) wait for the bucket's end: they are the draft's only in the company
        of one that no target has.
        """
        shared: list[tuple[str, Any]] = []
        known_company = False
        foreign = isinstance(bucket, (list, tuple)) and not all(
            self._is_own(name, names) for name, _ in bucket
        )
        for name, tensor in bucket:
            if not self._is_own(name, names):
                foreign = True
                self.unused.append(f"{name} {list(tensor.shape)}")
            elif _TARGETS_TOO.search(name):
                shared.append((name, tensor))
            elif foreign and isinstance(bucket, (list, tuple)):
                self.kept_back.append(name)
            else:
                known_company = True
                yield name, tensor
        for name, tensor in shared:
            if known_company and not foreign:
                yield name, tensor
            else:
                self.unused.append(f"{name} {list(tensor.shape)}")

    def _is_own(self, name: str, names: frozenset[str]) -> bool:
        canonical = canonical_name(name)
        if NOT_WEIGHTS.search(canonical):
            return True
        if names:
            return name in names or _other_name(name) in names
        return canonical in self.wanted and name[:6] != "model."

    def missing(self) -> list[str]:
        """Return what the model needs and the weights did not bring."""
        return [
            f"{name} {list(expected.shape) if expected.shape else ''}".rstrip()
            for name, expected in self.wanted.items()
            if name not in self.seen and not self._may_be_missing(name, expected)
        ]

    def _may_be_missing(self, name: str, expected: Expected) -> bool:
        module, _, leaf = name.rpartition(".")
        # A method that quantises while loading makes its own scales; of weights that come
        # quantised nobody else knows them.
        if expected.optional == BY_QUANTISATION and leaf in SCALE_LEAVES:
            return module not in self.packed
        return bool(expected.optional)

    def dropped(self) -> list[str]:
        """Return what was handed to the class and reached no parameter of it."""
        return [
            self.seen[name]
            for name, expected in self.wanted.items()
            if name in self.seen
            and name not in self.misshapen
            and expected.parameter
            and (expected.parameter, expected.shard) not in self.filled
        ]

    @contextmanager
    def watching(self, draft: Any) -> Iterator[None]:
        """Note every call of a parameter's weight loader, so that filling is seen, not assumed."""
        from sglang.srt.model_loader.weight_utils import default_weight_loader

        replaced: list[tuple[Any, Any]] = []
        for name, parameter in draft.named_parameters():
            own = getattr(parameter, "weight_loader", None)
            loader = own or default_weight_loader
            try:
                parameter.weight_loader = self._noting(name, loader)
            except AttributeError:
                # A quantised parameter whose loader can't be replaced: its own word is taken.
                self.filled.update((name, shard) for shard in ("q", "k", "v", 0, 1, None))
            else:
                replaced.append((parameter, own))
        try:
            yield
        finally:
            for parameter, own in replaced:
                if own is None:
                    del parameter.weight_loader
                else:
                    parameter.weight_loader = own

    def _belongs_to_quantisation(self, canonical: str) -> bool:
        # What else a method takes is its own affair. A weight's scale is not: what the class has
        # no place for it drops, and serves the weight without it.
        leaf = canonical.rpartition(".")[2]
        return self.quantised and leaf not in (*WEIGHT_LEAVES, *SCALE_LEAVES, "d2t")

    def _noting(self, name: str, loader: Any) -> Any:
        def note_and_load(parameter: Any, tensor: Any, *shard: Any, **kwargs: Any) -> Any:
            result = loader(parameter, tensor, *shard, **kwargs)
            self.filled.add((name, shard[0] if shard else None))
            return result

        return note_and_load

    def _name_for_class(self, canonical: str) -> str:
        if self.uses_midlayer and canonical.startswith("layers.0."):
            return "midlayer." + canonical.removeprefix("layers.0.")
        return canonical


def _is_packed(tensor: Any) -> bool:
    """Whether the numbers are quantised ones: integers, or floats of a byte."""
    return not tensor.dtype.is_floating_point or tensor.dtype.itemsize == 1
