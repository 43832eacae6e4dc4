"""Reads the shipped expectation: what a server of a given release must show. No torch needed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

FILE = Path(__file__).parent / "assets" / "expectation.json"


def without_trailing_zeros(histogram: list[int]) -> list[int]:
    """Return the histogram up to its last count; SGLang's own ends there."""
    end = max((place for place, count in enumerate(histogram, 1) if count), default=0)
    return histogram[:end]


@dataclass(frozen=True)
class Outlook:
    """The content of `expectation.json`, written by `expectation.compute`."""

    prompts: list[str]
    texts: list[str]
    new_tokens: int
    by_case: dict[str, dict[str, list[list[int]]]]

    @classmethod
    def shipped(cls) -> Outlook:
        """Return the expectation that belongs to the shipped weights."""
        data = json.loads(FILE.read_text(encoding="utf-8"))
        return cls(data["prompts"], data["texts"], data["new_tokens"], data["histograms"])

    def histograms(self, case: str, quirk: str, prompts: int) -> list[list[int]]:
        """Verify steps that accept 0, 1, .. drafts, up to the most accepted, for each of the
        first `prompts` prompts."""
        return [without_trailing_zeros(row) for row in self.by_case[case][quirk][:prompts]]

    def accept_length(self, case: str, quirk: str, prompts: int) -> float:
        """Tokens per verify step over the first `prompts` prompts, as SGLang counts them."""
        steps = sum(sum(histogram) for histogram in self.histograms(case, quirk, prompts))
        return prompts * self.new_tokens / steps
