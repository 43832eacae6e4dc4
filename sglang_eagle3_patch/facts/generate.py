"""Rewrites the stored facts from SGLang's source.

Each argument is an `sglang` package, installed or unpacked from its wheel; without arguments the
installed one is taken. For one release, and for all of them:

    ./launch.sh run --sglang 0.5.23 -- python -m sglang_eagle3_patch.facts.generate
    for release in $(python3 -c 'from tests.cpu_sglang.releases import RELEASES; print(*RELEASES)')
    do ./launch.sh run --sglang $release -- python -m sglang_eagle3_patch.facts.generate; done
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from sglang_eagle3_patch.facts.reading import installed_folder, read_source
from sglang_eagle3_patch.facts.store import write


def main(arguments: Sequence[str]) -> int:
    """Read every folder named, or the installed package, and store its facts."""
    folders = [Path(argument) for argument in arguments]
    if not folders:
        found = installed_folder()
        if found is None:
            print("error: no sglang is installed here; name its folder", file=sys.stderr)
            return 1
        folders = [found]
    for folder in folders:
        print(write(read_source(folder)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
