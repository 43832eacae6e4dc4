"""What a draft computes beyond its weights: the switches its trainer had on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sglang_eagle3_patch.checkpoint.header import TensorHeader
from sglang_eagle3_patch.checkpoint.producers import Producer


@dataclass(frozen=True)
class DraftFlags:
    """Switches of the draft's forward; None is unstated and not to be had from its producer.

    norm_before_residual: the residual of layer 0 is the normed hidden state, not the raw one.
    norm_before_fc: one norm over all aux states before `fc` (`input_norm`).
    fc_norm: one norm for each aux state before `fc` (`fc_norm.N`).
    norm_before_head: `norm` goes before the head; false in SpecForge's old `norm_output: false`.
    norm_output: what recurs to the next step is normed, as speculators and SGLang mean it.
    double_input_norm: layer 0 puts the hidden state through `input_layernorm`, then `hidden_norm`.
    window: keys a query sees in `window_layers`, itself included; None is all of them.
    qk_norm, *_bias: whether the tensors are there; None without tensors.
    """

    norm_before_residual: bool | None = None
    norm_before_fc: bool | None = None
    fc_norm: bool | None = None
    norm_before_head: bool | None = None
    norm_output: bool | None = None
    double_input_norm: bool = False
    window: int | None = None
    window_layers: tuple[int, ...] = ()
    qk_norm: bool | None = None
    qkv_bias: bool | None = None
    o_bias: bool | None = None
    mlp_bias: bool | None = None
    fc_bias: bool | None = None

    @property
    def unstated(self) -> tuple[str, ...]:
        """The flags whose None leaves the forward undefined."""
        return tuple(name for name in _DEFINING if getattr(self, name) is None)


_DEFINING = (
    "norm_before_residual",
    "norm_before_fc",
    "fc_norm",
    "norm_before_head",
    "norm_output",
)


def stated_flag(config: Mapping[str, Any], *names: str) -> bool | None:
    """Return the first of the named flags that the config states, None when it states none.

    `eagle_config` goes before the top level, as in SGLang 0.5.23.
    """
    nested = config.get("eagle_config")
    for place in (nested if isinstance(nested, Mapping) else {}, config):
        for name in names:
            if isinstance(place.get(name), bool):
                return bool(place[name])
    return None


def norm_output_alone(config: Mapping[str, Any]) -> bool | None:
    """Return what `norm_output` is where nothing else says what recurs; else None."""
    if stated_flag(config, "return_hidden_post_norm") is not None:
        return None
    return stated_flag(config, "norm_output")


def undated_flag(
    config: Mapping[str, Any], producer: Producer
) -> Literal["norm_output", "norm_before_head"] | None:
    """Return the flag that the draft's date decides, which its file doesn't tell; None: none.

    SpecForge's `norm_output` switched the norm before the head until September 2026 and never
    normed what recurs; since then it switches what recurs, and the norm before the head is always
    on. `return_hidden_post_norm` says what recurs, whoever wrote it.
    """
    stated = norm_output_alone(config)
    if producer.norm_output != "head" or stated is None:
        return None
    return "norm_output" if stated else "norm_before_head"


def draft_flags(
    config: Mapping[str, Any],
    layer: Mapping[str, Any],
    tensors: Mapping[str, TensorHeader],
    producer: Producer,
) -> DraftFlags:
    """Return the flags of a draft.

    A flag is what the config states; else what tensors under canonical names show; else what
    its producer always does.
    """
    residual = stated_flag(config, "norm_before_residual")
    before_fc = stated_flag(config, "norm_before_fc")
    fc_norm = stated_flag(config, "fc_norm", "use_aux_norm")
    before_head, recurs = _final_norm(config, producer)
    window, window_layers = _window(layer)
    return DraftFlags(
        norm_before_residual=producer.norm_before_residual if residual is None else residual,
        norm_before_fc=_or_tensor(before_fc, tensors, "input_norm.weight"),
        fc_norm=_or_tensor(fc_norm, tensors, "fc_norm."),
        norm_before_head=before_head,
        norm_output=recurs,
        double_input_norm=producer.double_input_norm,
        window=window,
        window_layers=window_layers,
        qk_norm=_or_tensor(None, tensors, ".self_attn.q_norm.weight"),
        qkv_bias=_or_tensor(None, tensors, *(f".{p}_proj.bias" for p in "qkv")),
        o_bias=_or_tensor(None, tensors, ".o_proj.bias"),
        mlp_bias=_or_tensor(None, tensors, *(f".{p}_proj.bias" for p in ("gate", "up", "down"))),
        fc_bias=_or_tensor(None, tensors, "fc.bias"),
    )


def _final_norm(config: Mapping[str, Any], producer: Producer) -> tuple[bool | None, bool | None]:
    """Return whether `norm` goes before the head, and whether what recurs is normed.

    `return_hidden_post_norm` says what recurs, whoever wrote it.
    """
    output = stated_flag(config, "norm_output", "return_hidden_post_norm")
    explicit = stated_flag(config, "return_hidden_post_norm") is not None
    if output is None or explicit or producer.norm_output != "head":
        last_norm = stated_flag(config, "use_last_layernorm")
        return last_norm is not False, bool(output)
    # By either meaning `true` leaves the norm before the head on, and `false` what recurs unnormed.
    return (True, None) if output else (None, False)


def _or_tensor(
    stated: bool | None, tensors: Mapping[str, TensorHeader], *parts: str
) -> bool | None:
    if stated is not None or not tensors:
        return stated
    return any(part in name for name in tensors for part in parts)


def _window(layer: Mapping[str, Any]) -> tuple[int | None, tuple[int, ...]]:
    """A window counts for the layers that `layer_types` names, as in speculators' trainer.

    A list longer than the draft has layers is the target's, copied along; nobody windows by it.
    """
    types, size = layer.get("layer_types"), layer.get("sliding_window")
    if not isinstance(types, list) or len(types) != layer.get("num_hidden_layers"):
        return None, ()
    layers = tuple(i for i, kind in enumerate(types) if kind == "sliding_attention")
    return (size, layers) if layers and type(size) is int and size > 0 else (None, ())
