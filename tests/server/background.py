"""Each case of the table is served once, in the background."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from types import TracebackType

from tests.cpu_sglang import server
from tests.server.cases import CASES
from tests.server.serving import Outcome, draft_folder, serve


def folder_of(name: str, folder: Path) -> Path:
    """Return where a case's server is started."""
    return folder / name.replace(" ", "-")


class Outcomes:
    """Outcomes by case name; asking for one waits until it is there.

    One server at a time until one is asked for, then two: until then other tests run beside them.
    A test waits only for its own, and never for as long as its timeout.
    """

    def __init__(self, names: Iterable[str], folder: Path) -> None:
        self._futures: dict[str, Future[Outcome]] = {name: Future() for name in names}
        unknown = self._futures.keys() - CASES.keys()
        assert not unknown, f"no such cases: {unknown}"
        self._waiting = deque(self._futures)
        self._folder = folder
        self._pool = ThreadPoolExecutor(2)
        self._asked = False
        self._threads: list[Future[None]] = []

    def __enter__(self) -> Outcomes:
        self._threads.append(self._pool.submit(self._serve_on))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # What runs on nobody asks for: the session was interrupted, or ended at a failure.
        self._waiting.clear()
        self._pool.shutdown(wait=False)
        while wait(self._threads, timeout=1).not_done:
            server.stop_all()

    def __getitem__(self, name: str) -> Outcome:
        if not self._asked:
            self._asked = True
            self._threads.append(self._pool.submit(self._serve_on))
        return self._futures[name].result()

    def draft(self, name: str) -> Path:
        """Return the folder of the draft that a case was given, which is there once it was."""
        self[name]
        return draft_folder(CASES[name], folder_of(name, self._folder))

    def _serve_on(self) -> None:
        while self._waiting:
            try:
                name = self._waiting.popleft()
            except IndexError:  # the other thread was quicker
                return
            try:
                self._futures[name].set_result(serve(CASES[name], folder_of(name, self._folder)))
            except Exception as error:  # noqa: BLE001 - the test that asks for it raises it
                self._futures[name].set_exception(error)
