"""What a rule says of a case: that it is in order, what is wrong, or what can't be told."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from sglang_eagle3_patch.checkpoint.rules.case import Case

# serves: as trained. degraded: serves other numbers than trained. refuses: does not start.
Outcome = Literal["serves", "degraded", "refuses", "unknown"]
Status = Literal["ok", "wrong", "unknown"]
Severity = Literal["error", "warning", "info"]


@dataclass(frozen=True)
class Answer:
    """One rule's answer.

    `message` tells what is wrong with the values, `remedy` the one thing to do. `stock` and
    `plugin` are what comes of it without and with the plugin. `arguments` are launch arguments
    that mend it.
    """

    status: Status = "ok"
    message: str = ""
    remedy: str = ""
    stock: Outcome = "serves"
    plugin: Outcome = "serves"
    values: Mapping[str, Any] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()


OK = Answer()
# Asked of rules that compare with a target when none is given.
NO_TARGET = Answer(
    "unknown", "not compared with a target, since none is given", "name it with --target"
)


def wrong(
    message: str,
    remedy: str,
    *,
    stock: Outcome,
    plugin: Outcome,
    arguments: tuple[str, ...] = (),
    **values: Any,
) -> Answer:
    """Return the answer that something is wrong."""
    return Answer("wrong", message, remedy, stock, plugin, values, arguments)


def unknown(
    message: str,
    remedy: str,
    *,
    stock: Outcome = "unknown",
    plugin: Outcome = "unknown",
    arguments: tuple[str, ...] = (),
    **values: Any,
) -> Answer:
    """Return the answer that it can't be told.

    `stock` and `plugin` other than unknown say what comes of it whichever way it is, or where
    nothing hints at trouble.
    """
    return Answer("unknown", message, remedy, stock, plugin, values, arguments)


@dataclass(frozen=True)
class Rule:
    """One rule: a stable id, how much it matters, and the function that answers.

    The function's docstring is its explanation: a title, then the cause, then the remedy.
    """

    id: str
    severity: Severity
    answer: Callable[[Case], Answer]

    @property
    def explanation(self) -> tuple[str, str, str]:
        """Title, cause and remedy. Raises ValueError for a docstring of another form."""
        found = re.fullmatch(
            r"(?s)(.+?)\n\nCause: (.+?)\n\nRemedy: (.+)", inspect.getdoc(self.answer) or ""
        )
        if found is None:
            raise ValueError(f"{self.id} is not explained: title, Cause:, Remedy:")
        title, cause, remedy = (" ".join(part.split()) for part in found.groups())
        return title, cause, remedy


RULES: dict[str, Rule] = {}


def rule(
    name: str, severity: Severity
) -> Callable[[Callable[[Case], Answer]], Callable[[Case], Answer]]:
    """Register the function below as the rule `name`. Raises ValueError for a name given twice."""

    def register(answer: Callable[[Case], Answer]) -> Callable[[Case], Answer]:
        if name in RULES:
            raise ValueError(f"two rules are called {name}")
        RULES[name] = Rule(name, severity, answer)
        return answer

    return register


def listed(names: Any, most: int = 4) -> str:
    """Return the first names of a list, and how many more there are."""
    shown = list(map(str, names))
    rest = len(shown) - most
    return ", ".join(shown[:most]) + (f" and {rest} more" if rest > 0 else "")


def mended_by(case: Case, patch: str, otherwise: str) -> str:
    """Return the remedy of what the plugin mends by itself: the plugin, or what does without."""
    return f"none needed, the plugin's {patch} mends it" if case.plugin else otherwise


def counted(number: int, what: str) -> str:
    """Return a number and what is counted, in the singular where it is one."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
