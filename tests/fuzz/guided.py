"""What `headers` does, led by coverage: `python -m tests.fuzz.guided -max_total_time=60`.

Wants atheris (`pip install atheris`) and takes libFuzzer's arguments. An input is a header and a
config with a null byte between them; it begins with those of a whole checkpoint.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["sglang_eagle3_patch"]):
    from tests.fuzz import headers


def main() -> None:
    """Fuzz until libFuzzer's bound is reached; a finding is an exception."""
    header, config, data = headers.seeds()
    place = Path(tempfile.mkdtemp())
    corpus = place / "corpus"
    corpus.mkdir()
    (corpus / "whole").write_bytes(header + b"\0" + config)

    def one(text: bytes) -> None:
        first, _, second = text.partition(b"\0")
        headers.check(place, first, second, data)

    atheris.Setup([*sys.argv, str(corpus)], one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
