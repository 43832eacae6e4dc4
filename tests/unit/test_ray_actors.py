"""What Ray actors are started with; a real Ray is asked in `tests/server/test_ray.py`."""

from __future__ import annotations

import logging
from types import ModuleType
from typing import Any

import pytest

from sglang_eagle3_patch.engine import ray_actors
from sglang_eagle3_patch.settings import PREFIX


class Actor:
    """In the place of Ray's actor class: its `options` returns what it was given."""

    def options(self, **given: Any) -> dict[str, Any]:
        return given


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    for name in (PREFIX, f"{PREFIX}_STRICT"):
        monkeypatch.delenv(name, raising=False)
    module = ModuleType(ray_actors.MODULE)
    module.SchedulerActor = Actor()  # type: ignore[attr-defined]
    return module


def options(module: ModuleType, **given: Any) -> dict[str, Any]:
    ray_actors._wrap_options(module)
    told: dict[str, Any] = module.SchedulerActor.options(**given)
    return told


def test_ours_are_added_to_what_the_caller_asks_for(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PREFIX, "acceptance")
    asked = {"pip": ["x"], "env_vars": {f"{PREFIX}_ACCEPT_LOG": "off"}}
    monkeypatch.setenv(f"{PREFIX}_ACCEPT_LOG", "step")
    told = options(module, num_gpus=1, runtime_env=asked)
    variables = {PREFIX: "acceptance", f"{PREFIX}_ACCEPT_LOG": "off"}
    assert told == {"num_gpus": 1, "runtime_env": {"pip": ["x"], "env_vars": variables}}
    assert asked["env_vars"] == {f"{PREFIX}_ACCEPT_LOG": "off"}


def test_nothing_is_asked_for_where_nothing_of_ours_is_set(module: ModuleType) -> None:
    assert options(module, num_gpus=1) == {"num_gpus": 1}


def test_where_actors_can_not_be_told_it_is_said(
    module: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    del module.SchedulerActor
    with caplog.at_level(logging.ERROR):
        ray_actors._wrap_options(module)
    assert "Ray actors don't get our variables" in caplog.text
    monkeypatch.setenv(f"{PREFIX}_STRICT", "1")
    with pytest.raises(SystemExit):
        ray_actors._wrap_options(module)
    assert f"Fix: set {PREFIX} where each Ray node is started" in capsys.readouterr().err
