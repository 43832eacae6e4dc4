"""The command: its exit status, its words, its JSON, and where it finds drafts."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from sglang_eagle3_patch import facts
from sglang_eagle3_patch.checkpoint.header import TensorHeader
from sglang_eagle3_patch.commands import doctor
from tests.unit.checkpoint import drafts
from tests.unit.doctor.cases import config, tensors
from tests.unit.doctor.folders import write_draft, write_target

REPOSITORY = Path(__file__).parents[3]
GOLDEN = Path(__file__).parent / "golden"


def run(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    doctor.add_parser(parser.add_subparsers(required=True))
    parsed = parser.parse_args(["doctor", *arguments])
    return int(parsed.run(parsed))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with a healthy draft and its target."""
    monkeypatch.chdir(tmp_path)
    write_draft(tmp_path / "draft")
    write_target(tmp_path / "target")
    return tmp_path


HEALTHY = ("draft", "--target", "target", "--sglang-version", "0.5.23")


def test_a_healthy_draft_exits_0(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*HEALTHY) == 0
    first, second = capsys.readouterr().out.splitlines()[:2]
    assert first == "stock 0.5.23: serves as trained"
    assert second == "with the plugin: serves as trained"


def test_the_theta_of_the_option_counts(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    two = {"rope_theta": 5e5, "rope_parameters": {"rope_theta": 1e4, "rope_type": "default"}}
    write_draft(place / "two", config(**two))
    command = ("two", *HEALTHY[1:])
    assert run(*command) == 1
    assert "OPTIONS=rope_theta=500000 or" in capsys.readouterr().out
    monkeypatch.setenv("SGLANG_EAGLE3_PATCH_OPTIONS", "rope_theta=5e5")
    assert run(*command) == 0
    stock, plugin = capsys.readouterr().out.splitlines()[:2]
    assert stock.startswith("stock 0.5.23: serves, but not as trained: rope_theta is 10000")
    assert plugin == "with the plugin: serves as trained"


def test_what_is_unknown_exits_0(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("draft", "--sglang-version", "0.5.23", "--json") == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "warning"


def test_an_error_exits_1(place: Path) -> None:
    write_draft(place / "draft", headers=tensors(**{"midlayer.self_attn.k_proj.weight": None}))
    assert run(*HEALTHY) == 1


def test_stock_is_another_verdict(place: Path) -> None:
    arguments = ("--", "--speculative-algorithm", "EAGLE")
    assert run(*HEALTHY, *arguments) == 0
    assert run(*HEALTHY, "--stock", *arguments) == 1


def test_the_model_path_is_the_target(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--", "--model-path", "target", "--speculative-algorithm", "EAGLE3")
    assert run("draft", "--sglang-version", "0.5.23", "--json", *arguments) == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "ok"


def test_a_single_file_is_a_draft(place: Path) -> None:
    assert run("draft/model.safetensors", *HEALTHY[1:]) == 0


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("./nowhere",), "there is no folder ./nowhere"),
        (("draft", "--target", "/nowhere"), "there is no folder /nowhere"),
        (("draft", "--sglang-version", "0.4.0"), "SGLang 0.4.0 is not known"),
        (("empty",), "config.json can't be read"),
        (("",), "an empty name"),
        (("draft", "--target", " "), "an empty name"),
        (("alone.txt",), "no config.json beside alone.txt"),
        (("cut",), "truncated"),
        (("odd",), "architectures"),
        (("odd/model.safetensors",), "architectures"),
        (("not a hub id!",), "neither a folder nor a hub id"),
    ],
)
def test_without_anything_to_judge_it_exits_2_in_one_line(
    place: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], told: str
) -> None:
    (place / "empty").mkdir()
    (place / "alone.txt").touch()
    cut = write_draft(place / "cut") / "model.safetensors"
    cut.write_bytes(cut.read_bytes()[:-1])
    write_draft(place / "odd", {**config(), "architectures": 5})
    assert run(*arguments) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("sglang-eagle3 doctor: ")
    assert told in lines[0]


def test_what_no_rule_expects_exits_2_too(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stumble(_: object) -> None:
        raise TypeError("'int' object is not iterable")

    monkeypatch.setattr(doctor, "judge_case", stumble)
    assert run(*HEALTHY) == 2
    assert "can't be judged (TypeError" in capsys.readouterr().err


def test_json_holds_what_was_promised(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    speculators = drafts.speculators(drafts.TRAINER, "0.9.0", **drafts.IDS)
    write_draft(place / "draft", speculators, drafts.top() | drafts.layer("layers.0."))
    assert run(*HEALTHY, "--json") == 1
    found = json.loads(capsys.readouterr().out)
    assert set(found) == {"verdict", "stock", "plugin", "findings"}
    assert found["verdict"] in ("ok", "warning", "error")
    for side in ("stock", "plugin"):
        assert set(found[side]) == {"outcome", "why"}
        assert found[side]["outcome"] in ("serves", "degraded", "refuses", "unknown")
        assert found[side]["why"]
    fields = {"id", "severity", "status", "message", "remedy", "values"}
    for finding in found["findings"]:
        assert set(finding) == fields
        assert finding["severity"] in ("error", "warning", "fixable", "info")
        assert finding["status"] in ("ok", "wrong", "unknown")
        assert isinstance(finding["values"], dict)
        assert bool(finding["message"]) is (finding["status"] != "ok")
    statuses = {finding["id"]: finding["status"] for finding in found["findings"]}
    assert statuses["E3-config-speculators"] == "wrong"
    assert statuses["E3-names-missing"] == "ok"
    assert statuses["E3-flags-residual-unstated"] == "wrong"


def founding(place: Path) -> tuple[str, ...]:
    headers = drafts.top() | drafts.layer("layers.0.")
    write_draft(place / "draft", config(norm_before_residual=False), headers)
    return ("draft", "--target", "target", "--sglang-version", "0.5.9")


def mistaken(place: Path) -> tuple[str, ...]:
    missing = {"midlayer.mlp.up_proj.weight": None}
    write_draft(place / "draft", config(norm_before_residual=True), tensors(**missing))
    arguments = "--model-path target --speculative-algo EAGLE --quantization fp8 --tp-size 2"
    return ("draft", "--sglang-version", "0.5.23", "--stock", "--", *arguments.split())


@pytest.mark.parametrize("make", [founding, mistaken])
def test_golden_output(place: Path, capsys: pytest.CaptureFixture[str], make: Any) -> None:
    run(*make(place))
    golden = GOLDEN / f"{make.__name__}.txt"
    out = capsys.readouterr().out
    if "WRITE_GOLDEN" in os.environ:
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(out, encoding="utf-8")
    assert out == golden.read_text(encoding="utf-8")


@pytest.mark.parametrize("installed", [True, False])
def test_the_release_is_the_installed_one_else_the_newest_known(
    place: Path, monkeypatch: pytest.MonkeyPatch, installed: bool
) -> None:
    found = facts.facts_for("0.5.12") if installed else None
    monkeypatch.setattr(facts, "installed", lambda: found)
    judged = doctor.judge("draft", "target", None, [])
    assert judged.release == ("0.5.12" if installed else facts.newest_known())


class HubOfOneDraft(BaseHTTPRequestHandler):
    """Answers as the hub does for `org/draft`, whose files are in a folder; notes what it sent."""

    folder: Path
    token: str
    sent: dict[str, int]

    def do_HEAD(self) -> None:
        self.answer(with_body=False)

    def do_GET(self) -> None:
        self.answer(with_body=True)

    def answer(self, *, with_body: bool) -> None:
        place = self.path.partition("?")[0].removeprefix("/org/draft/resolve/main/")
        file = self.folder / place
        if self.headers.get("Authorization") != f"Bearer {self.token}":
            self.send_error(401)
            return
        if "/" in place or not file.is_file():
            self.send_error(404)
            return
        content, asked = file.read_bytes(), self.headers.get("Range", "")
        size = len(content)
        if asked:
            begin, _, end = asked.removeprefix("bytes=").partition("-")
            content = content[int(begin) : int(end) + 1]
        self.send_response(206 if asked else 200)
        for name, value in (
            ("Content-Length", str(len(content))),
            ("Content-Range", f"bytes 0-{len(content) - 1}/{size}"),
            ("ETag", '"0123456789abcdef"'),
            ("X-Repo-Commit", "0" * 40),
        ):
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self.sent[place] = self.sent.get(place, 0) + len(content)
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextlib.contextmanager
def hub(place: Path) -> Iterator[tuple[dict[str, str], dict[str, int]]]:
    """Serve `place / "draft"` as the hub does; gives the variables to ask it with, and what it
    sent."""
    sent: dict[str, int] = {}
    served = {"folder": place / "draft", "token": "hf_secret", "sent": sent}
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Hub", (HubOfOneDraft,), served))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    variables = {
        "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
        "HF_HOME": str(place / "home"),
        "HF_TOKEN": "hf_secret",
        "HF_HUB_OFFLINE": "0",
        "NO_PROXY": "127.0.0.1",
    }
    try:
        yield variables, sent
    finally:
        server.shutdown()
        server.server_close()


def with_header(header: object) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text


FINE = {"dtype": "BF16", "shape": [1], "data_offsets": [0, 2]}
BROKEN_ON_THE_HUB = {
    "garbage": b"\xff" * 200,
    "empty": b"",
    "a pointer of git lfs": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n",
    "no JSON": with_header(b"{" * 40),
    "a list": with_header([1, 2, 3]),
    "no dtype": with_header({"fc.weight": {"shape": [1], "data_offsets": [0, 2]}}),
    "no shape": with_header({"fc.weight": {**FINE, "shape": None}}),
    "a shape of words": with_header({"fc.weight": {**FINE, "shape": ["many"]}}),
}


class TestHub:
    """No hub can be asked here: caches are made by hand, and a hub's answers are stood in for."""

    ID = "org/draft"

    def cached(self, place: Path, *, weights: bool = True) -> dict[str, str]:
        """Return the variables under which the draft is in the hub's cache and no hub is."""
        repository = place / "home" / "hub" / "models--org--draft"
        snapshot = repository / "snapshots" / ("0" * 40)
        snapshot.mkdir(parents=True)
        (repository / "refs").mkdir()
        (repository / "refs" / "main").write_text("0" * 40)
        shutil.copy(place / "draft" / "config.json", snapshot)
        if weights:
            shutil.copy(place / "draft" / "model.safetensors", snapshot)
        return {"HF_HOME": str(place / "home"), "HF_HUB_OFFLINE": "1"}

    def ask(self, variables: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
        """Ask in a process of its own: the hub's client reads its variables when imported."""
        script = (
            "import argparse, sys\n"
            "from sglang_eagle3_patch.commands import doctor\n"
            "parser = argparse.ArgumentParser()\n"
            "doctor.add_parser(parser.add_subparsers(required=True))\n"
            "parsed = parser.parse_args(['doctor', *sys.argv[1:]])\n"
            "status = parsed.run(parsed)\n"
            "heavy = {'torch', 'sglang', 'transformers', 'numpy', 'wrapt'} & set(sys.modules)\n"
            "assert not heavy, heavy\n"
            "sys.exit(status)\n"
        )
        return subprocess.run(
            [sys.executable, "-c", script, *arguments],
            env={**os.environ, "PYTHONPATH": str(REPOSITORY), **variables},
            capture_output=True,
            text=True,
            timeout=120,
        )

    def test_a_cached_draft_is_judged_offline_without_heavy_imports(self, place: Path) -> None:
        found = self.ask(self.cached(place), self.ID, *HEALTHY[1:], "--json")
        assert found.returncode == 0, found.stderr
        assert json.loads(found.stdout)["verdict"] == "ok"

    def test_a_cached_config_alone_leaves_the_weights_unknown(self, place: Path) -> None:
        variables = self.cached(place, weights=False)
        found = self.ask(variables, self.ID, *HEALTHY[1:], "--json")
        assert found.returncode == 0, found.stderr
        assert json.loads(found.stdout)["plugin"] == {
            "outcome": "unknown",
            "why": "the draft's weights could not be looked at",
        }

    def test_what_is_not_cached_can_not_be_judged_offline(self, place: Path) -> None:
        found = self.ask(self.cached(place), "org/other", *HEALTHY[1:])
        assert found.returncode == 2
        assert found.stdout == ""
        (line,) = found.stderr.splitlines()
        assert "org/other is no folder here and can't be read from the hub" in line

    def test_only_headers_are_fetched_from_the_endpoint_and_with_the_token(
        self, place: Path
    ) -> None:
        with hub(place) as (variables, sent):
            found = self.ask(variables, self.ID, *HEALTHY[1:], "--json")
            others = {**variables, "HF_TOKEN": "hf_wrong", "HF_HOME": str(place / "other")}
            refused = self.ask(others, self.ID, *HEALTHY[1:])
        assert found.returncode == 0, found.stderr
        assert json.loads(found.stdout)["plugin"]["outcome"] == "serves"
        assert set(sent) == {"config.json", "model.safetensors"}
        assert sent["model.safetensors"] < (place / "draft" / "model.safetensors").stat().st_size
        assert list((place / "home").rglob("*.safetensors")) == []
        assert list((place / "home").rglob("config.json"))
        assert refused.returncode == 2
        assert "401" in refused.stderr
        assert refused.stderr.count("\n") == 1

    @pytest.mark.parametrize("kind", BROKEN_ON_THE_HUB)
    def test_what_a_hub_sends_is_told_in_a_line(self, kind: str, place: Path) -> None:
        (place / "draft" / "model.safetensors").write_bytes(BROKEN_ON_THE_HUB[kind])
        with hub(place) as (variables, _):
            found = self.ask(variables, self.ID, *HEALTHY[1:])
        assert (found.returncode, found.stdout) == (2, ""), found.stderr
        (line,) = found.stderr.splitlines()
        assert "org/draft" in line

    def test_a_hub_that_is_gone_is_told_in_a_line(self, place: Path) -> None:
        with hub(place) as (variables, _):
            self.ask(variables, self.ID, *HEALTHY[1:])
        found = self.ask(variables, self.ID, *HEALTHY[1:])
        assert (found.returncode, found.stdout) == (2, ""), found.stderr
        (line,) = found.stderr.splitlines()
        assert "the headers of org/draft can't be read from the hub (ConnectError" in line

    def test_a_file_that_may_be_on_the_hub_leaves_quantised_tensors_unknown(
        self, place: Path
    ) -> None:
        headers = tensors()
        packed = TensorHeader("I8", headers["fc.weight"].shape)
        write_draft(place / "draft", headers={**headers, "fc.weight": packed})
        with hub(place) as (variables, _):
            found = self.ask(variables, self.ID, *HEALTHY[1:], "--json")
        assert found.returncode == 0, found.stderr
        told = json.loads(found.stdout)["findings"]
        (of_dtypes,) = (finding for finding in told if finding["id"] == "E3-files-dtypes")
        assert of_dtypes["status"] == "unknown"

    def test_of_a_hub_draft_the_headers_are_read(
        self, place: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        import huggingface_hub
        from huggingface_hub.utils import (
            SafetensorsFileMetadata,
            SafetensorsRepoMetadata,
            TensorInfo,
        )

        parts = {
            name: TensorInfo(header.dtype, list(header.shape), (0, 0))
            for name, header in tensors().items()
        }
        metadata = SafetensorsRepoMetadata(
            metadata=None,
            sharded=False,
            weight_map=dict.fromkeys(parts, "model.safetensors"),
            files_metadata={"model.safetensors": SafetensorsFileMetadata({}, parts)},
        )
        asked: list[str] = []

        def download(repository: str, file: str, revision: str | None) -> str:
            asked.append(file)
            return str(place / "draft" / file)

        monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
        monkeypatch.setattr(huggingface_hub, "get_safetensors_metadata", lambda *_, **__: metadata)
        found = doctor.judge("org/elsewhere", "target", "0.5.23", [])
        assert asked == ["config.json"]
        assert found.plugin.outcome == "serves"
        assert [finding.id for finding in found.told] == ["E3-files-values-unread"]
        assert found.verdict == "ok"


def test_a_file_is_launched_by_its_folder(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_draft(place / "draft", config(norm_before_residual=False), tensors())
    run("draft/config.json")
    assert "--speculative-draft-model-path draft " in capsys.readouterr().out + " "


def test_two_targets_are_not_judged(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_draft(place / "draft", config(), tensors())
    assert run("draft", "--target", "target", "--", "--model-path", "another") == 2
    assert "--target is target, and" in capsys.readouterr().err


def test_the_trainers_word_is_not_lost_by_another_architecture(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_draft(place / "draft", config(architectures=["LlamaForCausalLM"]), tensors())
    run("draft")
    out = capsys.readouterr().out
    assert "E3-config-architecture" in out
    assert "sglang-eagle3 convert" in out
