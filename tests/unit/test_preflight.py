"""The launcher's preflight: what it judges, what ends a launch, and what never does."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from sglang_eagle3_patch import preflight
from sglang_eagle3_patch.commands import doctor_fork
from tests.unit.checkpoint import drafts
from tests.unit.doctor.cases import config, tensors
from tests.unit.doctor.folders import write_draft, write_target

VARIABLE = "SGLANG_EAGLE3_PATCH"
DRAFT = ("--speculative-draft-model-path", "draft")
EAGLE3 = ("--speculative-algorithm", "EAGLE3")
TARGET = ("--model-path", "target")
LAUNCH = (*TARGET, *EAGLE3, *DRAFT)
MISSING = "error E3-names-missing: 1 tensor missing (layers.0.self_attn.k_proj.weight)"


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with a healthy draft and its target; every patch is on."""
    for name in [name for name in os.environ if name.startswith(VARIABLE)]:
        monkeypatch.delenv(name)
    monkeypatch.setenv(VARIABLE, "1")
    monkeypatch.chdir(tmp_path)
    write_draft(tmp_path / "draft")
    write_target(tmp_path / "target")
    return tmp_path


def damage(folder: Path) -> None:
    write_draft(folder, headers=tensors(**{"midlayer.self_attn.k_proj.weight": None}))


def refusal(*arguments: str) -> str:
    with pytest.raises(SystemExit) as ended:
        preflight.check(arguments)
    assert isinstance(ended.value.code, str)  # Python prints it and exits with 1
    return ended.value.code


def passed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    preflight.check(arguments)
    told = capsys.readouterr()
    assert told.out == ""
    return told.err


DETAILS = ["target", "draft", "producer", "layers", "flags", "patches", "starts"]


def test_a_healthy_draft_takes_one_screen(capsys: pytest.CaptureFixture[str]) -> None:
    verdict, *details = passed(capsys, *LAUNCH).splitlines()
    assert verdict.startswith("sglang-eagle3-patch: preflight: ok: SGLang ")
    assert verdict.endswith(" with the plugin: serves as trained")
    assert [line.split()[0] for line in details] == DETAILS
    assert details[-1].endswith(f"-m sglang.launch_server {' '.join(LAUNCH)}")


@pytest.mark.parametrize(
    "secret",
    [
        ["--api-key", "s3cret"],
        ["--admin-api-key=s3cret"],
        ["--watermark-config", '{"key": "s3cret"}'],
        ["--api-k", "s3cret"],
        ["--ssl-keyfile-p=s3cret"],
    ],
    ids=["apart", "joined", "in JSON", "cut", "cut and joined"],
)
def test_what_opens_the_server_is_not_logged(
    capsys: pytest.CaptureFixture[str], secret: list[str]
) -> None:
    told = passed(capsys, *LAUNCH, *secret)
    assert "s3cret" not in told
    assert "[hidden]" in told


def test_what_opens_nothing_is_logged(capsys: pytest.CaptureFixture[str]) -> None:
    told = passed(capsys, *LAUNCH, "--ssl-keyfile", "key.pem", "--", "last")
    assert told.rstrip().endswith("--ssl-keyfile key.pem -- last")


def test_what_is_unknown_is_told_and_goes_on(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Names that any trainer writes, and no word on how it was trained.
    write_draft(place / "draft", headers=drafts.top() | drafts.layer("layers.0."))
    first, finding, remedy, *details = passed(capsys, *LAUNCH).splitlines()
    assert [line.split()[0] for line in details] == DETAILS
    assert "preflight: warning: " in first
    assert finding.startswith("  warning E3-flags-residual-unstated: ")
    assert remedy.startswith('    remedy: write "norm_before_residual"')


def test_an_error_ends_the_launch_with_its_finding_and_the_override(place: Path) -> None:
    damage(place / "draft")
    told = refusal(*LAUNCH)
    assert "preflight: error: " in told
    assert f"  {MISSING}" in told
    assert "    remedy: export the draft anew, whole" in told
    assert told.endswith("Fix: mend the errors above. (To start anyway: --eagle3-no-preflight)")


@pytest.mark.parametrize(
    "spelled",
    [
        ("--speculative-draft-model-path=draft",),
        ("--speculative-draft-model", "draft"),
        ("--speculative-draft-model-p", "draft"),
    ],
)
def test_the_draft_is_found_however_it_is_spelled(place: Path, spelled: tuple[str, ...]) -> None:
    damage(place / "draft")
    assert MISSING in refusal(*TARGET, "--speculative-algo", "eagle3", *spelled)


class TestConfigFile:
    """SGLang's `--config`, in place of arguments."""

    def test_its_arguments_count(self, place: Path) -> None:
        damage(place / "draft")
        text = "model-path: target\nspeculative-algorithm: EAGLE3\n"
        (place / "launch.yaml").write_text(f"{text}speculative-draft-model-path: draft\n")
        assert MISSING in refusal("--config", "launch.yaml")

    def test_the_command_line_wins(self, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
        damage(place / "broken")
        (place / "launch.yaml").write_text("speculative-draft-model-path: broken\n")
        assert "preflight: ok" in passed(capsys, *LAUNCH, "--config", "launch.yaml")
        assert MISSING in refusal(*TARGET, *EAGLE3, "--config", "launch.yaml")

    @pytest.mark.parametrize("text", [None, "- a\n- b\n", "a: [\n"])
    def test_one_that_cannot_be_read_is_told(
        self, place: Path, capsys: pytest.CaptureFixture[str], text: str | None
    ) -> None:
        if text is not None:
            (place / "launch.yaml").write_text(text)
        (line,) = passed(capsys, *LAUNCH, "--config", "launch.yaml").splitlines()
        assert "WARNING: not judged: --config launch.yaml" in line


@pytest.mark.parametrize("algorithm", ["STANDALONE", "DFLASH", "NGRAM", None])
def test_other_speculation_is_not_judged(
    place: Path, capsys: pytest.CaptureFixture[str], algorithm: str | None
) -> None:
    damage(place / "draft")
    asked = ("--speculative-algorithm", algorithm) if algorithm else ()
    assert passed(capsys, *TARGET, *DRAFT, *asked) == ""


@pytest.mark.parametrize("name", ["EAGLE", "NEXTN"])
class TestEagle:
    """`--speculative-algorithm EAGLE`, alias NEXTN, which runs drafts of several kinds."""

    ASKED = (*TARGET, *DRAFT, "--speculative-algorithm")

    def test_a_draft_of_another_kind_is_not_judged(
        self, place: Path, capsys: pytest.CaptureFixture[str], name: str
    ) -> None:
        write_draft(place / "draft", config(architectures=["LlamaForCausalLMEagle"]))
        assert passed(capsys, *self.ASKED, name) == ""

    def test_an_eagle3_draft_is(
        self, place: Path, capsys: pytest.CaptureFixture[str], name: str
    ) -> None:
        assert "preflight: ok" in passed(capsys, *self.ASKED, name)
        damage(place / "draft")
        assert MISSING in refusal(*self.ASKED, name)


class TestNotJudged:
    """What can't be judged never ends a launch."""

    @pytest.mark.parametrize("algorithm", ["EAGLE", "EAGLE3"])
    def test_a_path_that_is_none(self, capsys: pytest.CaptureFixture[str], algorithm: str) -> None:
        asked = ("--speculative-algorithm", algorithm)
        draft = ("--speculative-draft-model-path", "./nowhere")
        (line,) = passed(capsys, *TARGET, *asked, *draft).splitlines()
        assert line == (
            "sglang-eagle3-patch: preflight: WARNING: not judged: there is no folder ./nowhere"
        )

    def test_a_mistake_of_ours(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def stumble(*_: object, **__: object) -> None:
            raise RuntimeError("a mistake")

        monkeypatch.setattr(preflight, "read_case", stumble)
        (line,) = passed(capsys, *LAUNCH).splitlines()
        assert line.endswith("WARNING: not judged, since it failed: RuntimeError: a mistake")

    def test_settings_that_cannot_be(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv(VARIABLE, "a,-b")
        assert "not judged: SGLANG_EAGLE3_PATCH='a,-b' mixes" in passed(capsys, *LAUNCH)

    def test_what_takes_too_long(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        released = threading.Event()
        monkeypatch.setattr(preflight, "JUDGING_SECONDS", 0.05)
        monkeypatch.setattr(preflight, "read_case", lambda *_, **__: released.wait())
        assert "not judged: reading draft and target took more than" in passed(capsys, *LAUNCH)
        released.set()

    def test_modelscope_s_names(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("SGLANG_USE_MODELSCOPE", "true")
        assert "preflight: ok" in passed(capsys, *LAUNCH)
        draft = ("--speculative-draft-model-path", "org/draft")
        assert "not judged: org/draft is ModelScope's" in passed(capsys, *TARGET, *EAGLE3, *draft)


def test_a_strict_start_line_still_ends_the_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    # Looking for the installed SGLang can be what puts the patches in.
    def strict(*_: object, **__: object) -> None:
        raise SystemExit(1)

    monkeypatch.setattr(preflight, "read_case", strict)
    with pytest.raises(SystemExit) as ended:
        preflight.check(LAUNCH)
    assert ended.value.code == 1


def test_a_hub_that_hangs_is_left_behind(place: Path) -> None:
    # In a process of its own: the hub's client reads its address when imported, and the thread
    # that waits for it must not hold the process up either.
    script = (
        "import sys\nfrom sglang_eagle3_patch import preflight\n"
        "preflight.JUDGING_SECONDS = 1.0\npreflight.check(sys.argv[1:])\n"
    )
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        variables = {"HF_ENDPOINT": address, "HF_HOME": str(place), "HF_HUB_OFFLINE": "0"}
        finished = subprocess.run(
            [sys.executable, "-c", script, *TARGET, *EAGLE3, DRAFT[0], "org/draft"],
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert finished.returncode == 0, finished.stderr
    assert "not judged: reading draft and target took more than 1 s" in finished.stderr


class TestWhatOnlyTheInstalledMayKnow:
    """A class or a flag of a fork: nothing here is one, so that another folder stands for it."""

    FLAGGED = (*LAUNCH, "--speculative-magic", "1")

    @pytest.fixture
    def fork(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        models = place / "fork" / "srt" / "models"
        models.mkdir(parents=True)
        (models / "theirs.py").write_text("class TheirEagle3:\n    pass\n")
        (models.parent / "server_args.py").write_text("speculative_magic: int = 0\n")
        monkeypatch.setattr(doctor_fork, "installed_folder", lambda: place / "fork")
        return models.parent

    def asked_for(self, place: Path) -> None:
        write_draft(place / "draft", config(architectures=["TheirEagle3"]))

    @pytest.mark.usefixtures("fork")
    def test_a_class_of_a_fork_ends_nothing(
        self, place: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.asked_for(place)
        first, finding, *_ = passed(capsys, *LAUNCH).splitlines()
        assert "preflight: warning: " in first
        assert finding.startswith("  warning E3-config-architecture: TheirEagle3 is no draft class")

    @pytest.mark.usefixtures("fork")
    def test_a_flag_of_a_fork_ends_nothing(self, capsys: pytest.CaptureFixture[str]) -> None:
        told = passed(capsys, *self.FLAGGED)
        assert "preflight: warning: " in told
        assert "  warning E3-launch-flags: " in told

    def test_what_the_installed_does_not_have_is_refused(self, place: Path) -> None:
        assert "error E3-launch-flags: " in refusal(*self.FLAGGED)
        self.asked_for(place)
        assert "error E3-config-architecture: architectures is ['TheirEagle3']" in refusal(*LAUNCH)

    def test_a_part_of_a_word_is_another_word(self, fork: Path, place: Path) -> None:
        (fork / "models" / "theirs.py").write_text("class TheirEagle3Target:\n    pass\n")
        self.asked_for(place)
        assert "error E3-config-architecture: " in refusal(*LAUNCH)

    @pytest.mark.usefixtures("fork")
    def test_a_class_of_sglang_s_own_is_none_of_a_draft(self, place: Path) -> None:
        write_draft(place / "draft", config(architectures=["LlamaForCausalLM"]))
        assert "error E3-config-architecture: " in refusal(*LAUNCH)

    @pytest.mark.parametrize("by", ["a variable", "a plugin"])
    @pytest.mark.parametrize("form", ["theirs/models.py", "theirs.py"])
    def test_a_class_from_outside_ends_nothing(
        self,
        place: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
        by: str,
        form: str,
    ) -> None:
        self.asked_for(place)
        file = place / "outside" / form
        file.parent.mkdir(parents=True)
        file.write_text("class TheirEagle3:\n    pass\n")
        if file.parent.name == "theirs":
            (file.parent / "__init__.py").write_text("raise SystemExit('imported')\n")
        monkeypatch.syspath_prepend(str(place / "outside"))
        group = "sglang.srt.plugins"
        points = [
            EntryPoint("eagle3_patch", "sglang_eagle3_patch._startup:run", group),
            EntryPoint("gone", "nowhere.plugin:run", group),
        ]
        if by == "a plugin":
            points.append(EntryPoint("theirs", "theirs.models:run", group))
        else:
            monkeypatch.setenv("SGLANG_EXTERNAL_MODEL_PACKAGE", "theirs.models")
        monkeypatch.setattr(
            doctor_fork.importlib.metadata, "entry_points", lambda group: tuple(points)
        )
        assert "preflight: warning: " in passed(capsys, *LAUNCH)


class TestPatchesLeftOut:
    def test_an_error_is_a_warning(
        self, place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        damage(place / "draft")
        monkeypatch.setenv(VARIABLE, "-draft-weights")
        told = passed(capsys, *LAUNCH)
        assert "preflight: warning: " in told
        assert MISSING in told
        assert (
            "WARNING: no error ends this start: it is judged as if every patch were on, and "
            "SGLANG_EAGLE3_PATCH=-draft-weights leaves out draft-weights\n"
        ) in told

    def test_so_is_it_where_only_some_are_named(
        self, place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        damage(place / "draft")
        monkeypatch.setenv(VARIABLE, "draft-config")
        assert "preflight: warning: " in passed(capsys, *LAUNCH)

    def test_one_that_only_watches_changes_nothing(
        self, place: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        damage(place / "draft")
        monkeypatch.setenv(VARIABLE, "-acceptance,-self-report")
        assert MISSING in refusal(*LAUNCH)

    def test_with_all_of_them_off_nothing_is_judged(
        self, place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        damage(place / "draft")
        monkeypatch.setenv(VARIABLE, "0")
        assert passed(capsys, *LAUNCH) == ""


@pytest.mark.parametrize("flag", ["--load-format", "--speculative-draft-load-format"])
def test_dummy_weights_end_nothing(
    place: Path, capsys: pytest.CaptureFixture[str], flag: str
) -> None:
    damage(place / "draft")
    told = passed(capsys, *LAUNCH, flag, "dummy")
    assert "preflight: warning: " in told
    assert "no error ends this start: the load format dummy reads no weights" in told


def test_a_hub_draft_is_read_at_its_revision(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # There is no hub here: a download is stood in for.
    import huggingface_hub

    asked: list[tuple[str, str | None]] = []

    def download(repository: str, file: str, revision: str | None = None) -> str:
        asked.append((repository, revision))
        return str(place / "draft" / file)

    def metadata(repository: str, revision: str | None = None) -> None:
        asked.append((repository, revision))
        raise OSError("no more is needed")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    monkeypatch.setattr(huggingface_hub, "get_safetensors_metadata", metadata)
    revisions = ("--speculative-draft-model-revision", "v2", "--revision", "v1")
    launch = (*TARGET, *EAGLE3, DRAFT[0], "org/draft", *revisions)
    assert "not judged" in passed(capsys, *launch)
    assert asked == [("org/draft", "v2")] * 2


class TestDryRun:
    def ended(
        self, capsys: pytest.CaptureFixture[str], *arguments: str
    ) -> tuple[int, Callable[[str], str]]:
        """Return the status and what is said of a thing."""
        status = preflight.dry_run(arguments)
        lines = capsys.readouterr().out.splitlines()

        def said(of: str) -> str:
            (line,) = [line for line in lines if line.lstrip().startswith(of)]
            return line.lstrip().removeprefix(of).strip()

        return status, said

    def test_it_tells_what_was_found(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv(f"{VARIABLE}_OPTIONS", "aux_layers=1:3:5")
        status, said = self.ended(capsys, *LAUNCH, "--tp", "2")
        assert status == 0
        assert said("target") == "target, LlamaForCausalLM"
        assert said("draft") == "draft, LlamaForCausalLMEagle3, 15 tensors"
        assert said("producer") == "SpecForge"
        assert said("layers") == "inputs of [1, 3, 5] of 8; the aux_layers option"
        assert said("flags") == "norm_before_head=True"
        assert "draft-weights" in said("patches").split(", ")
        assert said(f"{VARIABLE}=1").endswith(
            " -m sglang.launch_server --model-path target --speculative-algorithm EAGLE3 "
            "--speculative-draft-model-path draft --tp 2"
        )

    def test_an_error_is_1(self, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
        damage(place / "draft")
        status, said = self.ended(capsys, *LAUNCH)
        assert status == 1
        assert said("error E3-names-missing:")
        assert said("draft").startswith("draft, ")

    def test_what_cannot_be_judged_is_2(
        self, place: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (place / "draft" / "config.json").write_text("{")
        status, said = self.ended(capsys, *LAUNCH)
        assert status == 2
        assert "config.json" in said("sglang-eagle3-patch: preflight: not judged:")

    def test_other_speculation_is_handed_over(self, capsys: pytest.CaptureFixture[str]) -> None:
        status, said = self.ended(capsys, *TARGET, "--speculative-algorithm", "NGRAM")
        assert status == 0
        assert said("sglang-eagle3-patch: preflight: nothing to judge")

    def test_with_every_patch_off_it_is_stock(
        self, place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        stated = json.loads((place / "draft" / "config.json").read_text())
        write_draft(place / "draft", {**stated, "norm_before_residual": True})
        assert self.ended(capsys, *LAUNCH)[0] == 0
        monkeypatch.setenv(VARIABLE, "0")
        status, said = self.ended(capsys, *LAUNCH)
        assert status == 1
        assert said("patches") == "none"
