"""What this process was started with, remembered for messages: host-side words only."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass
class LaunchFacts:
    """Filled by the hooks as they learn it; `None` is shown as unknown."""

    algorithm: str | None = None
    captured_layers: tuple[int, ...] | None = None

    def as_data(self) -> dict[str, Any]:
        """Return what is known, as JSON holds it."""
        return {name: value for name, value in asdict(self).items() if value is not None}


facts = LaunchFacts()


def speculative_algorithm() -> str:
    """Return the speculative algorithm in use, for a message."""
    return facts.algorithm or "unknown"


def captured_layers() -> str:
    """Return the target layers whose inputs are captured, for a message."""
    if facts.captured_layers is None:
        return "unknown"
    return str(list(facts.captured_layers)) if facts.captured_layers else "none"
