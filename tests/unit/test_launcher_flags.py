"""The launcher's own flags become variables; everything else is SGLang's."""

from __future__ import annotations

import os

import pytest

from sglang_eagle3_patch.launch_server import take_own_flags
from sglang_eagle3_patch.settings import Settings, SettingsError

OPTIONS = "SGLANG_EAGLE3_PATCH_OPTIONS"


@pytest.fixture(autouse=True)
def no_options(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable is unset, and is so again afterwards, though the code under test sets it."""
    monkeypatch.setenv(OPTIONS, "")
    monkeypatch.delenv(OPTIONS)


def test_other_arguments_are_left_in_their_order() -> None:
    arguments = ["--model-path", "m", "--eagle3-aux-layers", "2:30:58", "--tp", "8", "positional"]
    _, others = take_own_flags(arguments)
    assert others == ["--model-path", "m", "--tp", "8", "positional"]
    assert Settings.from_environment().aux_layers == (2, 30, 58)


def test_the_flag_beats_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OPTIONS, "aux_layers=1:2:3")
    take_own_flags(["--eagle3-aux-layers=2:30:58"])
    assert os.environ[OPTIONS] == "aux_layers=2:30:58"


def test_without_it_nothing_changes() -> None:
    own, others = take_own_flags(["--eagle"])
    assert others == ["--eagle"]
    assert not own.eagle3_no_preflight
    assert not own.eagle3_dry_run
    assert OPTIONS not in os.environ


def test_a_value_it_cannot_hold_is_told() -> None:
    with pytest.raises(SettingsError, match="aux_layers='58:2' is not an ascending list"):
        take_own_flags(["--eagle3-aux-layers", "58:2"])


def test_those_of_the_preflight_are_taken_out() -> None:
    own, others = take_own_flags(["--tp", "8", "--eagle3-no-preflight"])
    assert own.eagle3_no_preflight
    assert others == ["--tp", "8"]
    own, others = take_own_flags(["--eagle3-dry-run", "--tp", "8"])
    assert own.eagle3_dry_run
    assert others == ["--tp", "8"]


def test_help_shows_them_before_sglangs(capsys: pytest.CaptureFixture[str]) -> None:
    assert take_own_flags(["--help"])[1] == ["--help"]
    shown = capsys.readouterr().out
    for flag in ("--eagle3-aux-layers", "--eagle3-no-preflight", "--eagle3-dry-run"):
        assert flag in shown
