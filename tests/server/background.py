"""Each case of the table is served once, in the background."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from types import TracebackType

from tests.cpu_sglang import server
from tests.server.cases import CASES
from tests.server.serving import Outcome, draft_folder, serve

AT_ONCE = 2


def folder_of(name: str, folder: Path) -> Path:
    """Return where a case's server is started."""
    return folder / name.replace(" ", "-")


class Outcomes:
    """Outcomes by case name; asking for one waits until it is there.

    Two at a time, in the order given: a test waits only for its own, and never for as long as its
    timeout.
    """

    def __init__(self, names: Iterable[str], folder: Path) -> None:
        names = list(names)
        unknown = set(names) - CASES.keys()
        assert not unknown, f"no such cases: {unknown}"
        self._folder = folder
        self._pool = ThreadPoolExecutor(AT_ONCE)
        self._futures = {
            name: self._pool.submit(serve, CASES[name], folder_of(name, folder)) for name in names
        }

    def __enter__(self) -> Outcomes:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # What runs on nobody asks for: the session was interrupted, or ended at a failure.
        self._pool.shutdown(wait=False, cancel_futures=True)
        begun = [future for future in self._futures.values() if not future.cancelled()]
        while wait(begun, timeout=1).not_done:
            server.stop_all()

    def __getitem__(self, name: str) -> Outcome:
        return self._futures[name].result()

    def draft(self, name: str) -> Path:
        """Return the folder of the draft that a case was given, which is there once it was."""
        self[name]
        return draft_folder(CASES[name], folder_of(name, self._folder))
