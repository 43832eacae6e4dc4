"""What the installed SGLang may know though its release does not: forks keep a release's number,
and models are registered from outside."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

from sglang_eagle3_patch.checkpoint.rules import Case
from sglang_eagle3_patch.facts.reading import installed_folder

_EXTERNAL = "SGLANG_EXTERNAL_MODEL_PACKAGE"
_PLUGINS = "sglang.srt.plugins"


def perhaps_known(case: Case) -> frozenset[str]:
    """Return the draft classes and launch flags of a case that its release does not know and the
    installed SGLang may.

    Its source is searched for the words, for classes also that of its other plugins and of the
    package that `SGLANG_EXTERNAL_MODEL_PACKAGE` names. Nothing is imported, and nothing is read
    where the release knows all of them.
    """
    folder = installed_folder()
    if folder is None:
        return frozenset()
    stated = () if case.architecture else case.draft.config.get("architectures") or ()
    named = frozenset(name for name in stated if name not in case.engine.targets)
    classes = _found_in(chain(folder.glob("srt/models/**/*.py"), _files_from_outside()), named)
    known = case.engine.launch.speculative_flags
    flags = {
        typed
        for typed, flag in case.launch.speculative.items()
        if flag is None and not any(name.startswith(typed) for name in known)
    }
    fields = {typed.removeprefix("--").replace("-", "_"): typed for typed in flags}
    readers = [*folder.glob("srt/server_args.py"), *folder.glob("srt/arg_groups/*.py")]
    return classes | {fields[name] for name in _found_in(readers, fields)}


def _found_in(files: Iterable[Path], words: Iterable[str]) -> frozenset[str]:
    """Return the words that the files hold, as words of their own."""
    wanted = set(words)
    found: set[str] = set()
    for text in _texts(files) if wanted else ():
        found |= {word for word in wanted if re.search(rf"\b{re.escape(word)}\b", text)}
    return frozenset(found)


def _texts(files: Iterable[Path]) -> Iterator[str]:
    for file in files:
        try:
            yield file.read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue


def _files_from_outside() -> Iterator[Path]:
    """Return the source of what else may register model classes with SGLang."""
    plugins = importlib.metadata.entry_points(group=_PLUGINS)
    packages = {point.value.partition(":")[0].partition(".")[0] for point in plugins}
    packages.add(os.environ.get(_EXTERNAL, "").partition(".")[0])
    for package in packages - {"", __name__.partition(".")[0]}:
        try:
            spec = importlib.util.find_spec(package)
        except (ImportError, ValueError):
            continue
        for place in spec.submodule_search_locations or () if spec else ():
            yield from Path(place).glob("**/*.py")
        if spec and spec.origin:
            yield Path(spec.origin)
