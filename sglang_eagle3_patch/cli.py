"""`sglang-eagle3`: the command line of the project."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from sglang_eagle3_patch import __version__
from sglang_eagle3_patch.commands import convert, doctor, report, status
from sglang_eagle3_patch.parity import command as parity


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="sglang-eagle3",
        description="EAGLE-3 drafts in SGLang: load whole, compute what was trained, or say why.",
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True)
    patches = commands.add_parser("patches", help="list the runtime patches and why they exist")
    patches.add_argument("--json", action="store_true", help="print JSON")
    patches.set_defaults(run=lambda arguments: list_patches(as_json=arguments.json))
    status.add_parser(commands)
    parity.add_parser(commands)
    doctor.add_parser(commands)
    convert.add_parser(commands)
    report.add_parser(commands)
    arguments = parser.parse_args(argv)
    return int(arguments.run(arguments))


def list_patches(*, as_json: bool) -> int:
    """Print every runtime patch: its name, what it does, why, and when it can go."""
    from sglang_eagle3_patch.hooks import PATCHES

    if as_json:
        json.dump([_as_data(patch) for patch in PATCHES], sys.stdout, indent=1)
        print()
        return 0
    for patch in PATCHES:
        print(f"{patch.name}: {patch.title}")
        print(f"    why: {patch.reason}")
        print(f"    goes when: {patch.remove_when}")
        for hook in patch.hooks:
            print(f"    touches: {hook.path}")
    return 0


def _as_data(patch: Any) -> dict[str, Any]:
    data = {name: value for name, value in asdict(patch).items() if name != "hooks"}
    return {**data, "touches": [hook.path for hook in patch.hooks]}


if __name__ == "__main__":
    sys.exit(main())
