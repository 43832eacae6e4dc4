"""Running in the CPU environments: the variables, the look at what is imported, the command line.

The environments are made by fakes of pip and venv; what is imported in them is really imported.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.cpu_sglang import environments
from tests.cpu_sglang.environments import Environment, EnvironmentBroken, ensure, verify
from tests.cpu_sglang.releases import find
from tests.unit.environments.fakes import TRANSFORMERS, FakeCommands, write_package


def test_variables_of_both_routes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    python = tmp_path / "base" / "bin" / "python"
    overlays = (tmp_path / "sglang", tmp_path / "transformers")
    old = Environment(find("0.5.9"), python, overlays).process_environment()
    new = Environment(find("0.5.23"), python).process_environment()
    assert old["PYTHONPATH"].split(":") == [str(environments.STANDIN), *map(str, overlays)]
    assert new["PYTHONPATH"] == str(environments.STANDIN)
    assert (old["EAGLE3_CPU_STANDIN"], new["EAGLE3_CPU_STANDIN"]) == ("triton", "cpu")
    assert old["TRITON_INTERPRET"] == "1"
    assert "TRITON_INTERPRET" not in new
    for environment in (old, new):
        assert environment["PATH"] == f"{python.parent}:/usr/bin"
        assert environment["SGLANG_USE_CPU_ENGINE"] == "1"
        assert "PYTHONHASHSEED" not in environment


@pytest.mark.parametrize("by_import", [False, True])
def test_a_missing_overlay_is_found_out(
    by_import: bool, cache: Path, commands: FakeCommands
) -> None:
    environment = ensure("0.5.9")
    verify(environment, by_import=by_import)
    environment.overlays[0].rename(cache / "misspelt")
    with pytest.raises(
        EnvironmentBroken,
        match=r"^sglang 0\.5\.9 with transformers 4\.57\.1 was asked for, but sglang 0\.5\.23 "
        r"\(metadata: 0\.5\.23\) with transformers 4\.57\.1 is imported; remove .*/overlays and",
    ):
        verify(environment, by_import=by_import)


def test_the_bases_transformers_under_an_old_release_is_found_out(
    cache: Path, commands: FakeCommands
) -> None:
    environment = ensure("0.5.9")
    environment.overlays[1].rename(cache / "misspelt")
    with pytest.raises(EnvironmentBroken, match=f"with transformers {TRANSFORMERS} is imported"):
        verify(environment)


def test_metadata_of_another_release_than_the_source_is_found_out(
    cache: Path, commands: FakeCommands
) -> None:
    environment = ensure("0.5.9")
    (environment.overlays[0] / "sglang-0.5.9.dist-info").rename(cache / "gone")
    with pytest.raises(EnvironmentBroken, match=r"but sglang 0\.5\.9 \(metadata: 0\.5\.23\)"):
        verify(environment)


def test_an_import_that_fails_is_reported_and_tried_again(
    cache: Path, commands: FakeCommands
) -> None:
    def break_base(name: str) -> None:
        if name == "base-project":
            (cache / "base/packages/sglang/srt/server_args.py").write_text("import no_such_module")

    commands.before = break_base
    for _ in range(2):
        with pytest.raises(EnvironmentBroken, match=r"(?s)can't import it.*no_such_module"):
            ensure()


def test_ensure_refuses_an_environment_that_serves_another_release(
    cache: Path, commands: FakeCommands
) -> None:
    ensure("0.5.11")
    write_package(cache / "overlays/sglang/0.5.11", "sglang", "0.5.12")
    with pytest.raises(EnvironmentBroken, match=r"^sglang 0\.5\.11 .* was asked for, but"):
        ensure("0.5.11")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["run"], "`run` needs a command"),
        (["run", "--"], "`run` needs a command"),
        (["ensure", "--", "true"], "`ensure` takes none"),
    ],
)
def test_command_line_mistakes(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        environments.main(arguments)
    assert caught.value.code == 2
    assert complaint in capsys.readouterr().err


def test_run_becomes_the_command_with_its_own_options(
    cache: Path, commands: FakeCommands, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(os, "execvpe", lambda *call: seen.extend(call))
    environments.main(["run", "--sglang", "0.5.9", "--", "tool", "--sglang", "x", "--", "y"])
    assert seen[0] == "tool"
    assert seen[1] == ["tool", "--sglang", "x", "--", "y"]
    assert seen[2]["EAGLE3_CPU_STANDIN"] == "triton"


def test_unknown_release_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert environments.main(["ensure", "--sglang", "9.9"]) == 1
    assert "error: SGLang '9.9' is not among" in capsys.readouterr().err
