"""What tests of the CPU environments share: a cache folder of their own, and fake commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cpu_sglang import environment_builder, environments
from tests.cpu_sglang.environment_builder import Builder
from tests.unit.environments.fakes import FakeCommands


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(environment_builder.CACHE_VARIABLE, str(tmp_path / "cache"))
    # The stand-in patches the real sglang on import; the packages here are empty.
    monkeypatch.setattr(environments, "STANDIN", tmp_path / "no-standin")
    monkeypatch.setattr(environment_builder, "BASE_GIGABYTES", 0)
    return tmp_path / "cache"


@pytest.fixture
def commands(cache: Path, monkeypatch: pytest.MonkeyPatch) -> FakeCommands:
    fake = FakeCommands()
    monkeypatch.setattr(Builder, "command", lambda builder, *rest: fake.run(builder, *rest))
    return fake
