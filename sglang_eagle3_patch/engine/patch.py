"""What a runtime patch says of itself, and the words for what became of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class Status(str, Enum):
    """The same seven words in logs, JSON and tests."""

    APPLIED = "applied"
    NOT_NEEDED = "not-needed"
    WAITING = "waiting"
    UNSUPPORTED = "unsupported"
    DISABLED = "disabled"
    DISPLACED = "displaced"
    FAILED = "failed"


class Risk(str, Enum):
    """What a patch can harm when it is wrong."""

    OBSERVABILITY = "observability"
    LOAD_TIME = "load-time"
    NUMERICS = "numerics"


Wrapper = Callable[[Callable[..., Any], Any, tuple[Any, ...], dict[str, Any]], Any]
Probe = Callable[[Any], bool]


@dataclass(frozen=True, kw_only=True)
class Hook:
    """One touch point: a class attribute of a module, and what is wrapped around it.

    `parameters` are the names relied on, checked against the real signature before anything is
    touched. `optional` marks a touch point that only some releases have, `absent_module_ok` one
    whose whole module only some have; of the hooks sharing a `slot`, the first one that exists is
    used. `fixed_when` gets the owner (the class) and says
    True when the release in hand no longer needs the hook.
    """

    module: str
    attribute: str
    wrapper: Wrapper
    parameters: tuple[str, ...] = ()
    optional: bool = False
    absent_module_ok: bool = False
    slot: str | None = None
    fixed_when: Probe | None = None

    @property
    def path(self) -> str:
        """The dotted path, as shown to people."""
        return f"{self.module}.{self.attribute}"


@dataclass(frozen=True, kw_only=True)
class Patch:
    """One runtime patch: why, where, and when it can go.

    `after` names patches that go in before this one where they are selected: of two on one
    function, the later one sees what the earlier one made of it.
    """

    name: str
    title: str
    hooks: tuple[Hook, ...]
    processes: tuple[str, ...]
    applies: str
    reason: str
    upstream: str
    remove_when: str
    risk: Risk
    after: tuple[str, ...] = ()
    default: bool = True


@dataclass(frozen=True, kw_only=True)
class HookReport:
    """What became of one hook; `detail` explains anything but `applied` and `waiting`."""

    path: str
    status: Status
    detail: str = ""


@dataclass(frozen=True, kw_only=True)
class PatchReport:
    """What became of one patch in this process."""

    name: str
    status: Status
    detail: str = ""
    hooks: tuple[HookReport, ...] = field(default_factory=tuple)
