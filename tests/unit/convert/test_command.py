"""The command: exit statuses, one clear line, and what it tells."""

from __future__ import annotations

import argparse
import io
import re
import sys
from pathlib import Path

import pytest
import torch

from sglang_eagle3_patch.commands import convert as command
from tests.unit.checkpoint import drafts
from tests.unit.convert import written

HEADERS = drafts.top() | drafts.layer("midlayer.")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser()
    command.add_parser(parser.add_subparsers())
    parsed = parser.parse_args(["convert", *arguments])
    return int(parsed.run(parsed))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return written.write(tmp_path / "in", drafts.flat(drafts.SGLANG), HEADERS)


def test_it_converts(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(source), str(tmp_path / "out"), "--verify"]) == 0
    told = capsys.readouterr().out
    assert "midlayer.hidden_norm.weight -> layers.0.hidden_norm.weight" in told
    assert "verified" in told


def test_a_dry_run_writes_nothing(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(source), str(tmp_path / "out"), "--dry-run"]) == 0
    assert "nothing was written" in capsys.readouterr().out
    assert not (tmp_path / "out").exists()


def test_a_target_by_its_folder(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    nested = '{"architectures": ["KimiK25ForConditionalGeneration"], "text_config": %s}'
    (target / "config.json").write_text(
        nested % f'{{"num_hidden_layers": 8, "hidden_size": {drafts.HIDDEN}}}'
    )
    arguments = [str(source), str(tmp_path / "out"), "--target", str(target)]
    assert main([*arguments, "--aux-layers", "3:5:6"]) == 0
    ids = written.config_of(tmp_path / "out")["eagle_config"]
    assert ids["eagle_aux_hidden_state_layer_ids"] == [3, 5, 6]


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        (["{in}", "{in}"], 1, "refused: .*own folder"),
        (["{in}", "{tmp}/out", "--sglang-version", "0.1"], 1, "nothing is known of SGLang 0.1"),
        (
            ["{in}", "{tmp}/out", "--target", "{in}", "--aux-layers", "8:9:10"],
            1,
            "the target has 1 layers",
        ),
        (["{tmp}/none", "{tmp}/out"], 2, "failed: .*is not local"),
        (["", "{tmp}/out"], 2, "failed: an empty name"),
        (["{in}/config.json", "{tmp}/out"], 2, "config.json is a file. Fix: give its folder, "),
        (["{tmp}", "{tmp}/../out"], 2, "failed: .*config.json can't be read"),
        (["{in}", "{in}/config.json/out"], 1, "own folder"),
        (["{in}", "{tmp}/file/out"], 2, "can't be written: File exists"),
    ],
)
def test_one_line_says_why_not(
    arguments: list[str],
    status: int,
    told: str,
    source: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "file").write_text("")
    filled = [part.format(**{"in": source, "tmp": tmp_path}) for part in arguments]
    assert main(filled) == status
    captured = capsys.readouterr()
    assert re.search(told, captured.err)
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_is_shown_on_a_terminal_alone(
    terminal: bool, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = io.StringIO()
    monkeypatch.setattr(shown, "isatty", lambda: terminal)
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setenv("TERM", "xterm")
    assert main([str(source), str(tmp_path / "out"), "--verify"]) == 0
    size = sum(header.size for header in HEADERS.values()) * 2 / 1000
    assert (f"{size:.1f}/{size:.1f} kB" in shown.getvalue()) is terminal
    assert bool(shown.getvalue()) is terminal


class TestPickles:
    def pickled(self, tmp_path: Path, source: Path) -> Path:
        dtypes = {"BF16": torch.bfloat16, "I64": torch.int64, "BOOL": torch.bool}
        values = written.values_of(HEADERS)
        tensors = {
            name: torch.frombuffer(bytearray(values[name]), dtype=dtypes[header.dtype]).reshape(
                header.shape
            )
            for name, header in HEADERS.items()
        }
        # As a state_dict may be: not contiguous.
        tensors["fc.weight"] = tensors["fc.weight"].T.contiguous().T
        folder = tmp_path / "pickled"
        folder.mkdir()
        (folder / "config.json").write_bytes((source / "config.json").read_bytes())
        torch.save(tensors, folder / "pytorch_model.bin")
        return folder

    def test_they_become_safetensors(self, source: Path, tmp_path: Path) -> None:
        assert main([str(self.pickled(tmp_path, source)), str(tmp_path / "out"), "--verify"]) == 0
        assert main([str(source), str(tmp_path / "same")]) == 0
        assert (tmp_path / "out" / "model.safetensors").is_file()
        assert written.read(tmp_path / "out") == written.read(tmp_path / "same")

    def test_without_torch_it_is_told(
        self,
        source: Path,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        folder = self.pickled(tmp_path, source)
        monkeypatch.setitem(sys.modules, "torch", None)
        assert main([str(folder), str(tmp_path / "out")]) == 2
        assert "no torch in this environment" in capsys.readouterr().err

    def test_code_in_a_pickle_is_not_run(
        self, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        folder = self.pickled(tmp_path, source)
        torch.save({"fc.weight": Hostile(tmp_path / "owned")}, folder / "pytorch_model.bin")
        assert main([str(folder), str(tmp_path / "out")]) == 2
        assert "can't be read as weights alone" in capsys.readouterr().err
        assert not (tmp_path / "owned").exists()

    @pytest.mark.parametrize("content", [b"", b"version https://git-lfs.github.com/spec/v1\n"])
    def test_what_is_no_pickle_is_told(
        self, content: bytes, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        folder = self.pickled(tmp_path, source)
        (folder / "pytorch_model.bin").write_bytes(content)
        assert main([str(folder), str(tmp_path / "out")]) == 2
        captured = capsys.readouterr()
        assert captured.err.count("\n") == 1
        assert ("git lfs pull" in captured.err) == bool(content)


class Hostile:
    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (self.file,))


def test_the_theta_of_the_option_is_written(
    source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("SGLANG_EAGLE3_PATCH_OPTIONS", "rope_theta=5e5")
    assert main([str(source), str(tmp_path / "out")]) == 0
    assert written.config_of(tmp_path / "out")["rope_theta"] == 5e5
    monkeypatch.setenv("SGLANG_EAGLE3_PATCH_OPTIONS", "rope_theta=x")
    assert main([str(source), str(tmp_path / "again")]) == 2
    assert "rope_theta='x' is not a number above 1. Fix:" in capsys.readouterr().err
