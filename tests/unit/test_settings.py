from __future__ import annotations

import pytest

from sglang_eagle3_patch.settings import PREFIX, VARIABLES, Selection, Settings, SettingsError


@pytest.mark.parametrize("text", ["1", "all", "true", ""])
def test_everything_is_selected(text: str) -> None:
    selection = Selection.parse(text)
    assert selection.wants("draft-weights")
    assert selection.wants("fc-guard")


def test_named_patches_exclude_the_others() -> None:
    selection = Selection.parse("draft-weights, fc-guard")
    assert selection.wants("draft-weights")
    assert not selection.wants("acceptance")


def test_a_leading_minus_leaves_one_out() -> None:
    selection = Selection.parse("-draft-weights")
    assert not selection.wants("draft-weights")
    assert selection.wants("fc-guard")


def test_on_with_exceptions() -> None:
    selection = Selection.parse("1,-fc-guard")
    assert not selection.wants("fc-guard")
    assert selection.wants("draft-weights")


def test_naming_both_kinds_is_an_error() -> None:
    with pytest.raises(SettingsError, match="mixes patches"):
        Selection.parse("draft-weights,-fc-guard")


def test_options_are_checked() -> None:
    settings = Settings.from_environment({f"{PREFIX}_OPTIONS": "aux_layers=2:30:58"})
    assert settings.aux_layers == (2, 30, 58)
    settings = Settings.from_environment({f"{PREFIX}_OPTIONS": "rope_theta=5e5"})
    assert settings.rope_theta == 500000.0
    settings = Settings.from_environment(
        {f"{PREFIX}_OPTIONS": "trace_requests=1, trace_mb=16,trace_files=2,alarm_steps=0"}
    )
    assert (settings.trace_requests, settings.trace_mb, settings.trace_files) == (True, 16, 2)
    assert settings.alarm_steps == 0
    wrong_layers = ("aux_layers=2:x", "aux_layers=5:4", "aux_layers=", "layers=1")
    wrong_thetas = (
        "rope_theta=1",
        "rope_theta=x",
        "rope_theta=",
        "rope_theta=nan",
        "rope_theta=inf",
    )
    for wrong in (
        *wrong_layers,
        *wrong_thetas,
        "trace_mb=0",
        "trace_files=x",
        "trace_requests=2",
        "alarm_steps",
    ):
        with pytest.raises(SettingsError, match=r"Fix:"):
            Settings.from_environment({f"{PREFIX}_OPTIONS": wrong})


def test_the_stall_variable_beats_the_option() -> None:
    option = {f"{PREFIX}_OPTIONS": "stall_s=60,trace_mb=16"}
    assert Settings.from_environment({}).stall_s == 300
    assert Settings.from_environment({f"{PREFIX}_STALL_S": "20"}).stall_s == 20
    assert Settings.from_environment({**option, f"{PREFIX}_STALL_S": ""}).stall_s == 60
    both = Settings.from_environment({**option, f"{PREFIX}_STALL_S": "0"})
    assert (both.stall_s, both.trace_mb) == (0, 16)


@pytest.mark.parametrize("wrong", ["-1", "5m"])
def test_what_the_stall_variable_cannot_hold(wrong: str) -> None:
    complaint = f"{PREFIX}_STALL_S='{wrong}' is not a number of seconds.*like {PREFIX}_STALL_S=300"
    with pytest.raises(SettingsError, match=complaint):
        Settings.from_environment({f"{PREFIX}_STALL_S": wrong})


def test_variables_that_nobody_knows_are_noticed() -> None:
    every = {variable.name: "" for variable in VARIABLES}
    assert Settings.from_environment({**every, "PATH": "", f"{PREFIX}ED": "1"}).unknown == ()
    misspelt = {f"{PREFIX}_STALL": "60", f"{PREFIX}_ALARM_STEPS": "5"}
    assert Settings.from_environment({**every, **misspelt}).unknown == tuple(sorted(misspelt))


@pytest.mark.parametrize(("name", "value"), [("_ACCEPT_LOG", "always"), ("_STRICT", "maybe")])
def test_unknown_values_name_the_variable(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=f"{PREFIX}{name}.*Fix:"):
        Settings.from_environment({f"{PREFIX}{name}": value})


@pytest.mark.parametrize("word", ["0", "off", "No"])
def test_a_word_for_off_wants_nothing(word: str) -> None:
    assert not Selection.parse(word).wants("draft-weights")
