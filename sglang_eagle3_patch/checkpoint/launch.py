"""`LaunchArguments`: what of SGLang's command line matters to a draft."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

# SGLang's own word for "serve a context that is longer than the config allows".
LONGER_CONTEXT = "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"
_SPECULATIVE = "--speculative-"
# Field of `LaunchArguments` to the flags that fill it.
_TEXTS = {
    "model_path": ("--model-path", "--model"),
    "algorithm": ("--speculative-algorithm",),
    "revision": ("--revision",),
    "draft_model_path": ("--speculative-draft-model-path", "--speculative-draft-model"),
    "draft_revision": ("--speculative-draft-model-revision",),
    "quantization": ("--quantization",),
    "draft_quantization": ("--speculative-draft-model-quantization",),
    "load_format": ("--load-format",),
    "draft_load_format": ("--speculative-draft-load-format",),
    "draft_attention_backend": ("--speculative-draft-attention-backend",),
    "_overrides": ("--json-model-override-args",),
    "_aux_layers": ("--eagle3-aux-layers",),
}
_NUMBERS = {
    "context_length": ("--context-length",),
    "draft_window": ("--speculative-draft-window-size",),
    "pipeline_stages": ("--pp-size", "--pipeline-parallel-size"),
}
_SWITCHES = {"graphs_disabled": ("--disable-cuda-graph",)}
_FIELDS = {flag: name for name, flags in (_TEXTS | _NUMBERS | _SWITCHES).items() for flag in flags}


@dataclass(frozen=True)
class LaunchArguments:
    """The arguments of one launch; None is one that isn't given.

    `given`: all of them, as typed. `speculative`: the `--speculative-*` flags as typed, with what
    each is to argparse, None where it is nothing or several. `overrides`: the object of
    `--json-model-override-args`. `longer_context_allowed`: by the environment.
    `aux_layers`: those that the user names, by our launcher's flag or the plugin's option.
    """

    given: tuple[str, ...] = ()
    speculative: Mapping[str, str | None] = field(default_factory=dict)
    model_path: str | None = None
    algorithm: str | None = None
    revision: str | None = None
    draft_model_path: str | None = None
    draft_revision: str | None = None
    quantization: str | None = None
    draft_quantization: str | None = None
    load_format: str | None = None
    draft_load_format: str | None = None
    draft_attention_backend: str | None = None
    context_length: int | None = None
    draft_window: int | None = None
    pipeline_stages: int | None = None
    graphs_disabled: bool = False
    overrides: Mapping[str, Any] = field(default_factory=dict)
    longer_context_allowed: bool = False
    aux_layers: tuple[int, ...] | None = None

    @classmethod
    def parse(
        cls,
        arguments: Sequence[str],
        known_flags: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> LaunchArguments:
        """Read what matters and pass over the rest.

        `known_flags` are the release's `--speculative-*` flags. Like argparse, an unambiguous
        beginning stands for its flag. A value of the wrong kind is SGLang's to refuse.
        """
        flags = {*_FIELDS, *known_flags}
        found: dict[str, Any] = {}
        speculative: dict[str, str | None] = {}
        for place, argument in enumerate(arguments):
            if not argument.startswith("--"):
                continue
            typed, joined, value = argument.partition("=")
            flag = _meant(typed, flags)
            if typed.startswith(_SPECULATIVE):
                known = flag if flag in known_flags or not known_flags else None
                speculative[typed] = known
            if not joined:
                value = arguments[place + 1] if place + 1 < len(arguments) else ""
            name = _FIELDS.get(flag or "")
            if name is not None:
                found[name] = _read(name, value)
        variable = (environment or {}).get(LONGER_CONTEXT, "").lower()
        return cls(
            given=tuple(arguments),
            speculative=speculative,
            overrides=found.pop("_overrides", {}),
            aux_layers=found.pop("_aux_layers", None),
            longer_context_allowed=variable in ("1", "true", "yes", "y"),
            **found,
        )


def is_same_option(typed: str, flag: str) -> bool:
    """Whether `typed`, a flag or the beginning of one, is an option of this module's `flag`."""
    meant = _meant(typed, set(_FIELDS))
    return typed == flag or (meant is not None and _FIELDS[meant] == _FIELDS.get(flag))


def _meant(typed: str, flags: set[str]) -> str | None:
    if typed in flags:
        return typed
    meant = {flag for flag in flags if flag.startswith(typed)}
    # Two names of one option are one.
    fields = {_FIELDS.get(flag, flag) for flag in meant}
    return sorted(meant)[0] if len(fields) == 1 else None


def _read(name: str, value: str) -> Any:
    if name in _SWITCHES:
        return True
    if name in _NUMBERS:
        return int(value) if value.isdigit() else None
    if name == "_overrides":
        try:
            overrides = json.loads(value)
        except ValueError:
            return {}
        return overrides if isinstance(overrides, dict) else {}
    if name == "_aux_layers":
        numbers = value.split(":")
        return tuple(map(int, numbers)) if all(n.isdigit() for n in numbers) else None
    return value
