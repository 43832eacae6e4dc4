"""What a conversion costs, beside a plain copy of the same folder.

A draft of random bytes is copied by `cp -r` and `sync` (a conversion flushes what it writes, too),
converted, and converted with `--verify`, in turn, so that a busy machine slows all of them; the
medians are compared, as bandwidths. Each runs in a process of its own, whose peak memory is told.
What the dry run takes is the start of the process, and the bandwidth is that of what a conversion
takes above it. speculators' own converter, which makes its form of SGLang's, is measured as well
where it is installed; its time is told whole.

    ./launch.sh bench convert [--megabytes N] [--rounds N] [--json FILE]
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import struct
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from bench.processes import Summary, in_turn

COPY, DRY_RUN, CONVERT = "cp + sync", "convert --dry-run", "convert"
VERIFY, SPECULATORS = "convert --verify", "speculators"
# Of the copy's bandwidth, and megabytes of memory, whatever the size of the draft.
BANDWIDTH_GOAL, MEMORY_GOAL_MB = 0.9, 100
HIDDEN, HEADS, INTERMEDIATE, VOCAB = 1024, 8, 2048, 32000
_COMMAND = (
    "import argparse, sys; from sglang_eagle3_patch.commands import convert;"
    "parser = argparse.ArgumentParser(); convert.add_parser(parser.add_subparsers());"
    "parsed = parser.parse_args(['convert', *sys.argv[1:]]); sys.exit(parsed.run(parsed))"
)
_SPECULATORS = (
    "import sys; from speculators.convert.eagle.eagle3_converter import Eagle3Converter;"
    "Eagle3Converter().convert(sys.argv[1], sys.argv[2], sys.argv[3], validate=False)"
)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the table; returns 1 when a goal is missed."""
    parser = argparse.ArgumentParser(prog="bench convert", description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=1000, help="of weights (default: 1000)")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each (default: 5)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there, too")
    arguments = parser.parse_args(argv)
    if min(arguments.megabytes, arguments.rounds) < 1:
        parser.error("--megabytes and --rounds must be at least 1")
    with tempfile.TemporaryDirectory(prefix="bench-convert-") as name:
        draft, out = write_draft(Path(name) / "draft", arguments.megabytes), Path(name) / "out"
        rows = in_turn(
            cases(draft, out),
            arguments.rounds,
            lambda case: shutil.rmtree(out, ignore_errors=case == DRY_RUN),
        )
    print(table(rows, arguments.megabytes, arguments.rounds))
    if arguments.json is not None:
        numbers = {
            "megabytes": arguments.megabytes,
            "rows": {
                case: asdict(row) | {"of_cp": bandwidth(rows, case)} for case, row in rows.items()
            },
        }
        arguments.json.write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8")
    return int(not within_goals(rows))


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
        native = _as_native(draft)
        found[SPECULATORS] = [*python, _SPECULATORS, str(native), str(out), str(native)]
    return found


def _as_native(draft: Path) -> Path:
    """Link the same weights beside a flat config, which is what speculators converts from."""
    folder = draft.with_name("native")
    folder.mkdir()
    (folder / "model.safetensors").hardlink_to(draft / "model.safetensors")
    config = json.loads((draft / "config.json").read_text())
    flat = config["transformer_layer_config"] | {
        "architectures": ["LlamaForCausalLMEagle3"],
        "draft_vocab_size": config["draft_vocab_size"],
    }
    (folder / "config.json").write_text(json.dumps(flat))
    return folder


def bandwidth(rows: Mapping[str, Summary], case: str, of: str = "median_s") -> float:
    """Return the bandwidth of a case as a share of the copy's; of a conversion above its start."""
    started = getattr(rows[DRY_RUN], of) if case in (CONVERT, VERIFY) else 0.0
    return float(getattr(rows[COPY], of) / (getattr(rows[case], of) - started))


def within_goals(rows: Mapping[str, Summary]) -> bool:
    """Whether a conversion is as fast and as small as it should be.

    By minima, too: starts that happened to be slow make a conversion look fast by medians.
    """
    share = min(bandwidth(rows, CONVERT, of) for of in ("median_s", "minimum_s"))
    return share >= BANDWIDTH_GOAL and rows[CONVERT].peak_mb <= MEMORY_GOAL_MB


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
    text += b" " * (-len(text) % 8)  # as safetensors does
    block = bytearray(os.urandom(1 << 20))
    block[1::2] = b"\x3f" * (len(block) // 2)  # numbers from a half to two: NaN would be refused
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


def table(rows: Mapping[str, Summary], megabytes: int, rounds: int) -> str:
    """Return the rows as text: seconds, and the bandwidth by medians and by minima."""
    lines = [
        f"a draft of {megabytes} MB, {rounds} runs of each in turn",
        f"{'':<18}{'median s':>9}{'minimum s':>11}{'cpu s':>7}{'of cp':>7}{'minima':>8}"
        f"{'peak MB':>9}",
    ]
    for case, row in rows.items():
        lines.append(
            f"{case:<18}{row.median_s:>9.2f}{row.minimum_s:>11.2f}{row.cpu_s:>7.2f}"
            f"{bandwidth(rows, case):>7.2f}{bandwidth(rows, case, 'minimum_s'):>8.2f}"
            f"{row.peak_mb:>9.0f}"
        )
    goals = f"{BANDWIDTH_GOAL} of cp's bandwidth by both, {MEMORY_GOAL_MB} MB"
    met = "met" if within_goals(rows) else "missed"
    return "\n".join([*lines, f"goals for {CONVERT}: {goals}: {met}"])


if __name__ == "__main__":
    sys.exit(main())
