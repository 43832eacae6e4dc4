"""Traces of a model of speculation: seeded, with known acceptance and known costs."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

START = {
    "kind": "start",
    "format": 1,
    "time": 1_790_000_000.0,
    "pid": 4711,
    "rank": 0,
    "sglang": "0.5.23",
    "plugin": "0.1.0",
    "algorithm": "EAGLE3",
    "num_steps": 3,
    "topk": 1,
    "draft_tokens": 4,
}
RATES = (0.9, 0.8, 0.7)  # conditional, by position


def steps(
    count: int,
    *,
    rates: Sequence[float] = RATES,
    proposed: Sequence[int] = (3,),
    base_seconds: float = 0.020,
    draft_seconds: float = 0.001,
    batches: Sequence[int] = (1, 2, 4, 8),
    seed: int = 1,
) -> Iterator[dict[str, Any]]:
    """Verify steps of requests that each live for 40 steps; a third of them are half as good."""
    chance = random.Random(seed)
    time = START["time"]
    for step in range(1, count + 1):
        batch, deep = chance.choice(batches), chance.choice(proposed)
        seconds = (base_seconds + draft_seconds * deep) * chance.uniform(0.98, 1.02)
        time += seconds
        names = [f"request-{step // 40}-{place}" for place in range(batch)]
        accepted = [_accepted(chance, rates[:deep], place % 3 == 2) for place in range(batch)]
        yield {
            "time": time,
            "step": step,
            "rank": 0,
            "batch": batch,
            "proposed": deep,
            "accepted": accepted,
            "requests": names,
            "seconds": seconds if step > 1 else None,
        }


def _accepted(chance: random.Random, rates: Sequence[float], poor: bool) -> int:
    for position, rate in enumerate(rates):
        if chance.random() >= rate * (0.5 if poor else 1):
            return position
    return len(rates)


def write(path: Path, *records: dict[str, Any]) -> Path:
    """Write records as a trace; returns its path."""
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path
