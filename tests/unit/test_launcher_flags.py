"""The launcher's own flags become variables; everything else is SGLang's."""

from __future__ import annotations

import os

import pytest

from sglang_eagle3_patch.launch_server import take_own_flags
from sglang_eagle3_patch.settings import Settings, SettingsError

OPTIONS = "SGLANG_EAGLE3_PATCH_OPTIONS"


def test_other_arguments_are_left_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(OPTIONS, raising=False)
    arguments = ["--model-path", "m", "--eagle3-aux-layers", "2:30:58", "--tp", "8", "positional"]
    assert take_own_flags(arguments) == ["--model-path", "m", "--tp", "8", "positional"]
    assert Settings.from_environment().aux_layers == (2, 30, 58)


def test_the_flag_beats_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OPTIONS, "aux_layers=1:2:3")
    take_own_flags(["--eagle3-aux-layers=2:30:58"])
    assert os.environ[OPTIONS] == "aux_layers=2:30:58"


def test_without_it_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(OPTIONS, raising=False)
    assert take_own_flags(["--eagle"]) == ["--eagle"]
    assert OPTIONS not in os.environ


def test_a_value_it_cannot_hold_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(OPTIONS, raising=False)
    with pytest.raises(SettingsError, match="aux_layers='58:2' is not an ascending list"):
        take_own_flags(["--eagle3-aux-layers", "58:2"])


def test_help_shows_it_before_sglangs(capsys: pytest.CaptureFixture[str]) -> None:
    assert take_own_flags(["--help"]) == ["--help"]
    assert "--eagle3-aux-layers" in capsys.readouterr().out
