"""The one table of our environment variables, and how they are read."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

PREFIX = "SGLANG_EAGLE3_PATCH"
ACCEPT_LOG_CHOICES = ("step", "interval", "off")
_TRUE = ("1", "true", "yes", "on", "all")
_FALSE = ("", "0", "false", "no", "off")


class SettingsError(ValueError):
    """A variable of ours holds something it can't hold; the text says what it can."""


@dataclass(frozen=True, kw_only=True)
class Variable:
    """One environment variable: its full name and, for the documentation, what it does."""

    name: str
    default: str
    meaning: str


VARIABLES = (
    Variable(
        name=PREFIX,
        default="unset",
        meaning="`1` turns every patch on, `name,name` only those, `-name` all but those; "
        "unset or `0`: inert",
    ),
    Variable(
        name=f"{PREFIX}_STRICT",
        default="0 (1 under our launcher)",
        meaning="`1`: a patch that can't be applied stops the process instead of warning",
    ),
    Variable(
        name=f"{PREFIX}_STATUS_DIR",
        default="unset (a temporary folder under our launcher)",
        meaning="folder in which each process writes what became of its patches, as JSON",
    ),
    Variable(
        name=f"{PREFIX}_ACCEPT_LOG",
        default="interval (step under our launcher)",
        meaning="`step`: a line per verify step; `interval`: one per decode log interval; `off`",
    ),
    Variable(
        name=f"{PREFIX}_TRACE",
        default="unset",
        meaning="file to which each verify step is written as a line of JSON; `docs/acceptance.md`",
    ),
    Variable(
        name=f"{PREFIX}_STALL_S",
        default="300",
        meaning="how many seconds without progress it takes for a start to tell where it waits, "
        "`0`: never; `docs/startup.md`",
    ),
    Variable(
        name=f"{PREFIX}_OPTIONS",
        default="unset",
        meaning="`key=value,…`; keys: `aux_layers=2:30:58` names the target layers whose inputs "
        "the draft was trained on; `rope_theta=10000` is the theta it was trained with, whatever "
        "its config says, and `rope_scaling=stated` keeps a scaling that the draft wasn't trained "
        "with; `trace_requests=1` has the trace name requests; `trace_mb=256` "
        "and `trace_files=4` bound it; `alarm_steps=200` is how many verify steps it takes to "
        "warn that nothing is accepted, `0`: never; `stall_s=300` is the variable above, which "
        "wins",
    ),
)


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Which patches are wanted. `named` are those the user asked for by name; `off`: none."""

    off: bool = False
    named: frozenset[str] = frozenset()
    excluded: frozenset[str] = frozenset()

    def wants(self, name: str) -> bool:
        """Whether the patch `name` is selected."""
        if self.off:
            return False
        return name in self.named if self.named else name not in self.excluded

    @classmethod
    def parse(cls, text: str) -> Selection:
        """Parse `1`, `a,b` or `-a,-b`; raises `SettingsError` when the two forms are mixed."""
        words = [word.strip() for word in text.split(",") if word.strip()]
        if len(words) == 1 and words[0].lower() in (*_TRUE, *_FALSE):
            return cls(off=words[0].lower() in _FALSE)
        excluded = frozenset(word[1:] for word in words if word.startswith("-"))
        named = frozenset(word for word in words if not word.startswith("-")) - frozenset(_TRUE)
        if named and excluded:
            raise SettingsError(
                f"{PREFIX}={text!r} mixes patches to turn on with patches to leave out. "
                "Fix: name only the ones wanted, or only the ones unwanted with a leading '-'."
            )
        return cls(named=named, excluded=excluded)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What the environment asks of us."""

    selection: Selection = field(default_factory=Selection)
    strict: bool = False
    status_dir: str | None = None
    accept_log: str = "interval"
    trace: str | None = None
    aux_layers: tuple[int, ...] | None = None
    rope_theta: float | None = None
    rope_scaling: str = "trained"
    trace_requests: bool = False
    trace_mb: int = 256
    trace_files: int = 4
    alarm_steps: int = 200
    stall_s: int = 300
    unknown: tuple[str, ...] = ()  # variables that begin as ours do and are none

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Settings:
        """Read our variables from `environment` (default: the process's).

        Raises `SettingsError` naming the variable, its value, and what it may hold.
        """
        env = os.environ if environment is None else environment
        accept_log = env.get(f"{PREFIX}_ACCEPT_LOG", "").strip().lower() or "interval"
        if accept_log not in ACCEPT_LOG_CHOICES:
            raise SettingsError(
                f"{PREFIX}_ACCEPT_LOG={accept_log!r} is unknown. "
                f"Fix: use one of {', '.join(ACCEPT_LOG_CHOICES)}."
            )
        options = _parse_options(env.get(f"{PREFIX}_OPTIONS", ""))
        if stall_s := env.get(f"{PREFIX}_STALL_S", "").strip():
            options["stall_s"] = _parse_option("stall_s", stall_s, name=f"{PREFIX}_STALL_S")
        known = {variable.name for variable in VARIABLES}
        return cls(
            selection=Selection.parse(env.get(PREFIX, "")),
            strict=_parse_flag(env, f"{PREFIX}_STRICT"),
            status_dir=env.get(f"{PREFIX}_STATUS_DIR", "").strip() or None,
            accept_log=accept_log,
            trace=env.get(f"{PREFIX}_TRACE", "").strip() or None,
            unknown=tuple(sorted(n for n in env if n.startswith(f"{PREFIX}_") and n not in known)),
            **options,
        )


def with_option(text: str, key: str, value: str) -> str:
    """Return the options `text` with `key` set to `value`, in place of what it said of the key.

    Raises `SettingsError` when the key can't hold the value.
    """
    others = [part for part in text.split(",") if part and part.partition("=")[0].strip() != key]
    options = ",".join([*others, f"{key}={value}"])
    _parse_options(options)
    return options


def _parse_flag(env: Mapping[str, str], name: str) -> bool:
    value = env.get(name, "").strip().lower()
    if value in _FALSE:
        return False
    if value in _TRUE:
        return True
    raise SettingsError(f"{name}={value!r} is neither on nor off. Fix: use 1 or 0.")


def _layers(value: str) -> tuple[int, ...]:
    layers = tuple(int(part) for part in value.split(":"))
    if list(layers) != sorted(set(layers)) or layers[0] < 0:
        raise ValueError
    return layers


def _theta(value: str) -> float:
    theta = float(value)
    if not 1 < theta < math.inf:
        raise ValueError
    return theta


def _rope_scaling(value: str) -> str:
    if value not in ("trained", "stated"):
        raise ValueError
    return value


def _at_least(least: int) -> Callable[[str], int]:
    def parse(value: str) -> int:
        number = int(value)
        if number < least:
            raise ValueError
        return number

    return parse


def _on_or_off(value: str) -> bool:
    return {"0": False, "1": True}[value]


# Each key: how its value is read, what it must be, and an example.
_OPTIONS: dict[str, tuple[Callable[[str], Any], str, str]] = {
    "aux_layers": (_layers, "an ascending list of layers", "2:30:58"),
    "rope_theta": (_theta, "a number above 1", "10000"),
    "rope_scaling": (_rope_scaling, "trained or stated", "stated"),
    "trace_requests": (_on_or_off, "0 or 1", "1"),
    "trace_mb": (_at_least(1), "a number of megabytes", "256"),
    "trace_files": (_at_least(1), "a number of files", "4"),
    "alarm_steps": (_at_least(0), "a number of verify steps", "200"),
    "stall_s": (_at_least(0), "a number of seconds", "300"),
}


def _parse_options(text: str) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        key, _, value = (part.strip() for part in item.partition("="))
        if key not in _OPTIONS:
            raise SettingsError(
                f"{PREFIX}_OPTIONS holds the unknown key {key!r}. "
                f"Fix: known: {', '.join(_OPTIONS)}."
            )
        options[key] = _parse_option(key, value, name=key, place=f"{PREFIX}_OPTIONS: ")
    return options


def _parse_option(key: str, value: str, *, name: str, place: str = "") -> Any:
    """Return what `value` says of `key`, which is written as `name=value`, in `place`."""
    parse, kind, example = _OPTIONS[key]
    try:
        return parse(value)
    except (ValueError, KeyError):
        raise SettingsError(
            f"{place}{name}={value!r} is not {kind}. Fix: write it like {name}={example}."
        ) from None
