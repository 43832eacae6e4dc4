"""Building the CPU environments: no half-built or stale folder passes for whole.

pip and venv are fakes here that write a few files; the real build is what runs these tests.
Locks, signals and renames are real, in real processes.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cpu_sglang import environment_builder
from tests.cpu_sglang.environment_builder import Builder, EnvironmentBroken, exclusive
from tests.cpu_sglang.environments import ensure
from tests.unit.environments.fakes import FakeCommands, go_on


def test_a_whole_environment_is_built_once(cache: Path, commands: FakeCommands) -> None:
    environment = ensure("0.5.9")
    assert environment.overlays == (
        cache / "overlays/sglang/0.5.9",
        cache / "overlays/transformers/4.57.1",
    )
    built = list(commands.names)
    assert built[:3] == ["base-venv", "base-torch", "base-sglang"]
    assert built[-2:] == ["sglang-0.5.9", "transformers-4.57.1"]
    ensure("0.5.9")
    assert commands.names == built
    ensure("0.5.23")
    assert commands.names == built


@pytest.mark.parametrize(
    "interrupted",
    ["base-venv", "base-torch", "base-sglang", "base-tools", "sglang-0.5.9", "transformers-4.57.1"],
)
def test_an_interrupted_build_is_not_taken_for_whole(
    interrupted: str, cache: Path, commands: FakeCommands
) -> None:
    def interrupt(name: str) -> None:
        if name == interrupted:
            raise KeyboardInterrupt

    commands.before = interrupt
    with pytest.raises(KeyboardInterrupt):
        ensure("0.5.9")
    commands.names.clear()
    commands.before = go_on
    environment = ensure("0.5.9")
    assert interrupted in commands.names
    assert (environment.overlays[0] / "sglang" / "__init__.py").exists()
    assert not list(cache.glob("overlays/*/.*.building"))


def test_an_interrupted_overlay_leaves_no_folder_of_its_name(
    cache: Path, commands: FakeCommands
) -> None:
    def interrupt(name: str) -> None:
        if name == "sglang-0.5.9":
            raise KeyboardInterrupt

    commands.before = interrupt
    with pytest.raises(KeyboardInterrupt):
        ensure("0.5.9")
    assert not (cache / "overlays/sglang/0.5.9").exists()


def test_an_interrupted_removal_is_not_taken_for_whole(
    cache: Path, commands: FakeCommands, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = ensure("0.5.9").overlays[0]

    def interrupt(path: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", interrupt)
        with pytest.raises(KeyboardInterrupt):
            environment_builder.discard(folder)
    assert (folder / "sglang").is_dir()
    commands.names.clear()
    ensure("0.5.9")
    assert commands.names == ["sglang-0.5.9"]


@pytest.mark.parametrize(
    ("lock", "rebuilt"),
    [
        ("base", ["base-venv", "base-torch", "base-sglang", "base-tools", "base-project"]),
        ("dev", ["base-tools"]),
        ("transformers-4.57.1", ["transformers-4.57.1"]),
    ],
)
def test_a_changed_lock_rebuilds_what_was_made_from_it(
    lock: str,
    rebuilt: list[str],
    cache: Path,
    commands: FakeCommands,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    locks = tmp_path / "locks"
    locks.mkdir()
    for file in environment_builder.LOCKS.iterdir():
        (locks / file.name).write_text(file.read_text())
    monkeypatch.setattr(environment_builder, "LOCKS", locks)
    ensure("0.5.9")
    commands.names.clear()
    with (locks / f"{lock}.txt").open("a") as changed:
        changed.write("# changed\n")
    ensure("0.5.9")
    assert commands.names == rebuilt


def test_a_moved_venv_and_another_checkout_are_stale(
    cache: Path, commands: FakeCommands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ensure()
    commands.names.clear()
    other = tmp_path / "other"
    shutil.copytree(environment_builder.REPOSITORY / "startup", other / "startup")
    shutil.copy(environment_builder.REPOSITORY / "pyproject.toml", other)
    monkeypatch.setattr(environment_builder, "REPOSITORY", other)
    ensure()
    assert commands.names == ["base-project"]
    commands.names.clear()
    cache.rename(tmp_path / "moved")
    monkeypatch.setenv(environment_builder.CACHE_VARIABLE, str(tmp_path / "moved"))
    ensure()
    assert commands.names[0] == "base-venv"


def test_too_small_a_disk_is_refused_before_anything_is_built(
    cache: Path, commands: FakeCommands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment_builder, "BASE_GIGABYTES", 10**9)
    with pytest.raises(EnvironmentBroken, match=r"needs 1000000000 GB in .*GB are free; free some"):
        ensure()
    assert commands.names == []


def test_a_failing_command_is_reported_with_its_log(cache: Path) -> None:
    cache.mkdir()
    with exclusive(cache) as lock:
        builder = Builder(cache, lock)
        program = "print('ERROR: No space left on device'); raise SystemExit(3)"
        with pytest.raises(EnvironmentBroken) as caught:
            builder.command([sys.executable, "-c", program], "base-torch")
    message = str(caught.value)
    assert message.startswith("base-torch failed with exit status 3 (")
    assert f"read {cache}/logs/base-torch.log, then run the same command again" in message
    assert message.endswith("ERROR: No space left on device")


def test_a_callers_own_paths_do_not_reach_pip(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.mkdir()
    names = ("PYTHONPATH", "PYTHONHOME", "PIP_TARGET", "PIP_PREFIX", "PIP_USER")
    for name in names:
        monkeypatch.setenv(name, "/nowhere")
    with exclusive(cache) as lock:
        builder = Builder(cache, lock)
        builder.command(["env"], "environment")
    shown = (cache / "logs/environment.log").read_text()
    assert "PATH=" in shown
    assert not [name for name in names if f"\n{name}=" in f"\n{shown}"]


BUILD_SLOWLY = """
import sys, time
from pathlib import Path
from tests.cpu_sglang.environment_builder import Builder, exclusive
folder, journal = Path(sys.argv[1]), Path(sys.argv[2])
def pip(builder, arguments, name):
    with journal.open("a") as file:
        file.write("begin\\n")
    time.sleep(1)
    with journal.open("a") as file:
        file.write("end\\n")
Builder.pip = pip
with exclusive(folder) as lock:
    Builder(folder, lock).overlay(folder / "overlays/sglang/0.5.9", "sglang==0.5.9")
"""


def start(program: str, *arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(environment_builder.REPOSITORY)}
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_of_two_processes_one_builds_and_one_waits(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    both = [start(BUILD_SLOWLY, str(tmp_path), str(journal)) for _ in range(2)]
    said = [process.communicate(timeout=60)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert journal.read_text().splitlines() == ["begin", "end"]
    assert sorted("waiting for another process" in text for text in said) == [False, True]


BUILD_AND_BE_KILLED = """
import sys
from pathlib import Path
from tests.cpu_sglang.environment_builder import Builder, exclusive
folder = Path(sys.argv[1])
with exclusive(folder) as lock:
    program = "import time; print('building', flush=True); time.sleep(4)"
    Builder(folder, lock).command([sys.executable, "-c", program], "build")
"""


def test_a_killed_builders_child_keeps_others_out_until_it_ends(tmp_path: Path) -> None:
    builder, log = start(BUILD_AND_BE_KILLED, str(tmp_path)), tmp_path / "logs/build.log"
    deadline = time.monotonic() + 30
    while not (log.exists() and log.read_text()):
        assert time.monotonic() < deadline, "the child did not start"
        time.sleep(0.05)
    builder.send_signal(signal.SIGKILL)
    builder.communicate()
    with (tmp_path / "lock").open("w") as file:
        with pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        began = time.monotonic()
        fcntl.flock(file, fcntl.LOCK_EX)
        assert time.monotonic() - began < 10
