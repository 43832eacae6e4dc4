"""Patched trees at run time: each runtime twin sees that it is not needed, but for those whose file
does a part of what they do, and the tests that the series bring pass. (That on a pristine release a
twin is applied, `tests/contract/releases` tells.)

All releases are looked at under `./launch.sh test --matrix`, which keeps the results in
`twins.json` and `own_tests.json`; without it the ends are, and the kept results must tell of all.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.cpu_sglang import environments, releases
from tests.cpu_sglang.environments import Environment
from tests.cpu_sglang.releases import WHOLE
from tests.cpu_sglang.server import VARIABLE, process_variables
from tests.patches.trees import own_tests, patched, refresh, twins_beside, with_what_it_needs

TWINS = Path(__file__).with_name("twins.json")
OWN_TESTS = Path(__file__).with_name("own_tests.json")
ALL = refresh.releases()
RELEASES = ALL if WHOLE else [ALL[0], ALL[-1]]
# The series of each release, and of the newest one each file by itself, with what it names.
NEWEST = refresh.series(releases.DEFAULT)
WITH_TESTS = {release: (release, refresh.series(release)) for release in ALL}
WITH_TESTS |= {
    f"{releases.DEFAULT} {file.name[:4]}": (releases.DEFAULT, with_what_it_needs(file))
    for file in NEWEST
}

# Imports every module that a hook touches, as far as the release has it, and says what became of
# the hooks. The start line of the installed package puts them in.
_STATUS = """
import importlib, json
import sglang
import sglang_eagle3_patch
from sglang_eagle3_patch.hooks import PATCHES
for name in sorted({hook.module for patch in PATCHES for hook in patch.hooks}):
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as missing:
        if not name.startswith(missing.name):
            raise
found = {
    patch.name: [patch.status, patch.detail, {hook.path: hook.status for hook in patch.hooks}]
    for patch in sglang_eagle3_patch.status()
}
print(json.dumps(found))
"""
# Whether `acceptance` leaves its line per interval to SGLang.
_TELLS_POSITIONS = """
import json
from sglang_eagle3_patch.hooks import acceptance
print(json.dumps(acceptance.tells_positions()))
"""


def said(script: str, environment: Environment, folder: Path) -> Any:
    done = subprocess.run(
        [environment.python, "-W", "ignore", "-c", script],
        env=process_variables(environment, {VARIABLE: "1"}),
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("release", RELEASES)
def test_on_the_patched_tree_only_what_no_file_does_is_needed(release: str, tmp_path: Path) -> None:
    environment = environments.ensure(release)
    tree = patched(environment, tmp_path / "patched", refresh.series(release))
    found = said(_STATUS, tree, tmp_path)
    expected = twins_beside(release)
    status = {name: found[name][0] for name in expected}
    assert status == expected, found
    for name, word in expected.items():
        assert set(found[name][2].values()) <= {word, "waiting"}
    assert found["wrapper-capture"][0] == "applied"
    assert said(_TELLS_POSITIONS, tree, tmp_path)
    assert not said(_TELLS_POSITIONS, environment, tmp_path)
    if WHOLE:
        keep(TWINS, release, status)


@pytest.mark.parametrize("name", WITH_TESTS if WHOLE else [releases.DEFAULT])
def test_the_tests_within_the_series_pass(name: str, tmp_path: Path) -> None:
    release, files = WITH_TESTS[name]
    environment = patched(environments.ensure(release), tmp_path / "patched", files)
    # SGLang's helpers for tests import it, and load no data set here; at 0.5.9 the real one wants
    # a newer huggingface_hub than the environment has.
    (tmp_path / "patched/python/datasets.py").write_text("load_dataset = None\n")
    variables = process_variables(environment, {})
    # SGLang's helpers for tests take a number from it, where it is set.
    del variables["CUDA_VISIBLE_DEVICES"]
    done = subprocess.run(
        [environment.python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test/registered"],
        env=variables,
        cwd=tmp_path / "patched",
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    assert f"\n{own_tests(files)} passed" in done.stdout, done.stdout[-4000:]
    if WHOLE:
        keep(OWN_TESTS, name, own_tests(files))


def keep(results: Path, name: str, result: Any) -> None:
    found = json.loads(results.read_text(encoding="utf-8")) | {name: result}
    order = [*ALL, *WITH_TESTS]
    ordered = {name: found[name] for name in sorted(found, key=order.index)}
    results.write_text(json.dumps(ordered, indent=1) + "\n", encoding="utf-8")


def test_every_release_was_looked_at() -> None:
    assert json.loads(TWINS.read_text(encoding="utf-8")) == {
        release: twins_beside(release) for release in ALL
    }
    assert json.loads(OWN_TESTS.read_text(encoding="utf-8")) == {
        name: own_tests(files) for name, (_, files) in WITH_TESTS.items()
    }
