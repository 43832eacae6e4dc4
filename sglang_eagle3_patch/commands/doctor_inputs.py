"""What the doctor judges, found and read: a folder, a file, or a hub id; no weights are fetched."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from sglang_eagle3_patch.checkpoint.config_file import read_config
from sglang_eagle3_patch.checkpoint.header import (
    CheckpointUnreadable,
    files_with,
    read_header,
    weight_files,
)
from sglang_eagle3_patch.checkpoint.hub import hub_headers
from sglang_eagle3_patch.checkpoint.locate import local_folder
from sglang_eagle3_patch.checkpoint.rules.small_values import SmallValues, read_small_values
from sglang_eagle3_patch.checkpoint.spec import DraftSpec
from sglang_eagle3_patch.checkpoint.target import TargetSpec

Found = TypeVar("Found")


class CannotJudge(ValueError):
    """There is nothing to judge; the text says what is missing, in one line."""


@dataclass(frozen=True)
class DraftInput:
    """A draft as it was found: `weights` are its local safetensors files, `names` all of its
    files, None where they aren't known, as of a draft on a hub."""

    spec: DraftSpec
    weights: tuple[Path, ...] = ()
    names: tuple[str, ...] | None = None

    def values(self, target: str | None) -> SmallValues | None:
        """Return the small values of a local draft, None of another.

        Raises `CannotJudge` when they can't be read.
        """
        if not self.weights:
            return None
        # The target's files are opened for its embedding, and only to compare it with the draft's.
        folder = local_folder(target) if target and self.spec.has_embedding else None
        targets = [] if folder is None else files_with(folder, "embed_tokens.weight")
        try:
            return read_small_values(list(self.weights), targets)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CannotJudge(f"the values of {self.spec.folder} can't be read: {error}") from error


def find_draft(name: str, revision: str | None = None) -> DraftInput:
    """Return the draft behind a folder, a safetensors file or a hub id of some revision.

    Raises `CannotJudge` with the reason.
    """
    path = _path(name)
    if _is(path.is_file):
        return _guarded(name, lambda: _single_file(path))
    folder = _local(name, revision)
    if folder is not None and (path.is_dir() or _is_whole(folder)):
        return _guarded(name, lambda: _folder(folder))
    return _guarded(name, lambda: _from_hub(name, revision))


def find_target(name: str, revision: str | None = None) -> TargetSpec:
    """Return the target behind a folder, a config file or a hub id of some revision, by its
    config alone.

    Raises `CannotJudge` with the reason.
    """
    path = _path(name)
    if _is(path.is_file):
        return _guarded(name, lambda: TargetSpec.read(path.parent, name))
    folder = _local(name, revision)
    if folder is None:
        folder = _guarded(name, lambda: _hub_config(name, revision).parent)
    return _guarded(name, lambda: TargetSpec.read(folder, name))


def with_config_file(arguments: Sequence[str]) -> list[str]:
    """Return launch arguments with those of SGLang's `--config FILE` in its place.

    As SGLang merges them: the file's go first, so that those of the command line win.
    Raises `CannotJudge` when the file can't be read.
    """
    given = list(arguments)
    if "--config" not in given:
        return given
    place = given.index("--config")
    (file, *others) = given[place + 1 :] or [""]
    return [*_arguments_in(file), *given[:place], *others]


def _arguments_in(file: str) -> list[str]:
    import yaml  # type: ignore[import-untyped]  # huggingface_hub brings it

    try:
        config = yaml.safe_load(Path(file).read_text(encoding="utf-8")) or {}
    except (OSError, ValueError, yaml.YAMLError) as error:
        told = " ".join(str(error).split())
        raise CannotJudge(f"--config {file} can't be read: {told}") from error
    if not isinstance(config, dict):
        raise CannotJudge(f"--config {file} holds no arguments by name")
    arguments: list[str] = []
    for name, value in config.items():
        if isinstance(value, bool):
            # Of what matters to a draft, all that is true or false are switches.
            arguments += [f"--{name}"] if value else []
        elif isinstance(value, list):
            arguments += [f"--{name}", *map(str, value)]
        else:
            text = json.dumps(value) if isinstance(value, dict) else str(value)
            arguments += [f"--{name}", text]
    return arguments


def _path(name: str) -> Path:
    if not name.strip():
        raise CannotJudge("an empty name was given for a draft or a target")
    return Path(name)


def _local(name: str, revision: str | None) -> Path | None:
    path = Path(name)
    looks_local = path.is_absolute() or name.startswith(("./", "../", "~")) or name.count("/") > 1
    if looks_local and not _is(path.is_dir):
        raise CannotJudge(f"there is no folder {name}")
    return _guarded(name, lambda: local_folder(name, revision))


def _is(kind: Callable[[], bool]) -> bool:
    """Call `is_file` or `is_dir`; a name longer than any path is neither."""
    try:
        return kind()
    except OSError:
        return False


def _guarded(name: str, read: Callable[[], Found]) -> Found:
    """Call `read`; whatever can go wrong with files and with a hub becomes `CannotJudge`."""
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        return read()
    except CannotJudge:
        raise
    except CheckpointUnreadable as error:
        raise CannotJudge(str(error)) from error
    except HFValidationError as error:
        raise CannotJudge(f"{name} is neither a folder nor a hub id") from error
    except (HfHubHTTPError, OSError, ValueError) as error:
        told = " ".join(str(error).split())[:300] or type(error).__name__
        raise CannotJudge(
            f"{name} is no folder here and can't be read from the hub: {told}"
        ) from error


def _folder(folder: Path) -> DraftInput:
    names = tuple(sorted(file.name for file in folder.iterdir()))
    spec = DraftSpec.read(folder)
    return DraftInput(spec, tuple(weight_files(folder)), names)


def _single_file(file: Path) -> DraftInput:
    folder = file.parent
    if not (folder / "config.json").exists():
        raise CannotJudge(f"there is no config.json beside {file}. Fix: give the draft's folder")
    if file.suffix != ".safetensors":
        return _folder(folder)
    config = read_config(folder / "config.json")
    return DraftInput(DraftSpec.of(config, read_header(file), folder), (file,), (file.name,))


def _is_whole(folder: Path) -> bool:
    """Whether a cached snapshot holds weights, not just the config that someone looked at."""
    try:
        weights = weight_files(folder)
    except CheckpointUnreadable:
        return True  # reading it tells what is wrong
    return bool(weights) and all(file.is_file() for file in weights)


def _hub_config(name: str, revision: str | None) -> Path:
    from huggingface_hub import hf_hub_download

    return Path(hf_hub_download(name, "config.json", revision=revision))


def _from_hub(name: str, revision: str | None) -> DraftInput:
    """The config is fetched, of the weights only the headers, by range requests."""
    from huggingface_hub.errors import NotASafetensorsRepoError, OfflineModeIsEnabled

    file = _hub_config(name, revision)
    config = read_config(file)
    try:
        headers = hub_headers(name, revision)
    except (OfflineModeIsEnabled, NotASafetensorsRepoError):
        return DraftInput(DraftSpec.of(config, {}, file.parent))
    except Exception as error:  # what a hub sends is anybody's, and its client raises all sorts
        told = " ".join(str(error).split())[:300]
        raise CannotJudge(
            f"the headers of {name} can't be read from the hub ({type(error).__name__}: {told})"
        ) from error
    return DraftInput(DraftSpec.of(config, headers, file.parent))
