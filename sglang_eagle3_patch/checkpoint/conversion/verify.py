"""Proves that a written checkpoint holds what its source holds."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from sglang_eagle3_patch.checkpoint.conversion.plan import Move, Plan
from sglang_eagle3_patch.checkpoint.conversion.source import Stored
from sglang_eagle3_patch.checkpoint.conversion.streaming import Progress
from sglang_eagle3_patch.checkpoint.header import DTYPE_BITS, CheckpointUnreadable, read_file_header


def shards_of(plan: Plan) -> dict[str, list[Move]]:
    """Return the moves by the name of the file to write: the sources', as safetensors."""
    shards: dict[str, list[Move]] = {}
    for move in plan.moves:
        name = move.source.file.name
        if not name.endswith(".safetensors"):
            stem = Path(name).stem
            name = stem.replace("pytorch_model", "model") + ".safetensors"
        shards.setdefault(name, []).append(move)
    return {name: sorted(moves, key=_place) for name, moves in sorted(shards.items())}


def _place(move: Move) -> tuple[int, int]:
    """Wide elements first, so that each tensor is aligned; else as in the source, so that
    neighbours are copied at one go."""
    return -DTYPE_BITS[move.source.header.dtype], move.source.begin


def verify_folder(folder: Path, plan: Plan, progress: Progress = lambda _: None) -> None:
    """Prove that each tensor in `folder` has its source's bytes, or the recomputed change of them.

    Raises `CheckpointUnreadable` naming the first that hasn't, and any that is too much.
    """
    written = {}
    for name in shards_of(plan):
        header = read_file_header(folder / name)
        for tensor, described in header.tensors.items():
            written[tensor] = Stored(tensor, described, folder / name, header.begins[tensor])
    wanted = {move.name: move for move in plan.moves}
    if written.keys() != wanted.keys():
        strange = sorted(written.keys() ^ wanted.keys())
        raise CheckpointUnreadable(f"{folder}: verification failed: {', '.join(strange)}")
    for name, move in wanted.items():
        found, source = written[name], move.source
        if found.header != source.header or (
            _digest(found.pieces()) != _digest(source.pieces(move.transform))
        ):
            raise CheckpointUnreadable(
                f"{folder}: verification failed: {name} is not what {source.name} of "
                f"{source.file} should become. Fix: convert again; check the disk."
            )
        progress(source.header.size)


def _digest(pieces: Iterator[bytes]) -> bytes:
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return digest.digest()
