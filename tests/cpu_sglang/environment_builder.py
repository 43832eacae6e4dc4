"""Building the environments of `environments.py`: each part, its stamp, and the lock on them all.

Standard library only: this runs on the system's Python before anything is installed.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.cpu_sglang.releases import DEFAULT

REPOSITORY = Path(__file__).resolve().parents[2]
LOCKS = Path(__file__).resolve().parent / "locks"
CACHE_VARIABLE = "SGLANG_EAGLE3_CPU_CACHE"
BASE_GIGABYTES = 8
"""What the base venv takes on disk (7.0), and some room for pip to unpack in."""

# A caller's own settings that would change what pip installs, and where.
_DROPPED_FOR_PIP = ("PYTHONPATH", "PYTHONHOME", "PIP_TARGET", "PIP_PREFIX", "PIP_USER")

_started = time.monotonic()


class EnvironmentBroken(RuntimeError):
    """An environment can't be built, or imports something other than what was asked for."""


class Builder:
    """Builds each part in the cache folder and returns its stamp. The caller holds the lock.

    A stamp is a file written last, with a digest of all that the part was made from. A part
    without its stamp is not whole, one with another digest is stale; both are built anew.

    cache: the folder that all environments lie in.
    lock: the file descriptor that `exclusive(cache)` yields.

    Every method raises EnvironmentBroken, with the one thing to do about it, when building fails.
    """

    def __init__(self, cache: Path, lock: int) -> None:
        self.cache, self.lock = cache, lock
        self.venv = cache / "base"
        self.python = self.venv / "bin" / "python"

    def base(self) -> str:
        """Make the venv with torch, SGLang's default release and what both import."""
        # Scripts in a venv name its path, so one that was moved is stale.
        stamp, wanted = self.venv / ".stamp", digest(locked_requirements("base"), str(self.venv))
        if read_if_there(stamp) == wanted and self.python.exists():
            return wanted
        if Path(sys.prefix).resolve() == self.venv.resolve():
            raise EnvironmentBroken(
                f"{self.venv} is out of date and this process runs in it; leave it and run "
                "`./launch.sh test`"
            )
        free = shutil.disk_usage(self.cache).free / 1e9
        if free < BASE_GIGABYTES:
            raise EnvironmentBroken(
                f"the base environment needs {BASE_GIGABYTES} GB in {self.cache}, where {free:.1f} "
                f"GB are free; free some, or name another folder in {CACHE_VARIABLE}"
            )
        discard(self.venv)
        report(f"base: new venv in {self.venv}")
        self.command([sys.executable, "-m", "venv", str(self.venv)], "base-venv")
        torch = [f"{name}=={pinned(name)}" for name in ("torch", "torchvision")]
        report(f"base: {' '.join(torch)} and what they require (about 1 minute)")
        self.pip(["-c", str(LOCKS / "base.txt"), *torch], "base-torch")
        report(f"base: sglang {DEFAULT} and what it imports (about 1 minute)")
        self.pip(["--no-deps", "-r", str(LOCKS / "base.txt")], "base-sglang")
        write_whole(stamp, wanted)
        return wanted

    def tools(self) -> str:
        """Install the development tools in the base venv."""
        stamp, wanted = self.venv / ".stamp-tools", digest(locked_requirements("dev"))
        if read_if_there(stamp) != wanted:
            report("base: development tools")
            stamp.unlink(missing_ok=True)
            # Whatever an interrupted run left half installed is replaced, not trusted.
            arguments = ["--no-deps", "--force-reinstall", "-r", str(LOCKS / "dev.txt")]
            self.pip(arguments, "base-tools")
            write_whole(stamp, wanted)
        return wanted

    def project(self) -> str:
        """Install this checkout, editable. Another checkout's install is replaced."""
        sources = [REPOSITORY / "pyproject.toml", *sorted((REPOSITORY / "startup").glob("*"))]
        if not sources[0].exists():
            report(f"base: {sources[0]} is missing, so the project itself is not installed")
            return "no project"
        stamp = self.venv / ".stamp-project"
        wanted = digest(str(REPOSITORY), *(source.read_text() for source in sources))
        if read_if_there(stamp) != wanted:
            report(f"base: this project from {REPOSITORY}, editable")
            stamp.unlink(missing_ok=True)
            arguments = ["--no-deps", "--no-build-isolation", "-e", str(REPOSITORY)]
            self.pip(arguments, "base-project")
            write_whole(stamp, wanted)
        return wanted

    def overlay(self, folder: Path, requirements: str) -> str:
        """Make `folder` hold exactly `requirements`: built beside it, renamed when whole."""
        interpreter = read_if_there(self.venv / "pyvenv.cfg")
        wanted = digest(requirements, str(interpreter))
        if read_if_there(folder / ".stamp") != wanted:
            name = f"{folder.parent.name} {folder.name}"
            report(f"overlay: {name}")
            building = folder.with_name(f".{folder.name}.building")
            discard(building)
            building.mkdir(parents=True)
            pins = [line for line in requirements.splitlines() if not line.startswith("#")]
            arguments = ["--no-deps", "--no-warn-conflicts", "--target", str(building), *pins]
            self.pip(arguments, name.replace(" ", "-"))
            write_whole(building / ".stamp", wanted)
            discard(folder)
            building.rename(folder)
        return wanted

    def pip(self, arguments: Sequence[str], name: str) -> None:
        """Run the base venv's `pip install` as `command` does."""
        self.command([str(self.python), "-m", "pip", "install", *arguments], name)

    def command(self, command: Sequence[str], name: str) -> None:
        """Run `command` with its output in `logs/<name>.log`; EnvironmentBroken if it fails."""
        log = self.cache / "logs" / f"{name}.log"
        log.parent.mkdir(exist_ok=True)
        kept = {key: text for key, text in os.environ.items() if key not in _DROPPED_FOR_PIP}
        quiet = {"PIP_NO_INPUT": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        with log.open("wb") as output:
            # The child shares the lock: should this process be killed, no other one starts to
            # build before the child has ended too.
            status = subprocess.run(
                command,
                env={**kept, **quiet},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=(self.lock,),
            ).returncode
        if status:
            lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
            telling = [line[:200] for line in lines if "error" in line.lower()] or lines
            free = shutil.disk_usage(self.cache).free / 1e9
            raise EnvironmentBroken(
                f"{name} failed with exit status {status} ({free:.1f} GB free in {self.cache}); "
                f"read {log}, then run the same command again:\n" + "\n".join(telling[-5:])
            )


@contextmanager
def exclusive(cache: Path) -> Iterator[int]:
    """Hold the cache folder's lock, waiting for whoever has it; yield its file descriptor."""
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report(f"waiting for another process that builds in {cache}")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield file.fileno()


def report(text: str) -> None:
    """Print one line on stderr, with the seconds since this process began."""
    print(f"[{time.monotonic() - _started:4.0f} s] {text}", file=sys.stderr, flush=True)


def locked_requirements(name: str) -> str:
    """Return the text of `locks/<name>.txt`; OSError if there is none."""
    return (LOCKS / f"{name}.txt").read_text()


def pinned(package: str) -> str:
    """Return the version of `package` in the base venv; EnvironmentBroken if it isn't pinned."""
    for line in locked_requirements("base").splitlines():
        name, _, version = line.partition("==")
        if name == package:
            return version
    raise EnvironmentBroken(f"{LOCKS / 'base.txt'} has no line {package}==…; add one")


def digest(*texts: str) -> str:
    """Return one SHA-256, in hexadecimal, of all `texts` and of where each ends."""
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()


def read_if_there(file: Path) -> str | None:
    """Return the file's text, None if there is no such file."""
    return file.read_text() if file.exists() else None


def write_whole(file: Path, text: str) -> None:
    """Write a whole file or none: a stamp cut short must not exist."""
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_name(file.name + ".new")
    draft.write_text(text)
    draft.rename(file)


def discard(folder: Path) -> None:
    """Remove `folder`, its stamp first: a removal that is interrupted leaves nothing whole."""
    (folder / ".stamp").unlink(missing_ok=True)
    if folder.exists():
        shutil.rmtree(folder)
