"""Writes a planned conversion: bytes are streamed, and nothing is there until all of it is."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
import struct
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from sglang_eagle3_patch.checkpoint.conversion.options import NotConvertible
from sglang_eagle3_patch.checkpoint.conversion.plan import Move, Plan
from sglang_eagle3_patch.checkpoint.conversion.source import PIECE
from sglang_eagle3_patch.checkpoint.conversion.streaming import Progress, copy_bytes
from sglang_eagle3_patch.checkpoint.conversion.verify import shards_of, verify_folder
from sglang_eagle3_patch.checkpoint.header import INDEX, METADATA, CheckpointUnreadable

# Weights in any form, their indices, and code: not carried along as they are.
_NOT_CARRIED = (
    *(".safetensors", ".index.json", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".onnx"),
    *(".msgpack", ".h5", ".npz", ".py"),
)
_PAGE = 4096


class NotWritten(OSError):
    """The disk didn't take it; nothing was changed. The text names the place and the reason."""


def write_folder(
    out: Path,
    plan: Plan,
    source: Path,
    provenance: Mapping[str, str],
    *,
    force: bool = False,
    verify: bool = False,
    progress: Progress = lambda _: None,
) -> list[Path]:
    """Write the converted checkpoint to `out` and return the weight files' names.

    All is written to a folder beside `out`, flushed to the disk, verified if wanted, and renamed.
    With `force` an older checkpoint at `out` is replaced, at that moment and not before.
    Raises `NotConvertible` for an `out` that may not be written, `NotWritten` when it can't be,
    `CheckpointUnreadable` when the source can't be read or a byte came out wrong.
    """
    refuse_place(out, source, force=force)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f".{out.name}.", suffix=".unfinished", dir=out.parent))
    except OSError as error:
        raise NotWritten(f"{out} can't be written: {error.strerror}") from error
    try:
        files = _fill(made, plan, source, provenance, progress)
        if verify:
            verify_folder(made, plan, progress)
        made.chmod(0o777 & ~_umask())
        _sync(made)
        refuse_place(out, source, force=force)  # what came there while this was written
        _put_in_place(made, out, replace=force and out.exists())
    except (CheckpointUnreadable, NotConvertible):
        raise
    except OSError as error:
        raise NotWritten(
            f"{out} can't be written: {error.strerror or error}. Nothing was changed."
        ) from error
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return [out / name for name in files]


def refuse_place(out: Path, source: Path, *, force: bool) -> None:
    """Raise `NotConvertible` when `out` is the source or one is in the other, by real paths, or
    is there already and may not be replaced."""
    real_out, real_source = out.resolve(), source.resolve()
    if real_out in (real_source, *real_source.parents) or real_source in real_out.parents:
        raise NotConvertible(
            f"{out} is the draft's own folder, or one is in the other", "name another folder"
        )
    if not (out.is_symlink() or out.exists()):
        return
    if not force:
        raise NotConvertible(f"{out} is there already", "name another folder, or give --force")
    if out.is_symlink() or not out.is_dir() or not _is_checkpoint(out):
        raise NotConvertible(
            f"{out} is no checkpoint folder, and --force replaces nothing else",
            "name another folder",
        )


def _is_checkpoint(folder: Path) -> bool:
    return (folder / "config.json").is_file() or not any(folder.iterdir())


def _fill(
    folder: Path, plan: Plan, source: Path, provenance: Mapping[str, str], progress: Progress
) -> list[str]:
    shards = shards_of(plan)
    for name, moves in shards.items():
        _write_file(folder / name, moves, provenance, progress)
    if len(shards) > 1 or INDEX in {file.name for file in source.iterdir()}:
        total = sum(move.source.header.size for move in plan.moves)
        weight_map = {move.name: name for name, moves in shards.items() for move in moves}
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
        _write_json(folder / INDEX, index)
    _write_json(folder / "config.json", plan.config)
    for file in carried_files(source):
        with file.open("rb") as old, (folder / file.name).open("xb") as new:
            shutil.copyfileobj(old, new, PIECE)
            _sync_file(new)
    return list(shards)


def carried_files(source: Path) -> list[Path]:
    """Return the files that go along as they are: tokenizer, generation config, licence, ..."""
    return [
        file
        for file in sorted(source.iterdir())
        if file.name != "config.json"
        and not file.name.startswith(".")
        and not file.name.endswith(_NOT_CARRIED)
        and _is_regular(file)
    ]


def _is_regular(file: Path) -> bool:
    try:
        return stat.S_ISREG(file.stat().st_mode)
    except OSError:
        return False


def _write_file(
    file: Path, moves: Sequence[Move], provenance: Mapping[str, str], progress: Progress
) -> None:
    with file.open("xb") as stream:
        stream.write(_header(moves, {"format": "pt", **provenance}))
        stream.flush()
        for run in _runs(moves):
            first = run[0].source
            if _in_place(run[0]):
                copy_bytes(first.file, first.begin, _end(run[-1]), stream, progress)
                continue
            for piece in first.pieces(run[0].transform):
                stream.write(piece)
                progress(len(piece))
            stream.flush()
        _sync_file(stream)


def _header(moves: Sequence[Move], metadata: Mapping[str, str]) -> bytes:
    """Return the first bytes of a safetensors file; their number is a multiple of 8."""
    entries: dict[str, Any] = {METADATA: dict(metadata)}
    at = 0
    for move in moves:
        tensor = move.source.header
        entries[move.name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [at, at + tensor.size],
        }
        at += tensor.size
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * ((_place_in_page(moves) - 8 - len(text)) % _PAGE)
    return struct.pack("<Q", len(text)) + text


def _place_in_page(moves: Sequence[Move]) -> int:
    """Return where in a page the data are to begin: so that the largest tensor that is copied lies
    as it does in its source. The kernel then copies page by page; else it copies each in two parts,
    which takes half as long again. 0 where that is no multiple of 8."""
    at, largest, place = 0, 0, 0
    for move in moves:
        size = move.source.header.size
        if _in_place(move) and size > largest:
            largest, place = size, (move.source.begin - at) % _PAGE
        at += size
    return place if place % 8 == 0 else 0


def _runs(moves: Sequence[Move]) -> Iterator[list[Move]]:
    """Return neighbours in the source file, unchanged, together; everything else one by one."""
    run: list[Move] = []
    for move in moves:
        tensor = move.source
        if run and not (_in_place(run[-1]) and _in_place(move) and _end(run[-1]) == tensor.begin):
            yield run
            run = []
        run.append(move)
    if run:
        yield run


def _in_place(move: Move) -> bool:
    return move.transform is None and move.source.buffer is None


def _end(move: Move) -> int:
    return move.source.begin + move.source.header.size


def _put_in_place(made: Path, out: Path, *, replace: bool) -> None:
    """Rename `made` to `out`, which takes the place of nothing but an empty folder; with `replace`
    a checkpoint that is there goes, and only then."""
    aside = made.with_suffix(".replaced")
    if replace:
        out.rename(aside)
    try:
        made.rename(out)
    except BaseException:
        if replace:
            aside.rename(out)
        raise
    _sync(out.parent)
    if replace:
        shutil.rmtree(aside, ignore_errors=True)


def _write_json(file: Path, value: Any) -> None:
    with file.open("xb") as stream:
        stream.write(json.dumps(value, indent=2, ensure_ascii=False).encode() + b"\n")
        _sync_file(stream)


def _sync_file(stream: BinaryIO) -> None:
    stream.flush()
    os.fsync(stream.fileno())


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        # Some network file systems can't flush a folder.
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
