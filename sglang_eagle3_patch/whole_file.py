"""Writes a file whole: readers see the old one or the new one, never half of one."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO


@contextlib.contextmanager
def replacing(file: Path) -> Iterator[IO[bytes]]:
    """Yield a temporary file beside `file`, for its owner alone, that becomes it at the end.

    When the block raises, or there is no room, `file` stays as it was and nothing is left behind.
    Raises `OSError` when its folder can't be written to.
    """
    descriptor, unfinished = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    try:
        with os.fdopen(descriptor, "wb") as stream:
            yield stream
        Path(unfinished).replace(file)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(unfinished).unlink()
        raise
