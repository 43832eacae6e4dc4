"""`DraftSpec`: everything known about one draft checkpoint, as one value."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from sglang_eagle3_patch.checkpoint import config as configs
from sglang_eagle3_patch.checkpoint import config_keys
from sglang_eagle3_patch.checkpoint.config_file import read_config
from sglang_eagle3_patch.checkpoint.flags import DraftFlags, draft_flags
from sglang_eagle3_patch.checkpoint.header import CheckpointUnreadable, TensorHeader, read_folder
from sglang_eagle3_patch.checkpoint.layouts import canonical_name, is_known
from sglang_eagle3_patch.checkpoint.producers import Producer, recognise
from sglang_eagle3_patch.checkpoint.rope import Rope
from sglang_eagle3_patch.checkpoint.sizes import DraftSizes, shaped_sizes, stated_sizes
from sglang_eagle3_patch.checkpoint.trained_rope import NOTHING_TOLD, ToldRope, TrainedRope, resolve

# A draft of one layer with 384 packed experts has 3 500; its target, 208 000.
_MOST_TENSORS = 20_000


@dataclass(frozen=True)
class DraftSpec:
    """One draft checkpoint.

    `config` is as written, `tensors` are under canonical names, `names` maps each name as written
    to its canonical one. `told_rope` is the user's own word on its rope. All the rest is
    read off these; None is "not stated", never a guess.
    """

    folder: Path
    config: Mapping[str, Any]
    tensors: Mapping[str, TensorHeader]
    names: Mapping[str, str] = field(default_factory=dict)
    told_rope: ToldRope = NOTHING_TOLD

    @classmethod
    def read(cls, folder: Path) -> DraftSpec:
        """Read `config.json` and the safetensors headers of `folder`; no weights are read.

        Raises `CheckpointUnreadable` naming the file that is missing or broken.
        """
        config = read_config(folder / "config.json")
        return cls.of(config, read_folder(folder), folder)

    @classmethod
    def of(
        cls, config: Mapping[str, Any], headers: Mapping[str, TensorHeader], folder: Path = Path()
    ) -> DraftSpec:
        """Return the spec of a draft given its config and its headers under any names.

        Raises `CheckpointUnreadable` for more tensors than a draft has.
        """
        if len(headers) > _MOST_TENSORS:
            raise CheckpointUnreadable(
                f"{folder} holds {len(headers)} tensors: a whole model, no draft. "
                "Fix: give the draft's folder."
            )
        names = {name: canonical_name(name) for name in headers}
        return cls(folder, config, {names[name]: headers[name] for name in headers}, names)

    @property
    def is_eagle3(self) -> bool:
        """Whether the config is an EAGLE-3 draft's."""
        return configs.is_eagle3(self.config)

    @property
    def layer_config(self) -> Mapping[str, Any]:
        """The part of the config that describes the decoder layer: speculators nests it."""
        nested = self.config.get("transformer_layer_config")
        return nested if isinstance(nested, Mapping) else self.config

    @property
    def producer(self) -> Producer:
        """Who wrote the draft; `producers.UNKNOWN` when nothing tells."""
        return recognise(self.config, tuple(self.names) or tuple(self.tensors))

    @property
    def flags(self) -> DraftFlags:
        """The switches of the draft's forward."""
        return draft_flags(self.config, self.layer_config, self.tensors, self.producer)

    @property
    def attention(self) -> Literal["mha", "mla"] | None:
        """The kind of attention: by the tensors, without any by the architecture."""
        if any(".self_attn.kv_a_proj_with_mqa." in name for name in self.tensors):
            return "mla"
        if any(".self_attn.k_proj." in name for name in self.tensors):
            return "mha"
        architectures = self.config.get("architectures") or []
        if self.tensors or not self.is_eagle3:
            return None
        return "mla" if "Eagle3DeepseekV2ForCausalLM" in architectures else "mha"

    @property
    def layer_numbers(self) -> tuple[int, ...]:
        """The numbers of the decoder layers in the file, ascending."""
        found = (re.match(r"layers\.(\d+)\.", name) for name in self.tensors)
        return tuple(sorted({int(match[1]) for match in found if match}))

    @property
    def num_layers(self) -> int | None:
        """How many decoder layers the file holds; the config may state another number."""
        return len(self.layer_numbers) if self.tensors else None

    @property
    def stated_sizes(self) -> DraftSizes:
        """The sizes by the config."""
        return stated_sizes(self.config, self.layer_config)

    @property
    def shaped_sizes(self) -> DraftSizes:
        """The sizes by the tensors' shapes."""
        return shaped_sizes(self.tensors, self.stated_sizes)

    @property
    def sizes(self) -> DraftSizes:
        """The sizes by the shapes, and by the config where shapes don't tell."""
        return self.shaped_sizes.or_else(self.stated_sizes)

    @property
    def trained_rope(self) -> TrainedRope:
        """The rotary positions that it was trained with, and who says so."""
        return resolve(self.layer_config, self.producer, self.told_rope)

    @property
    def rope(self) -> Rope:
        """The rotary positions that it was trained with."""
        return self.trained_rope.rope

    @property
    def norm_eps(self) -> float | None:
        """Epsilon of every RMS norm."""
        eps = self.layer_config.get("rms_norm_eps")
        return float(eps) if isinstance(eps, (int, float)) else None

    @property
    def activation(self) -> str | None:
        """The MLP's activation."""
        name = self.layer_config.get("hidden_act")
        return name if isinstance(name, str) else None

    @property
    def max_positions(self) -> int | None:
        """The longest context the config allows."""
        positions = self.layer_config.get("max_position_embeddings")
        return positions if type(positions) is int else None

    @property
    def tie_word_embeddings(self) -> bool | None:
        """Whether the config says that the head is the embedding.

        The top level of speculators is about the draft; its nested layer's word is not.
        """
        tied = self.config.get("tie_word_embeddings")
        return tied if isinstance(tied, bool) else None

    @property
    def has_embedding(self) -> bool:
        """Whether the file holds an embedding of its own."""
        return "embed_tokens.weight" in self.tensors

    @property
    def has_head(self) -> bool:
        """Whether the file holds a head of its own."""
        return "lm_head.weight" in self.tensors

    @property
    def has_d2t(self) -> bool:
        """Whether the file maps draft ids to target ids."""
        return "d2t" in self.tensors

    @property
    def has_t2d(self) -> bool:
        """Whether the file marks the target ids that the draft knows."""
        return "t2d" in self.tensors

    @property
    def unknown_keys(self) -> tuple[str, ...]:
        """Keys of the config nobody knows, as dotted paths."""
        return config_keys.unknown_keys(self.config)

    @property
    def unknown_tensors(self) -> tuple[str, ...]:
        """Canonical names that no layout has: another architecture's, or a new producer's."""
        return tuple(sorted(name for name in self.tensors if not is_known(name)))

    @property
    def name_clashes(self) -> tuple[str, ...]:
        """Canonical names that several tensors of the file mean."""
        return tuple(sorted(n for n, count in Counter(self.names.values()).items() if count > 1))

    @property
    def target_hidden_size(self) -> int | None:
        """Width of one aux hidden state, None when the config does not say."""
        return self.stated_sizes.target_hidden

    @property
    def num_aux(self) -> int | None:
        """How many aux hidden states `fc` takes, None without an `fc` or when it doesn't fit."""
        return self.shaped_sizes.num_aux
