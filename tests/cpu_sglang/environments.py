"""Environments in which stock SGLang releases serve on a CPU, built on demand and cached.

One base venv holds SGLang 0.5.23 with all it imports, the development tools and this project
(editable, so that its .pth start line is in force there). Any other release is laid over it: a
folder with that sglang, and one with the transformers it wants, both on PYTHONPATH behind the
stand-in. A missing folder would silently serve the base's 0.5.23, so what is imported is compared
with what was asked for, in full after building and cheaply before each run.

`ensure` prints the environment's python, `run` becomes a command in it (see `_USAGE`).
Standard library only: this runs on the system's Python before anything is installed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tests.cpu_sglang.environment_builder import (
    CACHE_VARIABLE,
    REPOSITORY,
    Builder,
    EnvironmentBroken,
    digest,
    exclusive,
    locked_requirements,
    pinned,
    read_if_there,
    report,
    write_whole,
)
from tests.cpu_sglang.releases import DEFAULT, Release, find

__all__ = [
    "Environment",
    "EnvironmentBroken",
    "cache_folder",
    "ensure",
    "main",
    "verify",
    "with_ray",
]

STANDIN = Path(__file__).resolve().parent / "standin"
OLDEST_PYTHON = (3, 11)

# A caller's own settings that would change what is served.
_DROPPED_FOR_RUNS = ("PYTHONHASHSEED", "PYTHONHOME", "TRITON_INTERPRET")


@dataclass(frozen=True)
class Environment:
    """A python and the variables under which it imports one SGLang release.

    release: the release asked for.
    python: the base venv's interpreter, the same for all releases.
    overlays: the folders laid over the base venv, first wins; empty for the base's own release.
    """

    release: Release
    python: Path
    overlays: tuple[Path, ...] = ()

    def variables(self) -> dict[str, str]:
        """Return what a process needs in its environment beside what the caller has there."""
        path = [str(self.python.parent), os.environ.get("PATH", os.defpath)]
        added = {
            "PYTHONPATH": os.pathsep.join(map(str, (STANDIN, *self.overlays))),
            "PATH": os.pathsep.join(path),
            "VIRTUAL_ENV": str(self.python.parent.parent),
            "EAGLE3_CPU_STANDIN": self.release.route,
            "SGLANG_USE_CPU_ENGINE": "1",
            "TORCHDYNAMO_DISABLE": "1",
            "OMP_NUM_THREADS": "1",
            "OMP_WAIT_POLICY": "PASSIVE",
            "HF_HUB_OFFLINE": "1",
            # The stand-in refuses to load where torch can use a GPU.
            "CUDA_VISIBLE_DEVICES": "",
        }
        if self.release.route == "triton":
            added["TRITON_INTERPRET"] = "1"
        return added

    def process_environment(self) -> dict[str, str]:
        """Return the whole environment of a process: the caller's, mended, with `variables()`."""
        kept = {name: text for name, text in os.environ.items() if name not in _DROPPED_FOR_RUNS}
        return {**kept, **self.variables()}


def cache_folder() -> Path:
    """Return where the environments lie, `.cache/cpu_sglang` unless the variable says otherwise."""
    chosen = os.environ.get(CACHE_VARIABLE)
    return Path(chosen).expanduser().resolve() if chosen else REPOSITORY / ".cache/cpu_sglang"


def ensure(version: str = DEFAULT) -> Environment:
    """Build what is missing or stale for SGLang `version` and return its environment.

    Raises ValueError for a release that is not known and EnvironmentBroken, with the one thing
    to do about it, when building fails or another release than `version` is imported. Two
    processes may call this at once: the second waits for the first.
    """
    release = find(version)
    if sys.version_info < OLDEST_PYTHON:
        wanted = ".".join(map(str, OLDEST_PYTHON))
        raise EnvironmentBroken(
            f"{sys.executable} is Python {sys.version.split()[0]}; run this with {wanted} or newer"
        )
    cache = cache_folder()
    with exclusive(cache) as lock:
        builder = Builder(cache, lock)
        stamps = [builder.base(), builder.tools(), builder.project()]
        overlays = []
        if version != DEFAULT:
            overlays.append(cache / "overlays/sglang" / version)
            stamps.append(builder.overlay(overlays[-1], f"sglang=={version}\n"))
        if release.transformers is not None:
            overlays.append(cache / "overlays/transformers" / release.transformers)
            requirements = locked_requirements(f"transformers-{release.transformers}")
            stamps.append(builder.overlay(overlays[-1], requirements))
        environment = Environment(release, builder.python, tuple(overlays))
        checked, now = cache / "checked" / version, digest(*stamps)
        verify(environment)
        if read_if_there(checked) != now:
            report(f"sglang {version}: importing it")
            verify(environment, by_import=True)
            write_whole(checked, now)
            report(f"sglang {version}: ready")
    return environment


def with_ray(environment: Environment) -> Environment:
    """Return `environment`, which `ensure` gave, with Ray laid over it; built if it isn't there.

    A part of its own, since only the tests of Ray need it (250 MB). Raises EnvironmentBroken.
    """
    cache = cache_folder()
    folder = cache / "overlays/extras/ray"
    with exclusive(cache) as lock:
        Builder(cache, lock).overlay(folder, locked_requirements("ray"))
    return replace(environment, overlays=(*environment.overlays, folder))


# Both print one JSON line; the cheap one reads what an import would find, without torch (0.2 s).
_LOOK = """
import importlib.metadata, importlib.util, json, pathlib, re
folder = pathlib.Path(importlib.util.find_spec("sglang").origin).parent
source = re.search(r"__version__ = version = '(.+?)'", (folder / "_version.py").read_text())
version = importlib.metadata.version
print(json.dumps([source[1], version("sglang"), version("transformers")]))
"""
_IMPORT = """
import importlib.metadata, json, sglang, transformers
import sglang.srt.server_args
found = [sglang.__version__, importlib.metadata.version("sglang"), transformers.__version__]
print(json.dumps(found))
"""


def verify(environment: Environment, *, by_import: bool = False) -> None:
    """Raise EnvironmentBroken unless `environment` imports the release it is for.

    Compares the version in sglang's source, the one in its metadata and that of transformers;
    `by_import` really imports both (about 10 s), without the stand-in, so that its faults are
    not blamed on the environment; otherwise they are only looked up (0.2 s).
    """
    release = environment.release
    transformers = release.transformers or pinned("transformers")
    cache = environment.python.parents[2]
    culprit = cache / "overlays" if environment.overlays else cache
    mend = f"remove {culprit} and run the same command again"
    variables = environment.process_environment()
    variables.pop("SGLANG_EAGLE3_PATCH", None)  # the start line would import more than is asked
    if by_import:
        variables["PYTHONPATH"] = os.pathsep.join(map(str, environment.overlays))
        del variables["EAGLE3_CPU_STANDIN"]
    result = subprocess.run(
        [environment.python, "-c", _IMPORT if by_import else _LOOK],
        env=variables,
        cwd=environment.python.parent,
        capture_output=True,
        text=True,
    )
    if result.returncode:
        complaint = result.stderr.strip() or f"exit status {result.returncode}"
        raise EnvironmentBroken(
            f"the environment for sglang {release.version} can't import it; {mend}:\n{complaint}"
        )
    source, metadata, found = json.loads(result.stdout.splitlines()[-1])
    if (source, metadata, found) != (release.version, release.version, transformers):
        raise EnvironmentBroken(
            f"sglang {release.version} with transformers {transformers} was asked for, but sglang "
            f"{source} (metadata: {metadata}) with transformers {found} is imported; {mend}"
        )


_USAGE = """python -m tests.cpu_sglang.environments ensure [--sglang V]
       python -m tests.cpu_sglang.environments run [--sglang V] -- CMD ..."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; `run` does not return, it becomes the command."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    # Split by hand: argparse would take the command's own options for ours.
    end = words.index("--") if "--" in words else len(words)
    command = words[end + 1 :]
    parser = argparse.ArgumentParser(prog="environments", usage=_USAGE)
    parser.add_argument("action", choices=["ensure", "run"])
    parser.add_argument("--sglang", default=DEFAULT, metavar="V")
    chosen = parser.parse_args(words[:end])
    if (chosen.action == "run") != bool(command):
        parser.error("`run` needs a command after --, `ensure` takes none")
    try:
        environment = ensure(chosen.sglang)
    except (EnvironmentBroken, ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    if chosen.action == "ensure":
        print(environment.python)
        return 0
    try:
        os.execvpe(command[0], command, environment.process_environment())
    except OSError as error:
        print(f"error: can't run {command[0]}: {error.strerror}", file=sys.stderr)
        return 127


if __name__ == "__main__":
    sys.exit(main())
