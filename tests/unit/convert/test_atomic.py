"""Either the whole new checkpoint is there, or everything is as it was."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sglang_eagle3_patch.checkpoint.conversion import streaming, write
from sglang_eagle3_patch.checkpoint.conversion.convert import Conversion, plan_conversion
from sglang_eagle3_patch.checkpoint.conversion.options import NotConvertible
from sglang_eagle3_patch.checkpoint.conversion.write import NotWritten
from sglang_eagle3_patch.checkpoint.header import CheckpointUnreadable
from sglang_eagle3_patch.commands.convert import _terminated_as_interrupted
from tests.unit.checkpoint import drafts
from tests.unit.convert import written

HEADERS = drafts.top() | drafts.layer("midlayer.")
CONFIG = drafts.flat(drafts.SGLANG)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    values = {**written.values_of(HEADERS), "d2t": written.integers(written.KNOWN)}
    folder = written.write(tmp_path / "in", CONFIG, HEADERS, values)
    (folder / "tokenizer.json").write_text("{}")
    return folder


@pytest.fixture
def conversion(source: Path) -> Conversion:
    return plan_conversion(source, written.options())


@pytest.fixture
def older(tmp_path: Path) -> dict[str, bytes]:
    """A checkpoint that is at OUT already."""
    folder = written.write(tmp_path / "out", CONFIG, HEADERS, written.values_of(HEADERS, seed=9))
    return written.snapshot(folder)


def left(tmp_path: Path) -> set[str]:
    return {entry.name for entry in tmp_path.iterdir()} - {"in"}


def fails_after(calls: int, error: BaseException, real: Callable[..., Any]) -> Callable[..., Any]:
    done = 0

    def call(*arguments: Any, **named: Any) -> Any:
        nonlocal done
        done += 1
        if done > calls:
            raise error
        return real(*arguments, **named)

    return call


FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
# A disk can't be filled here; the calls that would meet it say so.
FAULTS: dict[str, tuple[Any, str, int]] = {
    "the first bytes": (os, "copy_file_range", 0),
    "in the middle": (os, "copy_file_range", 2),
    "the flush of the weights": (os, "fsync", 0),
    "the flush of the config": (os, "fsync", 1),
    "the last file": (os, "fsync", 2),
    "the rename": (Path, "rename", 0),
}


@pytest.mark.parametrize("force", [False, True], ids=["new", "replaced"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_failure_changes_nothing(
    fault: str,
    force: bool,
    tmp_path: Path,
    source: Path,
    conversion: Conversion,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    old = request.getfixturevalue("older") if force else None
    before = written.snapshot(source)
    owner, name, calls = FAULTS[fault]
    monkeypatch.setattr(owner, name, fails_after(calls, FULL, getattr(owner, name)))
    with pytest.raises(NotWritten, match=r"out can't be written: No space left.*Nothing was"):
        conversion.write(tmp_path / "out", force=force)
    monkeypatch.undo()
    assert written.snapshot(source) == before
    assert left(tmp_path) == ({"out"} if force else set())
    if force:
        assert written.snapshot(tmp_path / "out") == old


def test_a_failing_second_rename_brings_the_old_one_back(
    tmp_path: Path,
    conversion: Conversion,
    older: dict[str, bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real, calls = Path.rename, []

    def rename(self: Path, to: Path) -> Path:
        calls.append(to)
        if len(calls) == 2:
            raise FULL
        return real(self, to)

    monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises(NotWritten):
        conversion.write(tmp_path / "out", force=True)
    assert len(calls) == 3
    assert left(tmp_path) == {"out"}
    assert written.snapshot(tmp_path / "out") == older


def test_an_interruption_leaves_nothing(tmp_path: Path, conversion: Conversion) -> None:
    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        conversion.write(tmp_path / "out", progress=interrupt)
    assert left(tmp_path) == set()


def test_a_termination_leaves_nothing(tmp_path: Path, conversion: Conversion) -> None:
    with pytest.raises(SystemExit) as stop, _terminated_as_interrupted():
        conversion.write(tmp_path / "out", progress=lambda _: os.kill(os.getpid(), signal.SIGTERM))
    assert stop.value.code == 128 + signal.SIGTERM
    assert left(tmp_path) == set()


def test_a_disk_that_takes_no_more(tmp_path: Path, source: Path) -> None:
    """With a real limit of the kernel's, on the size of files."""
    script = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000));"
        "from tests.unit.convert.test_command import main; sys.exit(main(sys.argv[1:]))"
    )
    arguments = [str(source), str(tmp_path / "out")]
    run = subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=False
    )
    assert run.returncode == 2
    assert "can't be written: File too large. Nothing was changed" in run.stderr
    assert "Traceback" not in run.stderr
    assert left(tmp_path) == set()


@pytest.mark.parametrize("refused", [("copy_file_range",), ("copy_file_range", "sendfile")])
@pytest.mark.parametrize("number", [errno.EXDEV, errno.EINVAL, errno.ENOSYS])
def test_calls_that_do_not_work_here_have_others_behind_them(
    refused: tuple[str, ...],
    number: int,
    tmp_path: Path,
    conversion: Conversion,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in refused:
        monkeypatch.setattr(
            streaming.os, name, fails_after(0, OSError(number, "no"), getattr(os, name))
        )
    conversion.write(tmp_path / "out", verify=True)


def test_a_source_cut_short_meanwhile_is_told(
    tmp_path: Path, source: Path, conversion: Conversion
) -> None:
    file = source / "model.safetensors"
    os.truncate(file, file.stat().st_size - 1000)
    with pytest.raises(CheckpointUnreadable, match=r"became shorter|is truncated"):
        conversion.write(tmp_path / "out")
    assert left(tmp_path) == set()


# From the beginning of the data on: d2t, whose values are changed, comes first.
@pytest.mark.parametrize(("place", "tensor"), [(0, "d2t"), (5000, "embed_tokens")])
def test_a_wrong_byte_is_found(
    place: int,
    tensor: str,
    tmp_path: Path,
    conversion: Conversion,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = write._sync_file

    def spoil(stream: Any) -> None:
        real(stream)
        if stream.name.endswith(".safetensors"):
            with Path(stream.name).open("r+b") as file:
                at = 8 + int.from_bytes(file.read(8), "little") + place
                file.seek(at)
                byte = file.read(1)[0]
                file.seek(at)
                file.write(bytes([byte ^ 1]))

    monkeypatch.setattr(write, "_sync_file", spoil)
    with pytest.raises(CheckpointUnreadable, match=rf"verification failed: {tensor}"):
        conversion.write(tmp_path / "out", verify=True)
    assert left(tmp_path) == set()


class TestPlaces:
    def refused(self, conversion: Conversion, out: Path, *, force: bool = True) -> str:
        before = written.snapshot(conversion.source)
        with pytest.raises(NotConvertible) as refusal:
            conversion.write(out, force=force)
        assert written.snapshot(conversion.source) == before
        return str(refusal.value)

    def test_in_place(self, conversion: Conversion) -> None:
        assert "own folder" in self.refused(conversion, conversion.source)

    def test_inside(self, conversion: Conversion) -> None:
        assert "own folder" in self.refused(conversion, conversion.source / "a" / "b")

    def test_around(self, conversion: Conversion) -> None:
        assert "own folder" in self.refused(conversion, conversion.source.parent)

    def test_by_a_symlink(self, conversion: Conversion, tmp_path: Path) -> None:
        (tmp_path / "link").symlink_to(conversion.source)
        assert "own folder" in self.refused(conversion, tmp_path / "link")
        assert "own folder" in self.refused(conversion, tmp_path / "link" / "new")
        assert "own folder" in self.refused(conversion, tmp_path / "in" / ".." / "in")

    def test_something_there(self, conversion: Conversion, tmp_path: Path) -> None:
        (tmp_path / "out").mkdir()
        assert "there already" in self.refused(conversion, tmp_path / "out", force=False)

    @pytest.mark.parametrize("force", [False, True])
    def test_what_came_there_while_it_was_written_stays(
        self, force: bool, conversion: Conversion, tmp_path: Path
    ) -> None:
        thesis = tmp_path / "out" / "thesis.tex"

        def comes(_: int) -> None:
            thesis.parent.mkdir(exist_ok=True)
            thesis.write_text("mine")

        with pytest.raises(NotConvertible):
            conversion.write(tmp_path / "out", force=force, progress=comes)
        assert thesis.read_text() == "mine"
        assert left(tmp_path) == {"out"}

    def test_what_comes_at_the_last_moment_stays(
        self, conversion: Conversion, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real, thesis = write._put_in_place, tmp_path / "out" / "thesis.tex"

        def late(made: Path, out: Path, *, replace: bool) -> None:
            out.mkdir()
            thesis.write_text("mine")
            real(made, out, replace=replace)

        monkeypatch.setattr(write, "_put_in_place", late)
        with pytest.raises(NotWritten, match="not empty"):
            conversion.write(tmp_path / "out")
        assert thesis.read_text() == "mine"
        assert left(tmp_path) == {"out"}

    @pytest.mark.parametrize("kind", ["file", "folder", "link"])
    def test_what_force_does_not_replace(
        self, kind: str, conversion: Conversion, tmp_path: Path
    ) -> None:
        out = tmp_path / "out"
        if kind == "file":
            out.write_text("mine")
        elif kind == "link":
            out.symlink_to("nowhere")
        else:
            out.mkdir()
            (out / "thesis.tex").write_text("mine")
        assert "no checkpoint folder" in self.refused(conversion, out)

    @pytest.mark.usefixtures("older")
    def test_force_replaces_a_checkpoint_wholly(
        self, conversion: Conversion, tmp_path: Path
    ) -> None:
        (tmp_path / "out" / "stale.safetensors").write_bytes(b"")
        conversion.write(tmp_path / "out", force=True)
        assert left(tmp_path) == {"out"}
        assert not (tmp_path / "out" / "stale.safetensors").exists()
        assert "layers.0.hidden_norm.weight" in written.read(tmp_path / "out")

    def test_the_folder_may_be_read_by_whom_the_umask_lets(
        self, conversion: Conversion, tmp_path: Path
    ) -> None:
        old = os.umask(0o027)
        try:
            conversion.write(tmp_path / "out")
        finally:
            os.umask(old)
        assert (tmp_path / "out").stat().st_mode & 0o777 == 0o750
