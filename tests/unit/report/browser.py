"""A headless Chromium: found on this machine or fetched, and spoken to over its debugging pipe."""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.cpu_sglang.environment_builder import Builder, EnvironmentBroken, discard, exclusive
from tests.cpu_sglang.environments import cache_folder

_NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
_PACKAGE = "chromium-headless-shell"
_SECONDS = 90


class NoBrowser(RuntimeError):
    """There is none, and none could be fetched; the text says why."""


@contextmanager
def chromium() -> Iterator[Page]:
    """Start a Chromium with one page. Raises `NoBrowser`."""
    command, variables = _find()
    to_browser, ours_to = os.pipe()
    ours_from, from_browser = os.pipe()
    # The browser reads from 3 and writes to 4; ends above them can't be overwritten on the way.
    theirs = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (to_browser, from_browser)]
    process = subprocess.Popen(
        [
            "bash",
            "-c",
            f'exec "$@" 3<&{theirs[0]} 4>&{theirs[1]}',
            "bash",
            command,
            "--headless",
            "--no-sandbox",  # there is none for root; the page is one of ours
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--remote-debugging-pipe",
        ],
        env={**os.environ, **variables},
        pass_fds=theirs,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    for end in (to_browser, from_browser, *theirs):
        os.close(end)
    try:
        yield Page(ours_to, ours_from)
    finally:
        process.kill()
        process.wait()
        os.close(ours_to)
        os.close(ours_from)


class Page:
    """One page of a Chromium, which keeps every event that it hears of."""

    def __init__(self, write_to: int, read_from: int) -> None:
        self.events: list[dict[str, Any]] = []
        self._write_to, self._read_from = write_to, read_from
        self._received = b""
        self._sent = 0
        self._session: dict[str, str] = {}
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = {"sessionId": attached["sessionId"]}
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> Mapping[str, Any]:
        """Call a method of the DevTools protocol and return its result."""
        self._sent += 1
        message = {"id": self._sent, "method": method, "params": parameters, **self._session}
        os.write(self._write_to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._sent:
                assert "error" not in answer, answer
                return answer["result"]

    def open(self, url: str, *, width: int, dark: bool = False) -> None:
        """Load a page in a window of that width; forget the events before."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        self.events.clear()
        self.call("Page.navigate", url=url)
        while not self.heard("Page.loadEventFired"):
            self._receive()

    def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def heard(self, method: str) -> list[dict[str, Any]]:
        """Return what events of that name told since the page was opened."""
        return [event["params"] for event in self.events if event["method"] == method]

    def _receive(self) -> dict[str, Any]:
        deadline = time.monotonic() + _SECONDS
        while b"\0" not in self._received:
            ready, _, _ = select.select(
                [self._read_from], [], [], max(0.0, deadline - time.monotonic())
            )
            more = os.read(self._read_from, 1 << 16) if ready else b""
            if not more:
                raise NoBrowser("Chromium ended, or said nothing for too long")
            self._received += more
        told, _, self._received = self._received.partition(b"\0")
        message: dict[str, Any] = json.loads(told)
        if "method" in message:
            self.events.append(message)
        return message


def _find() -> tuple[str, dict[str, str]]:
    """A command and the variables it wants: what is installed, else what is in the cache."""
    for name in _NAMES:
        if found := shutil.which(name):
            return found, {}
    folder = cache_folder() / "chromium"
    if not folder.exists():
        _fetch(folder)
    libraries = [*folder.glob("usr/lib/*-linux-gnu"), *folder.glob("usr/lib/*-linux-gnu/*/")]
    path = ":".join(map(str, libraries))
    return str(folder / "usr/lib/chromium/chromium-headless-shell"), {"LD_LIBRARY_PATH": path}


def _fetch(folder: Path) -> None:
    """Unpack Debian's package and what it requires into a folder: nothing is installed, and lists
    and locks of the system's are left alone, so that it takes no root."""
    if not shutil.which("apt-get"):
        raise NoBrowser(f"no Chromium on PATH ({', '.join(_NAMES)}), and no apt-get to fetch one")
    building = folder.with_name(".chromium.building")
    with exclusive(folder.parent) as lock:
        if folder.exists():
            return
        discard(building)
        for part in ("lists/partial", "cache/archives/partial", "root"):
            (building / part).mkdir(parents=True)
        apt = ["apt-get", "-o", f"Dir::State::lists={building}/lists", "-o", "Debug::NoLocking=1"]
        apt += ["-o", f"Dir::Cache={building}/cache", "-o", "APT::Sandbox::User=root", "--yes"]
        builder = Builder(folder.parent, lock)
        try:
            builder.command([*apt, "update"], "chromium-lists")
            wanted = ["install", "--download-only", "--no-install-recommends", _PACKAGE]
            builder.command([*apt, *wanted], "chromium-packages")
            for package in sorted((building / "cache/archives").glob("*.deb")):
                unpack = ["dpkg-deb", "--extract", str(package), str(building / "root")]
                builder.command(unpack, "chromium-unpacking")
        except EnvironmentBroken as error:
            raise NoBrowser(f"no Chromium on PATH, and none could be fetched: {error}") from error
        (building / "root").rename(folder)
        discard(building)
