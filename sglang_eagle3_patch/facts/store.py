"""The stored facts: one JSON file for each known release, as `generate` writes them.

Target classes that can do the same share one entry, with a class on each line, so that a change
between releases is a change of lines.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from packaging.version import Version

from sglang_eagle3_patch.facts.engine_facts import (
    DraftClass,
    EngineFacts,
    LaunchFacts,
    Rename,
    TargetClass,
    WorkerFacts,
)

_FOLDER = Path(__file__).parent / "data"


@cache
def known_releases() -> tuple[str, ...]:
    """Return the releases whose facts are stored, oldest first."""
    return tuple(sorted((file.stem for file in _FOLDER.glob("*.json")), key=Version))


def newest_known() -> str:
    """Return the newest release whose facts are stored."""
    return known_releases()[-1]


@cache
def facts_for(release: str) -> EngineFacts | None:
    """Return the stored facts of a release, None when it isn't known."""
    if release not in known_releases():
        return None
    return _load(json.loads((_FOLDER / f"{release}.json").read_text(encoding="utf-8")))


def write(facts: EngineFacts) -> Path:
    """Store the facts of a release, in place of what was known of it, and return the file.

    Raises ValueError for facts of no release.
    """
    if facts.release is None:
        raise ValueError("facts of a source tree without a version can't be stored")
    file = _FOLDER / f"{facts.release}.json"
    file.write_text(json.dumps(_dump(facts), indent=0) + "\n", encoding="utf-8")
    known_releases.cache_clear()
    facts_for.cache_clear()
    return file


def _dump(facts: EngineFacts) -> dict[str, Any]:
    groups: dict[TargetClass, list[str]] = {}
    for name in sorted(facts.targets):
        groups.setdefault(facts.targets[name], []).append(name)
    targets = [{**asdict(kind), "classes": names} for kind, names in groups.items()]
    return {**asdict(facts), "targets": targets}


def _load(data: Mapping[str, Any]) -> EngineFacts:
    targets: dict[str, TargetClass] = {}
    for group in data["targets"]:
        kind = TargetClass(**{key: group[key] for key in group if key != "classes"})
        targets.update(dict.fromkeys(group["classes"], kind))
    workers = data["workers"]
    return EngineFacts(
        release=data["release"],
        requires_python=data["requires_python"],
        transformers=data["transformers"],
        drafts={name: _draft(fields) for name, fields in data["drafts"].items()},
        targets={name: targets[name] for name in sorted(targets)},
        launch=LaunchFacts(**_with_tuples(data["launch"])),
        workers=WorkerFacts(**_with_tuples(workers)),
    )


def _draft(fields: Mapping[str, Any]) -> DraftClass:
    renames = tuple(Rename(**rename) for rename in fields["renames"])
    return DraftClass(**{**_with_tuples(fields), "renames": renames})


def _with_tuples(fields: Mapping[str, Any]) -> dict[str, Any]:
    """JSON has lists where the facts have tuples."""
    return {
        name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()
    }
