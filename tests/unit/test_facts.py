"""`EngineFacts`: the stored data, and how they are read from source."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from packaging.version import Version

from sglang_eagle3_patch import facts
from sglang_eagle3_patch.facts import reading, store
from sglang_eagle3_patch.facts.engine_facts import TargetClass
from tests.cpu_sglang.releases import RELEASES


class TestStored:
    def test_every_supported_release_is_known_oldest_first(self) -> None:
        assert facts.known_releases() == tuple(sorted(RELEASES, key=Version))
        assert facts.newest_known() == max(RELEASES, key=Version)

    @pytest.mark.parametrize("release", RELEASES)
    def test_they_are_of_the_release_they_are_called_by(self, release: str) -> None:
        known = facts.facts_for(release)
        assert known is not None
        assert known.release == release

    @pytest.mark.parametrize("release", RELEASES)
    def test_they_agree_with_what_was_served(self, release: str) -> None:
        known, served = facts.facts_for(release), RELEASES[release]
        assert known is not None
        worker = {"v1": "EAGLEWorker", "v2": "EAGLEWorkerV2"}[served.worker]
        assert known.workers.default == worker
        assert worker in known.workers.classes
        assert known.workers.cpu_eagle == (served.route == "cpu")

    @pytest.mark.parametrize("release", RELEASES)
    def test_graphs_capture_the_drafts_layers_since_0_5_11(self, release: str) -> None:
        known = facts.facts_for(release)
        assert known is not None
        assert known.workers.layers_set_before_graphs == (Version(release) >= Version("0.5.11"))
        assert known.workers.capture_ids_from == ("eagle_config",)

    @pytest.mark.parametrize("release", RELEASES)
    def test_what_every_draft_needs_is_known(self, release: str) -> None:
        known = facts.facts_for(release)
        assert known is not None
        assert None not in (known.requires_python, known.transformers, known.launch.load_formats)
        for draft in known.drafts.values():
            assert draft.decoder in ("midlayer", "layers")
            assert draft.num_aux_default == 3
            unknown = [name for name, value in vars(draft).items() if value is None]
            assert unknown == []

    @pytest.mark.parametrize("release", ["", "0.5.8", "0.5.9+fork", "../data/0.5.9", "1.0"])
    def test_nothing_is_known_of_other_releases(self, release: str) -> None:
        assert facts.facts_for(release) is None

    def test_loading_imports_neither_sglang_nor_torch(self) -> None:
        code = """
            import sys
            from sglang_eagle3_patch import facts
            for release in facts.known_releases():
                facts.facts_for(release)
            facts.installed()
            print(sorted({"sglang", "torch", "transformers"} & set(sys.modules)))
        """
        found = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code)],
            capture_output=True,
            text=True,
            check=True,
        )
        assert found.stdout.splitlines()[-1] == "[]"

    def test_the_installed_release_is_described_as_its_source_reads_today(self) -> None:
        folder = reading.installed_folder()
        if folder is None:
            pytest.skip("no SGLang is installed here")
        live = facts.read_source(folder)
        assert live == facts.installed()
        assert live == facts.facts_for(live.release or "")


class TestCapturedLayers:
    @pytest.mark.parametrize(
        ("rule", "ids", "layers"),
        [
            ("plus_one", (1, 3, 4), (2, 4, 5)),
            ("plus_one_if_first_is_1", (1, 3, 4), (2, 4, 5)),
            ("plus_one_if_first_is_1", (2, 4, 5), (2, 4, 5)),
            ("as_is_if_max_is_num_layers", (2, 4, 8), (2, 4, 8)),
            ("as_is_if_max_is_num_layers", (1, 3, 7), (2, 4, 8)),
            (None, (1, 3, 4), None),
        ],
    )
    def test_explicit_ids(self, rule: str | None, ids: tuple[int, ...], layers: object) -> None:
        target = TargetClass(True, True, True, explicit_ids=rule)
        assert target.captured_layers(ids, 8) == layers

    def test_defaults(self) -> None:
        usual = TargetClass(True, True, True, default_ids="2,N//2,N-3")
        later = TargetClass(True, True, True, default_ids="3,N//2+1,N-2")
        assert usual.captured_layers(None, 9) == (2, 4, 6)
        assert later.captured_layers(None, 9) == (3, 5, 7)
        assert TargetClass(True, True, True).captured_layers(None, 9) is None


SETTER = """
    def set_eagle3_layers_to_capture(self, layer_ids=None):
        if layer_ids is None:
            self.model.layers_to_capture = [2, n // 2, n - 3]
        else:
            self.model.layers_to_capture = [val + 1 for val in layer_ids]
"""

TREE = {
    "_version.py": '__version__ = version = "9.9"\n',
    "srt/models/base.py": f"""
from torch import nn
class Base(nn.Module):
    def get_embed_and_head(self): ...
{SETTER}
EntryClass = Base
""",
    # A class named as the imported one it extends, behind a byte order mark, twice registered.
    "srt/models/child.py": "\ufeff"
    + """
from sglang.srt.models.base import Base as Child
from elsewhere import Mixin
if True:
    class Child(Mixin, Child):
        def set_embed_and_head(self, embed, head): ...
class Bare(Mixin): ...
EntryClass = [Child, Bare]
""",
    "srt/models/wrapper.py": """
class Wrapper:
    def __init__(self):
        from sglang.srt.models.child import Child
        self.language_model = None
        self.language_model = Child()
    def set_eagle3_layers_to_capture(self, layer_ids=None):
        self.language_model.set_eagle3_layers_to_capture(layer_ids)
class Handing:
    def __getattr__(self, name): ...
EntryClass = [Wrapper, Handing]
""",
    "srt/models/odd.py": """
from sglang.srt.models.missing import Missing
class Odd(Missing):
    def set_eagle3_layers_to_capture(self, layer_ids=None):
        self.model.layers_to_capture = [val + 2 for val in layer_ids or [1]]
EntryClass = Odd
""",
    "srt/models/broken.py": "def (",
    "srt/models/nested/deep.py": "class Deep: ...\nEntryClass = Deep\n",
    "srt/server_args.py": """
LOAD_FORMAT_CHOICES = ["auto", "dummy"]
class ServerArgs:
    speculative_one: A[int, "help"] = 1
    speculative_two: A[int, Arg(help="h", cli_name="--speculative-2", aliases=["--speculative-b"])]
    speculative_hidden: A[int, Arg(no_cli=True)] = 1
    speculative_plain: int = 1
    def add_cli_args(parser):
        parser.add_argument("--speculative-added", "--speculative-alias", type=int)
        parser.add_argument("--other")
""",
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """An `sglang` package of our own making, with what real ones do in one place or another."""
    for name, content in TREE.items():
        file = tmp_path / "sglang" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content, encoding="utf-8")
    return tmp_path / "sglang"


class TestReading:
    def test_classes_are_found_through_imports_and_bases(self, tree: Path) -> None:
        targets = facts.read_source(tree).targets
        shifts = {"explicit_ids": "plus_one", "default_ids": "2,N//2,N-3"}
        assert targets == {
            "Bare": TargetClass(False, False, False),
            "Base": TargetClass(True, True, False, **shifts),
            "Child": TargetClass(True, True, True, **shifts),
            "Handing": TargetClass(None, None, None, holds_language_model=None),
            "Odd": TargetClass(True, None, None, holds_language_model=None),
            "Wrapper": TargetClass(
                True,
                False,
                False,
                **shifts,
                delegates_to="Child",
                holds_language_model=True,
                language_model="Child",
            ),
        }

    def test_flags_are_found_in_both_forms(self, tree: Path) -> None:
        launch = facts.read_source(tree).launch
        assert launch.speculative_flags == (
            "--speculative-2",
            "--speculative-added",
            "--speculative-alias",
            "--speculative-b",
            "--speculative-one",
        )
        assert launch.load_formats == ("auto", "dummy")
        assert launch.draft_window is None

    def test_what_is_not_there_is_unknown(self, tree: Path) -> None:
        read = facts.read_source(tree)
        assert read.release == "9.9"
        assert (read.requires_python, read.transformers, read.drafts) == (None, None, {})
        workers = read.workers
        assert (workers.default, workers.capture_ids_from, workers.layers_set_before_graphs) == (
            None,
            None,
            None,
        )
        (tree / "_version.py").unlink()
        assert facts.read_source(tree).release is None

    def test_requirements_come_from_the_metadata_of_that_release(self, tree: Path) -> None:
        metadata = tree.parent / "sglang-9.9.dist-info/METADATA"
        metadata.parent.mkdir()
        metadata.write_text(
            "Metadata-Version: 2.1\nName: sglang\nVersion: 9.9\nRequires-Python: >=3.10\n"
            "Requires-Dist: transformers==4.5\nRequires-Dist: transformers; extra == 'all'\n"
        )
        read = facts.read_source(tree)
        assert (read.requires_python, read.transformers) == (">=3.10", "==4.5")

    def test_another_folder_is_refused_by_name(self, tmp_path: Path) -> None:
        with pytest.raises(facts.NoSuchSource, match=str(tmp_path)):
            facts.read_source(tmp_path)

    def test_an_unknown_release_that_is_installed_is_read_live(
        self, tree: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delitem(sys.modules, "sglang", raising=False)  # other tests' import of it
        monkeypatch.setattr(sys, "path", [str(tree.parent)])
        (tree / "__init__.py").write_text("raise AssertionError('imported')")
        found = facts.installed()
        assert found == facts.read_source(tree)
        (tree / "_version.py").write_text('__version__ = "0.5.9"\n')
        assert facts.installed() == facts.facts_for("0.5.9")

    def test_without_sglang_there_is_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delitem(sys.modules, "sglang", raising=False)
        monkeypatch.setattr(sys, "path", [str(tmp_path)])
        assert facts.installed() is None

    def test_what_is_written_is_what_is_read_back(
        self, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        read = facts.read_source(tree)
        monkeypatch.setattr(store, "_FOLDER", tmp_path)
        try:
            store.write(read)
            assert facts.facts_for("9.9") == read
        finally:
            store.known_releases.cache_clear()
            store.facts_for.cache_clear()
