"""What a conversion costs, beside a plain copy of the same folder.

A draft of random bytes is copied by `cp -r` and `sync` (a conversion flushes what it writes, too),
converted, and converted with `--verify`, in turn, so that a busy machine slows all of them; the
medians are compared. Each runs in a process of its own, whose peak memory is told. What the dry
run takes is the start of the process, and the ratios are of what a conversion takes above it.
speculators' own converter is measured as well where it is installed.

    ./launch.sh bench convert [--megabytes N] [--rounds N] [--json FILE]
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

COPY, DRY_RUN, CONVERT = "cp + sync", "convert --dry-run", "convert"
VERIFY, SPECULATORS = "convert --verify", "speculators"
# Of the copy's time, and megabytes of memory, whatever the size of the draft.
RATIO_GOAL, MEMORY_GOAL_MB = 1.5, 100
HIDDEN, HEADS, INTERMEDIATE, VOCAB = 1024, 8, 2048, 32000
_WARM_UPS = 1
_COMMAND = (
    "import argparse, sys; from sglang_eagle3_patch.commands import convert;"
    "parser = argparse.ArgumentParser(); convert.add_parser(parser.add_subparsers());"
    "parsed = parser.parse_args(['convert', *sys.argv[1:]]); sys.exit(parsed.run(parsed))"
)
_SPECULATORS = (
    "import sys; from speculators.convert.eagle.eagle3_converter import Eagle3Converter;"
    "Eagle3Converter().convert(sys.argv[1], sys.argv[2], sys.argv[3], validate=False)"
)


@dataclass(frozen=True)
class Row:
    """Seconds of one case, its peak memory in megabytes, and its median against the copy's; of a
    conversion it is the median less that of the dry run."""

    case: str
    median_s: float
    minimum_s: float
    ratio: float
    peak_mb: float


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the table; returns 1 when a goal is missed."""
    parser = argparse.ArgumentParser(prog="bench convert", description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=256, help="of weights (default: 256)")
    parser.add_argument("--rounds", type=int, default=7, help="runs of each (default: 7)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there, too")
    arguments = parser.parse_args(argv)
    if min(arguments.megabytes, arguments.rounds) < 1:
        parser.error("--megabytes and --rounds must be at least 1")
    with tempfile.TemporaryDirectory(prefix="bench-convert-") as name:
        draft = write_draft(Path(name) / "draft", arguments.megabytes)
        rows = measure(cases(draft, Path(name) / "out"), Path(name) / "out", arguments.rounds)
    print(table(rows, arguments.megabytes, arguments.rounds))
    if arguments.json is not None:
        numbers = {"megabytes": arguments.megabytes, "rows": [asdict(row) for row in rows]}
        arguments.json.write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8")
    converted = next(row for row in rows if row.case == CONVERT)
    return int(converted.ratio > RATIO_GOAL or converted.peak_mb > MEMORY_GOAL_MB)


def cases(draft: Path, out: Path) -> dict[str, list[str]]:
    """Return the command of each case."""
    python = [sys.executable, "-c"]
    found = {
        COPY: ["sh", "-c", 'cp -r "$1" "$2" && sync "$2"/*', "sh", str(draft), str(out)],
        DRY_RUN: [*python, _COMMAND, str(draft), str(out), "--dry-run"],
        CONVERT: [*python, _COMMAND, str(draft), str(out)],
        VERIFY: [*python, _COMMAND, str(draft), str(out), "--verify"],
    }
    if importlib.util.find_spec("speculators"):
        found[SPECULATORS] = [*python, _SPECULATORS, str(draft), str(out), str(draft)]
    return found


def measure(commands: Mapping[str, list[str]], out: Path, rounds: int) -> list[Row]:
    """Return a row for each command, each of which writes `out`.

    Each round runs every command once, another one first each time. Raises RuntimeError when one
    fails.
    """
    order = list(commands)
    times: dict[str, list[float]] = {case: [] for case in order}
    peaks = dict.fromkeys(order, 0.0)
    for number in range(-_WARM_UPS, rounds):
        order.append(order.pop(0))
        for case in order:
            seconds, peak = run(commands[case])
            shutil.rmtree(out, ignore_errors=case == DRY_RUN)
            peaks[case] = max(peaks[case], peak)
            if number >= 0:
                times[case].append(seconds)
    medians = {case: statistics.median(of_case) for case, of_case in times.items()}
    started = {CONVERT: medians[DRY_RUN], VERIFY: medians[DRY_RUN]}
    return [
        Row(
            case=case,
            median_s=medians[case],
            minimum_s=min(of_case),
            ratio=(medians[case] - started.get(case, 0.0)) / medians[COPY],
            peak_mb=peaks[case],
        )
        for case, of_case in times.items()
    ]


def run(command: list[str]) -> tuple[float, float]:
    """Run a command; returns its seconds and its peak memory in megabytes."""
    begun = time.perf_counter()
    quiet = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
    pid = os.posix_spawnp(command[0], command, os.environ, file_actions=quiet)
    _, status, usage = os.wait4(pid, 0)
    seconds = time.perf_counter() - begun
    if status:
        raise RuntimeError(f"{' '.join(command[:2])} ... failed with {status}")
    return seconds, usage.ru_maxrss / 1024


def write_draft(folder: Path, megabytes: int) -> Path:
    """Write a draft as speculators does, its target's vocabulary so large that it has this size."""
    rows, wide = HEADS * HIDDEN // HEADS, 2 * HIDDEN
    layer = {
        "input_layernorm": (HIDDEN,),
        "hidden_norm": (HIDDEN,),
        "post_attention_layernorm": (HIDDEN,),
        **{f"self_attn.{part}_proj": (rows, wide) for part in "qkv"},
        "self_attn.o_proj": (HIDDEN, rows),
        "mlp.gate_proj": (INTERMEDIATE, HIDDEN),
        "mlp.up_proj": (INTERMEDIATE, HIDDEN),
        "mlp.down_proj": (HIDDEN, INTERMEDIATE),
    }
    shapes = {f"layers.0.{name}": shape for name, shape in layer.items()}
    shapes |= {"fc": (HIDDEN, 3 * HIDDEN), "norm": (HIDDEN,)}
    fixed = sum(2 * rows * (columns[0] if columns else 1) for rows, *columns in shapes.values())
    vocab = max((megabytes * 1_000_000 - fixed) // (2 * 2 * HIDDEN), 1)
    shapes |= {"embed_tokens": (vocab, HIDDEN), "lm_head": (vocab, HIDDEN)}
    header, at = {}, 0
    for name, shape in shapes.items():
        end = at + 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[f"{name}.weight"] = {
            "dtype": "BF16",
            "shape": list(shape),
            "data_offsets": [at, end],
        }
        at = end
    folder.mkdir()
    text = json.dumps(header).encode()
    block = os.urandom(1 << 20)
    with (folder / "model.safetensors").open("wb") as stream:
        stream.write(struct.pack("<Q", len(text)) + text)
        for begin in range(0, at, len(block)):
            stream.write(block[: at - begin])
    (folder / "config.json").write_text(json.dumps(_config(vocab)))
    return folder


def _config(vocab: int) -> dict[str, object]:
    layer = {
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "head_dim": HIDDEN // HEADS,
        "num_hidden_layers": 1,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 4096,
        "vocab_size": vocab,
    }
    return {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.9.0",
        "draft_vocab_size": vocab,
        "norm_before_residual": False,
        "eagle_aux_hidden_state_layer_ids": [2, 16, 29],
        "transformer_layer_config": layer,
    }


def table(rows: Sequence[Row], megabytes: int, rounds: int) -> str:
    """Return the rows as text."""
    lines = [
        f"a draft of {megabytes} MB, {rounds} runs of each in turn",
        f"{'':<20}{'median s':>9}{'minimum s':>11}{'ratio':>7}{'peak MB':>9}",
    ]
    for row in rows:
        lines.append(
            f"{row.case:<20}{row.median_s:>9.2f}{row.minimum_s:>11.2f}{row.ratio:>7.2f}"
            f"{row.peak_mb:>9.0f}"
        )
    return "\n".join([*lines, f"goals for {CONVERT}: ratio {RATIO_GOAL}, {MEMORY_GOAL_MB} MB"])


if __name__ == "__main__":
    sys.exit(main())
