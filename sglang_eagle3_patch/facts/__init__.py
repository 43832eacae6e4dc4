"""What each SGLang release names, supports and forgets: read from its source, stored as data."""

from sglang_eagle3_patch.facts.engine_facts import (
    DraftClass,
    EngineFacts,
    LaunchFacts,
    Rename,
    TargetClass,
    WorkerFacts,
)
from sglang_eagle3_patch.facts.reading import NoSuchSource, installed, read_source
from sglang_eagle3_patch.facts.store import facts_for, known_releases, newest_known

__all__ = [
    "DraftClass",
    "EngineFacts",
    "LaunchFacts",
    "NoSuchSource",
    "Rename",
    "TargetClass",
    "WorkerFacts",
    "facts_for",
    "installed",
    "known_releases",
    "newest_known",
    "read_source",
]
