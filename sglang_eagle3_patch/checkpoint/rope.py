"""How a draft's config states its rotary positions, in either schema of transformers.

Formulas are those of `modeling_rope_utils.py` of transformers 5, and of DeepSeek-V2 for MLA.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# What every trainer and every engine takes when the config states none.
DEFAULT_THETA = 10000.0
_YARN = ("yarn", "deepseek_yarn")


class RopeUnavailable(ValueError):
    """A kind of rope whose formula isn't known here, or that is not fully stated."""


@dataclass(frozen=True)
class Rope:
    """Rotary positions. `theta` None is unstated; `scaling` is {} for plain rope.

    `partial` is the rotated part of a head (1.0 is all of it), None when unstated.
    """

    theta: float | None = None
    scaling: Mapping[str, Any] = field(default_factory=dict)
    partial: float | None = None

    @property
    def kind(self) -> str:
        """The rope type: `default`, `linear`, `llama3`, `yarn`, ..."""
        return str(self.scaling.get("rope_type", self.scaling.get("type", "default")))

    def frequencies(self, size: int) -> list[float]:
        """Return the `size / 2` angles per position, in radians, of `size` rotated elements.

        Raises `RopeUnavailable` for other kinds than default, linear, llama3 and yarn, for
        heads that are rotated in part, and for a parameter that is missing.
        """
        if self.partial not in (None, 1.0):
            raise RopeUnavailable(f"partial_rotary_factor is {self.partial}: whole heads only")
        theta = DEFAULT_THETA if self.theta is None else self.theta
        plain = [theta ** (-element / size) for element in range(0, size, 2)]
        if self.kind == "default":
            return plain
        if self.kind == "linear":
            kept = [0.0] * len(plain)
        elif self.kind == "llama3":
            kept = self._llama3_kept(plain)
        elif self.kind in _YARN:
            kept = self._yarn_kept(size, theta)
        else:
            raise RopeUnavailable(
                f"rope_type is {self.kind!r}; known: default, linear, llama3, yarn"
            )
        factor = self._stated("factor")
        return [f * (k + (1 - k) / factor) for f, k in zip(plain, kept, strict=True)]

    def amplitude(self, mla: bool) -> float:
        """Return the factor on cos and sin: 1, but for yarn."""
        if self.kind not in _YARN:
            return 1.0
        factor = self._stated("factor")
        if mla:
            return _mscale(factor, self._optional("mscale", 1.0)) / _mscale(
                factor, self._optional("mscale_all_dim", 0.0)
            )
        if self.scaling.get("attention_factor") is not None:
            return self._stated("attention_factor")
        mscale, all_dim = self._optional("mscale", 0.0), self._optional("mscale_all_dim", 0.0)
        if mscale and all_dim:
            return _mscale(factor, mscale) / _mscale(factor, all_dim)
        return _mscale(factor, 1.0)

    def softmax_scale(self, size: int, mla: bool) -> float:
        """Return the factor on attention scores of heads of `size` elements (MLA: nope + rope)."""
        if not mla or self.kind not in _YARN:
            return float(size**-0.5)
        all_dim = self._optional("mscale_all_dim", 0.0)
        return float(size**-0.5 * _mscale(self._stated("factor"), all_dim) ** 2)

    def _llama3_kept(self, plain: list[float]) -> list[float]:
        """How much of each frequency is kept: by its turns within the original context."""
        context = self._stated("original_max_position_embeddings")
        low, high = self._stated("low_freq_factor"), self._stated("high_freq_factor")
        turns = (context * frequency / (2 * math.pi) for frequency in plain)
        return [_clamp((turn - low) / (high - low)) for turn in turns]

    def _yarn_kept(self, size: int, theta: float) -> list[float]:
        """How much is kept: a ramp over the elements, from `beta_fast` to `beta_slow` turns."""
        context = self._stated("original_max_position_embeddings")

        def element(turns: float) -> float:
            return size * math.log(context / (turns * 2 * math.pi)) / (2 * math.log(theta))

        first = element(self._optional("beta_fast", 32.0))
        last = element(self._optional("beta_slow", 1.0))
        if self.scaling.get("truncate", True):
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, size - 1)
        width = last - first if last != first else 0.001
        return [1 - _clamp((index - first) / width) for index in range(size // 2)]

    def _stated(self, key: str) -> float:
        value = _number(self.scaling.get(key))
        if value is None:
            raise RopeUnavailable(f"{self.kind} rope needs {key}; the config states none")
        return value

    def _optional(self, key: str, default: float) -> float:
        return default if self.scaling.get(key) is None else self._stated(key)


def stated_rope(layer: Mapping[str, Any], *, old: bool = False) -> Rope:
    """Return the rope of the part of a config that describes the decoder layer.

    As transformers 5 reads it, or 4 when `old`. Both heed `rope_scaling` first; 5 then heeds
    `rope_parameters`. The theta of that mapping is 5's, which takes `rope_theta` from the top where
    the mapping has none, as 4 always does.
    """
    stated = _parameters(layer, old)
    theta = stated.pop("rope_theta", None)
    if theta is None or old:
        theta = layer.get("rope_theta")
    partial = stated.pop("partial_rotary_factor", layer.get("partial_rotary_factor"))
    plain = stated.get("rope_type", stated.get("type", "default")) == "default"
    return Rope(_number(theta), {} if plain else stated, _number(partial))


def stated_in_both_schemas(layer: Mapping[str, Any], theta: float) -> dict[str, Any]:
    """Return the keys that state the rope of `layer`, with this theta, to either transformers.

    That is `rope_theta` and `rope_parameters`, `rope_scaling` unless the rope is plain, and
    `partial_rotary_factor` where there is one: SGLang looks for it at the top.
    """
    stated = {key: value for key, value in _parameters(layer, False).items() if value is not None}
    stated.pop("rope_theta", None)
    partial = stated.pop("partial_rotary_factor", layer.get("partial_rotary_factor"))
    kind = stated.get("rope_type", stated.get("type", "default"))
    rope: dict[str, Any] = {
        "rope_theta": theta,
        "rope_parameters": {"rope_theta": theta, **stated, "rope_type": kind},
    }
    if kind != "default" or stated.keys() - {"rope_type", "type"}:
        rope["rope_scaling"] = {**stated, "rope_type": kind}
    if partial is not None:
        rope["rope_parameters"]["partial_rotary_factor"] = partial
        rope["partial_rotary_factor"] = partial
    return rope


def rope_mappings(layer: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the mappings in which a config states its rope."""
    places = (layer.get("rope_scaling"), layer.get("rope_parameters"))
    return [place for place in places if isinstance(place, Mapping)]


def is_by_layer(layer: Mapping[str, Any]) -> bool:
    """Whether the rope is stated for each type of layer by itself, which drafts don't have."""
    return any(isinstance(value, Mapping) for value in _parameters(layer, False).values())


def _parameters(layer: Mapping[str, Any], old: bool) -> dict[str, Any]:
    for key in ("rope_scaling",) if old else ("rope_scaling", "rope_parameters"):
        stated = layer.get(key)
        if isinstance(stated, Mapping) and stated:
            return {**stated}
    return {}


def _mscale(factor: float, mscale: float) -> float:
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0


def _clamp(x: float) -> float:
    return min(max(x, 0.0), 1.0)


def _number(value: Any) -> float | None:
    return float(value) if type(value) in (int, float) else None
