"""What is known of this process's draft, remembered for messages: host-side words only."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any


@dataclass
class LaunchFacts:
    """Filled by the hooks as they learn it; `None` is shown as unknown."""

    algorithm: str | None = None
    captured_layers: tuple[int, ...] | None = None
    layers_from: str | None = None  # what named the captured layers
    draft_weights: str | None = None  # how the draft's weights were accounted for
    draft_tensors: int | None = None  # how many were loaded, all of them
    draft_flags: tuple[str, ...] = ()  # what the draft computes beyond the plain layer, and by whom
    fc_width: int | None = None  # of the aux hidden states of one token, as `fc` takes them
    embedding: str | None = None  # whose the draft's embedding is
    head: str | None = None
    ready: str | None = None  # the block of the start that came to its end
    acceptance_alarm: str | None = None  # what is wrong while the alarm is on

    def as_data(self) -> dict[str, Any]:
        """Return what is known, as JSON holds it."""
        return {name: value for name, value in asdict(self).items() if value not in (None, ())}


facts = LaunchFacts()
_listeners: list[Callable[[], None]] = []


def when_changed(listener: Callable[[], None]) -> None:
    """Have `listener` called, in a thread of its own, when a fact changes while serving."""
    _listeners.append(listener)


def changed() -> None:
    """Tell the listeners; returns at once."""
    for listener in _listeners:
        threading.Thread(target=listener, daemon=True).start()


def speculative_algorithm() -> str:
    """Return the speculative algorithm in use, for a message."""
    return facts.algorithm or "unknown"


def captured_layers() -> str:
    """Return the target layers whose inputs are captured, for a message."""
    if facts.captured_layers is None:
        return "unknown"
    return str(list(facts.captured_layers)) if facts.captured_layers else "none"
