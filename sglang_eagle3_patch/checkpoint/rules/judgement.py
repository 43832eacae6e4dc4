"""What all rules together say of a case."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sglang_eagle3_patch.checkpoint.rules.answers import NO_TARGET, RULES, Outcome, Status
from sglang_eagle3_patch.checkpoint.rules.case import Case

Verdict = Literal["ok", "warning", "error"]
# The worst decides.
_WORST: tuple[Outcome, ...] = ("refuses", "degraded", "unknown", "serves")
_MARKS: tuple[Verdict, ...] = ("ok", "warning", "error")


@dataclass(frozen=True)
class Finding:
    """One rule's answer, named.

    `severity` is the rule's, but `fixable` where stock SGLang goes wrong and the plugin, which is
    asked about, does not.
    `effects` is the outcome for "stock" and for "plugin". `grave`: the rule is about an error.
    """

    id: str
    severity: Literal["error", "warning", "fixable", "info"]
    status: Status
    message: str
    remedy: str
    values: Mapping[str, Any]
    effects: Mapping[str, Outcome]
    grave: bool
    arguments: tuple[str, ...] = ()

    @property
    def wants_target(self) -> bool:
        """Whether the rule could not compare because no target was given."""
        return self.message == NO_TARGET.message

    def mark(self, side: str) -> Verdict:
        """Return what the finding makes of the verdict for "stock" or "plugin"."""
        effect = self.effects[side]
        if self.status == "ok":
            return "ok"
        if effect == "refuses":
            return "error"
        if self.status == "unknown" or effect == "unknown":
            return "ok" if self.severity == "info" else "warning"
        if effect == "degraded":
            return "error" if self.grave else "warning"
        return "warning" if self.severity == "warning" else "ok"

    def as_data(self) -> dict[str, Any]:
        """Return the finding as JSON holds it."""
        return {
            "id": self.id,
            "severity": self.severity,
            "status": self.status,
            "message": self.message,
            "remedy": self.remedy,
            "values": {
                name: list(value) if isinstance(value, (tuple, range)) else value
                for name, value in self.values.items()
            },
        }


@dataclass(frozen=True)
class Side:
    """What comes of it on one side, stock or plugin, and why."""

    outcome: Outcome
    why: str


@dataclass(frozen=True)
class Judgement:
    """The findings, in the rules' order, and what follows from them.

    `side` is the one whose verdict was asked for: "plugin" or "stock".
    """

    release: str
    findings: tuple[Finding, ...]
    side: str = "plugin"

    @property
    def stock(self) -> Side:
        """What stock SGLang does."""
        return self._side("stock")

    @property
    def plugin(self) -> Side:
        """What SGLang does with the plugin."""
        return self._side("plugin")

    @property
    def asked(self) -> Side:
        """What comes of it on the side asked for."""
        return self._side(self.side)

    @property
    def verdict(self) -> Verdict:
        """The verdict for the side asked for."""
        return max((f.mark(self.side) for f in self.findings), key=_MARKS.index, default="ok")

    @property
    def told(self) -> tuple[Finding, ...]:
        """The findings that something is wrong or unknown."""
        return tuple(finding for finding in self.findings if finding.status != "ok")

    def _side(self, side: str) -> Side:
        effects = [finding.effects[side] for finding in self.told]
        outcome: Outcome = min(effects, key=_WORST.index, default="serves")
        if outcome == "serves":
            return Side("serves", f"as trained{self._reservations()}")
        return Side(outcome, "; ".join(f.message for f in _deciding(self.told, side, outcome)))

    def _reservations(self) -> str:
        """What was not looked at, in words after a good outcome."""
        unsure = [f for f in self.told if f.status == "unknown" and f.severity != "info"]
        untold = [f for f in unsure if not f.wants_target]
        said = [f"{len(untold)} unknown"] if untold else []
        if len(untold) < len(unsure):
            said.append("not compared with a target")
        return f", as far as was checked ({', '.join(said)})" if said else ""

    def as_data(self) -> dict[str, Any]:
        """Return the judgement as JSON holds it."""
        return {
            "verdict": self.verdict,
            "stock": {"outcome": self.stock.outcome, "why": self.stock.why},
            "plugin": {"outcome": self.plugin.outcome, "why": self.plugin.why},
            "findings": [finding.as_data() for finding in self.findings],
        }


def _deciding(findings: Iterable[Finding], side: str, outcome: Outcome) -> list[Finding]:
    """The findings that make the outcome; of degradations the grave ones, if there are any."""
    found = [finding for finding in findings if finding.effects[side] == outcome]
    grave = [finding for finding in found if finding.mark(side) == "error"]
    return grave or found


def judge_case(case: Case) -> Judgement:
    """Ask every rule about a case."""
    findings = []
    for rule in RULES.values():
        answer = rule.answer(case)
        effects: dict[str, Outcome] = {"stock": answer.stock, "plugin": answer.plugin}
        mended = (
            case.plugin
            and answer.status == "wrong"
            and answer.stock in ("refuses", "degraded")
            and answer.plugin == "serves"
        )
        findings.append(
            Finding(
                rule.id,
                "fixable" if mended else rule.severity,
                answer.status,
                answer.message,
                answer.remedy,
                answer.values,
                effects,
                rule.severity == "error",
                answer.arguments,
            )
        )
    return Judgement(case.release, tuple(findings), "plugin" if case.plugin else "stock")
