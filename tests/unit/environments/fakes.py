"""Stand-ins for venv and pip that write a few files, and the packages these would install."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.cpu_sglang.environment_builder import Builder, pinned
from tests.cpu_sglang.releases import DEFAULT

TRANSFORMERS = pinned("transformers")


def go_on(name: str) -> None:
    """Interrupt nothing."""


class FakeCommands:
    """Stands for venv and pip: notes each command, and makes what it would leave behind.

    before: called with the command's name after the first file is written and before the rest,
        where an interruption or a failing pip is simulated by raising.
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self.before: Callable[[str], None] = go_on

    def run(self, builder: Builder, command: Sequence[str], name: str) -> None:
        self.names.append(name)
        words = list(command)
        if words[1:3] == ["-m", "venv"]:
            folder = Path(words[3])
            (folder / "bin").mkdir(parents=True)
            self.before(name)
            (folder / "pyvenv.cfg").write_text("version = 3.11.0\n")
            # It sees one folder of fake packages and none of the real ones of the same names.
            python = folder / "bin" / "python"
            python.write_text(
                f'#!/bin/sh\nexport PYTHONPATH="$PYTHONPATH:{folder}/packages"\n'
                f'exec "{sys.executable}" "$@"\n'
            )
            python.chmod(0o755)
        elif "--target" in words:
            target = Path(words[words.index("--target") + 1])
            (target / "first").touch()
            self.before(name)
            for pin in words[words.index("--target") + 2 :]:
                write_package(target, *pin.split("=="))
        else:
            packages = builder.venv / "packages"
            write_package(packages, "sglang", DEFAULT)
            self.before(name)
            write_package(packages, "transformers", TRANSFORMERS)


def write_package(folder: Path, name: str, version: str) -> None:
    package, metadata = folder / name, folder / f"{name}-{version}.dist-info"
    (package / "srt").mkdir(parents=True, exist_ok=True)
    metadata.mkdir(exist_ok=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (package / "_version.py").write_text(f"__version__ = version = '{version}'\n")
    (package / "__init__.py").write_text(f"from {name}._version import __version__\n")
    (package / "srt" / "server_args.py").touch()
