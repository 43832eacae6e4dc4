"""`sglang-eagle3`: the command line of the project."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from sglang_eagle3_patch import __version__
from sglang_eagle3_patch.commands import convert, doctor, patches, report, stacks, status
from sglang_eagle3_patch.parity import command as parity


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="sglang-eagle3",
        description="EAGLE-3 drafts in SGLang: load whole, compute what was trained, or say why.",
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True)
    patches.add_parser(commands)
    status.add_parser(commands)
    stacks.add_parser(commands)
    parity.add_parser(commands)
    doctor.add_parser(commands)
    convert.add_parser(commands)
    report.add_parser(commands)
    arguments = parser.parse_args(argv)
    return int(arguments.run(arguments))


if __name__ == "__main__":
    sys.exit(main())
