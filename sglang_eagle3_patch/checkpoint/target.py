"""`TargetSpec`: what has to be known of the model that a draft speculates for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sglang_eagle3_patch.checkpoint.json_file import read_json_object

# Where configs of multimodal models keep their language model's, as SGLang looks for it.
_TEXT_CONFIGS = ("text_config", "llm_config", "language_config", "thinker_config")


@dataclass(frozen=True)
class TargetSpec:
    """One target model by its `config.json`; every size None is one that the config leaves out."""

    name: str
    config: Mapping[str, Any]

    @classmethod
    def read(cls, folder: Path, name: str | None = None) -> TargetSpec:
        """Read the `config.json` of `folder`.

        Raises `CheckpointUnreadable` naming the file that is missing or broken.
        """
        return cls(name or str(folder), read_json_object(folder / "config.json"))

    @property
    def text(self) -> Mapping[str, Any]:
        """The language model's part of the config, which may be all of it."""
        config = self.config
        for key in _TEXT_CONFIGS:
            nested = config.get(key)
            if isinstance(nested, Mapping):
                config = nested
        return config

    @property
    def wraps_a_language_model(self) -> bool:
        """Whether the language model's config is a part of the target's."""
        return self.text is not self.config

    @property
    def architectures(self) -> tuple[str, ...]:
        """The classes that the config names."""
        return _names(self.config.get("architectures"))

    @property
    def text_architectures(self) -> tuple[str, ...]:
        """The classes that the language model's config names."""
        return _names(self.text.get("architectures"))

    @property
    def hidden_size(self) -> int | None:
        """Width of one hidden state."""
        return _size(self.text.get("hidden_size"))

    @property
    def num_layers(self) -> int | None:
        """How many decoder layers the language model has."""
        return _size(self.text.get("num_hidden_layers"))

    @property
    def vocab_size(self) -> int | None:
        """How many tokens the target knows, padding included."""
        return _size(self.text.get("vocab_size"))

    @property
    def max_positions(self) -> int | None:
        """The longest context the config allows."""
        return _size(self.text.get("max_position_embeddings"))

    @property
    def has_latent_attention(self) -> bool:
        """Whether its attention is MLA."""
        return _size(self.text.get("kv_lora_rank")) is not None


def _names(value: Any) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, list) else ()


def _size(value: Any) -> int | None:
    return value if type(value) is int and value > 0 else None
