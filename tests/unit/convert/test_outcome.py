"""The converter says what SGLang does with what it writes, in the doctor's words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sglang_eagle3_patch.checkpoint.conversion.convert import plan_conversion
from sglang_eagle3_patch.checkpoint.conversion.options import NotConvertible
from sglang_eagle3_patch.commands import doctor
from sglang_eagle3_patch.commands.convert_outcome import served
from tests.cpu_sglang.pair import forms
from tests.unit.checkpoint import drafts
from tests.unit.convert import written
from tests.unit.convert.test_command import main
from tests.unit.doctor.cases import KIMI, TARGET

PLAIN = drafts.top("embed_tokens.weight") | drafts.layer("layers.0.")
SAID = {"norm_before_residual": False, "norm_output": False, "double_input_norm": False}
EAGLE3 = ("--speculative-algorithm", "EAGLE3")
RELEASES = ("0.5.9", "0.5.11", "0.5.23")
CAPTURE = "KimiK25ForConditionalGeneration of 0.5.9 has no set_eagle3_layers_to_capture"


def flat(**changes: Any) -> drafts.Config:
    return drafts.flat(drafts.SGLANG, norm_before_residual=False, **changes)


def target(folder: Path, config: Any = None) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(TARGET.config if config is None else config))
    return folder


def said(capsys: pytest.CaptureFixture[str], who: str) -> str:
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith(who)]
    return line.removeprefix(who)


class TestATargetThatCannotCapture:
    """Kimi-K2.5 at 0.5.9; the draft names no layers, so that nothing else asks for the class."""

    def arguments(self, tmp_path: Path) -> list[str]:
        source = written.write(tmp_path / "in", flat(), PLAIN)
        kimi = target(tmp_path / "target", KIMI.config)
        out = str(tmp_path / "out")
        return [str(source), out, "--sglang-version", "0.5.9", "--target", str(kimi)]

    def test_nothing_is_written_for_it(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(self.arguments(tmp_path)) == 1
        told = capsys.readouterr().err
        assert f"stock 0.5.9: refuses to start: {CAPTURE}" in told
        assert "Fix: give another --sglang-version, or --needs-plugin" in told
        assert told.count("\n") == 1
        assert not (tmp_path / "out").exists()

    def test_unless_the_plugin_is_there(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main([*self.arguments(tmp_path), "--needs-plugin", "--dry-run"]) == 0
        out = capsys.readouterr().out
        assert f"stock 0.5.9: refuses to start: {CAPTURE}" in out
        assert "with the plugin: serves as trained\n" in out


def test_what_a_release_does_wrong_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = written.write(tmp_path / "in", flat(), PLAIN)
    assert main([str(source), str(tmp_path / "out"), "--sglang-version", "0.5.9"]) == 0
    assert "not as trained: 0.5.9 drafts one position ahead" in said(capsys, "stock 0.5.9: ")


def test_what_was_not_looked_at_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = written.write(tmp_path / "in", flat(), PLAIN)
    assert main([str(source), str(tmp_path / "out")]) == 0
    assert said(capsys, "stock 0.5.23: ") == (
        "serves as trained, as far as was checked (not compared with a target)"
    )


@pytest.mark.parametrize(
    ("changes", "release", "arguments"),
    [
        (
            {"layer_types": ["sliding_attention"], "sliding_window": 256},
            "0.5.23",
            "--speculative-draft-window-size 255",
        ),
        (
            {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 4]}},
            "0.5.10",
            "--disable-cuda-graph",
        ),
    ],
)
def test_what_has_to_be_given_at_the_start_is_named(
    changes: drafts.Config,
    release: str,
    arguments: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source = written.write(tmp_path / "in", flat(**changes), PLAIN)
    command = [str(source), str(tmp_path / "out"), "--sglang-version", release]
    assert main([*command, "--target", str(target(tmp_path / "target"))]) == 0
    line = said(capsys, f"stock {release}, started with {arguments}: ")
    assert line.startswith("serves as trained" if release == "0.5.23" else "serves, but not as")
    assert "graph" not in line


def test_for_the_plugins_names_stock_is_told_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = written.write(tmp_path / "in", flat(), PLAIN)
    command = [str(source), str(tmp_path / "out"), "--sglang-version", "0.5.9"]
    assert main([*command, "--to", "canonical"]) == 0
    assert "accept length will be about 1" in said(capsys, "stock 0.5.9: ")


@pytest.mark.parametrize("release", RELEASES)
def test_it_is_what_the_doctor_says_of_what_was_written(release: str, tmp_path: Path) -> None:
    place, compared = target(tmp_path / "target"), 0
    for number, (_, config, headers) in enumerate(drafts.WRITTEN.values()):
        values = written.values_of(headers)
        if number % 2:
            spoilt = {n: b"\xc0\x7f" * drafts.HIDDEN for n in headers if "_layernorm" in n}
            values |= {n: nan for n, nan in spoilt.items() if len(nan) == len(values[n])}
        source = written.write(tmp_path / f"in-{number}", config, headers, values)
        out = tmp_path / f"out-{number}"
        wanted = written.options(release, flags=SAID, needs_plugin=True, aux_inputs=(2, 4, 5))
        try:
            conversion = written.convert(source, out, wanted)
        except NotConvertible:
            continue
        for said_of, stock in zip(served(conversion, place), (True, False), strict=True):
            arguments = [*EAGLE3, *said_of.arguments]
            found = doctor.judge(str(out), str(place), release, arguments, stock=stock)
            assert found.as_data() == said_of.judgement.as_data()
        compared += 1
    assert compared >= len(drafts.WRITTEN) // 2


@pytest.mark.parametrize("differs", [False, True])
def test_maps_and_embeddings_are_looked_at_as_they_will_be(differs: bool, tmp_path: Path) -> None:
    headers = drafts.top() | drafts.layer("layers.0.")
    values = {**written.values_of(headers), "d2t": written.integers(written.KNOWN)}
    source = written.write(tmp_path / "in", flat(), headers, values)
    place = target(tmp_path / "target")
    name = "embed_tokens.weight"
    other = written.values_of(headers, seed=9)
    written.write(
        tmp_path / "weights",
        {},
        {name: headers[name]},
        {name: (other if differs else values)[name]},
    )
    (tmp_path / "weights" / "model.safetensors").rename(place / "model.safetensors")
    conversion = plan_conversion(source, written.options())
    told = {f.id for f in served(conversion, place)[0].judgement.told}
    assert told == ({"E3-vocab-embedding-overwritten"} if differs else set())
    command = [str(source), str(tmp_path / "out"), "--target", str(place)]
    assert main(command) == int(differs)
    assert main([*command, "--needs-plugin", "--dry-run"]) == 0


@pytest.mark.parametrize("word", [[], ["--needs-plugin"]])
def test_what_nobody_serves_is_not_written(
    word: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values = {**written.values_of(PLAIN), "norm.weight": b"\xc0\x7f" * drafts.HIDDEN}
    source = written.write(tmp_path / "in", flat(), PLAIN, values)
    assert main([str(source), str(tmp_path / "out"), *word]) == 1
    told = capsys.readouterr().err
    assert "norm.weight hold NaN or infinity" in told
    assert "Fix: export the draft anew" in told
    assert told.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("sound", [True, False])
def test_pickled_weights_have_an_outcome_too(
    sound: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import torch

    tensors, config = forms.native()
    if not sound:
        tensors["norm.weight"][0] = float("nan")
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    torch.save(tensors, folder / "pytorch_model.bin")
    assert main([str(folder), str(tmp_path / "out")]) == int(not sound)
    assert (tmp_path / "out").exists() == sound
    if sound:
        assert said(capsys, "stock 0.5.23: ").startswith("serves as trained")
    else:
        assert "norm.weight hold NaN or infinity" in capsys.readouterr().err
