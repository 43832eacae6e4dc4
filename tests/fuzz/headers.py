"""Mutates a checkpoint's header and config, and wants doctor and converter to read or refuse each,
never a crash.

A seeded loop, bounded in time: `python -m tests.fuzz.headers [--seconds 20] [--seed 0]`; `guided`
is the same led by coverage.
"""

from __future__ import annotations

import argparse
import json
import random
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from sglang_eagle3_patch.checkpoint.conversion.convert import plan_conversion
from sglang_eagle3_patch.checkpoint.conversion.options import NotConvertible, Options
from sglang_eagle3_patch.checkpoint.header import CheckpointUnreadable
from sglang_eagle3_patch.commands.doctor import CannotJudge, judge
from sglang_eagle3_patch.facts.store import facts_for, newest_known

SEED_FOLDER = Path(__file__).parents[1] / "checkpoints" / "speculators-0.9.0-plain"
LONGEST = 2.0
"""Seconds that one input may take."""

_WORDS = (b"null", b"-1", b"1e400", b"[]", b"{}", b'"x"', b"NaN", b"99999999999999999999", b"true")


def check(folder: Path, header: bytes, config: bytes, data: bytes) -> str:
    """Return what became of a checkpoint with these JSON texts. Raises what nobody expects."""
    (folder / "config.json").write_bytes(config)
    length = struct.pack("<Q", len(header))
    (folder / "model.safetensors").write_bytes(length + header + data)
    facts = facts_for(newest_known())
    assert facts is not None
    begun = time.monotonic()
    judged = _ended(lambda: judge(str(folder), None, newest_known(), []))
    planned = _ended(lambda: plan_conversion(folder, Options(facts, needs_plugin=True)))
    assert time.monotonic() - begun < LONGEST
    return f"doctor: {judged}, converter: {planned}"


def _ended(read: Callable[[], object]) -> str:
    ended, said = "read", ""
    try:
        read()
    except (CannotJudge, CheckpointUnreadable, NotConvertible) as refusal:
        ended, said = type(refusal).__name__, str(refusal)
    assert "\n" not in said
    return ended


def seeds() -> tuple[bytes, bytes, bytes]:
    """Return the header, the config and the data of a whole checkpoint."""
    raw = (SEED_FOLDER / "model.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    return raw[8 : 8 + length], (SEED_FOLDER / "config.json").read_bytes(), raw[8 + length :]


def mutate(generator: random.Random, text: bytes) -> bytes:
    """Return a text with a few places changed: bytes, stretches, or whole JSON values."""
    for _ in range(generator.randint(1, 3)):
        at = generator.randrange(len(text) + 1)
        end = min(at + generator.randint(0, 8), len(text))
        kind = generator.randrange(8)
        if kind == 0:
            text = text[:at] + generator.randbytes(end - at) + text[end:]
        elif kind == 1:
            text = text[:at] + text[end:]
        elif kind == 2:
            text = text[:at] + text[max(at - 40, 0) : at] + text[at:]
        else:
            text = _with_another_value(generator, text)
    return text


def _with_another_value(generator: random.Random, text: bytes) -> bytes:
    places = [i for i, byte in enumerate(text) if byte in b":,["]
    if not places:
        return text
    at = generator.choice(places) + 1
    end = next((i for i in range(at, len(text)) if text[i] in b",}]"), len(text))
    return text[:at] + generator.choice(_WORDS) + text[end:]


def loop(seconds: float, seed: int) -> dict[str, int]:
    """Mutate for so long; returns how often each outcome came."""
    generator = random.Random(seed)
    header, config, data = seeds()
    found: dict[str, int] = {}
    end = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as name:
        while time.monotonic() < end:
            one, other = generator.choice([(True, False), (False, True), (True, True)])
            texts = (
                mutate(generator, header) if one else header,
                (mutate(generator, config) if other else config),
            )
            try:
                outcome = check(Path(name), *texts, data)
            except BaseException:
                print(json.dumps({"header": repr(texts[0]), "config": repr(texts[1])}))
                raise
            found[outcome] = found.get(outcome, 0) + 1
    return found


def main() -> int:
    """Run the loop; a finding is an exception."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    print(loop(arguments.seconds, arguments.seed))
    return 0


if __name__ == "__main__":
    sys.exit(main())
