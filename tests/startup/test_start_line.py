"""The start line: inert without its variable, idempotent, never in anybody's way."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from tests.startup.conftest import RunPython

# The packages imported beside the standard library's.
FOREIGN = (
    "import sys; names = {m.partition('.')[0] for m in sys.modules}; "
    "print(sorted(names - set(sys.stdlib_module_names) - {'__main__'}))"
)
SELECTED = (
    "import sglang; from sglang_eagle3_patch import status; "
    "print(*(r.name for r in status() if r.status.value != 'disabled'))"
)
ON = {"SGLANG_EAGLE3_PATCH": "1"}


def test_the_wheel_holds_the_package_and_the_start_lines(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    top = {name.split("/")[0] for name in names}
    assert {t for t in top if not t.endswith(".dist-info")} == {
        "sglang_eagle3_patch",
        "sglang_eagle3_patch.pth",
        "sglang_eagle3_patch.start",
    }
    assert "sglang_eagle3_patch/py.typed" in names


def test_the_start_line_is_one_readable_line(wheel: Path) -> None:
    text = zipfile.ZipFile(wheel).read("sglang_eagle3_patch.pth").decode("ascii")
    assert text.count("\n") == 1
    assert text.startswith("import os; ")
    assert "exec" not in text
    start = zipfile.ZipFile(wheel).read("sglang_eagle3_patch.start").decode("ascii")
    assert start.splitlines()[-1] == "sglang_eagle3_patch._startup:run"


@pytest.mark.parametrize("variables", [{}, {"SGLANG_EAGLE3_PATCH": ""}])
def test_without_the_variable_nothing_at_all_is_imported(
    run: RunPython, variables: dict[str, str]
) -> None:
    result = run(FOREIGN, **variables)
    assert (result.stdout.strip(), result.stderr) == ("[]", "")
    code = "import sglang, sys; print(len(sys.meta_path)); " + FOREIGN
    bare = run("import sys; print(len(sys.meta_path))")
    assert run(code, **variables).stdout.split() == [bare.stdout.strip(), "['sglang']"]


@pytest.mark.parametrize("value", ["0", "off"])
def test_off_is_off(run: RunPython, value: str) -> None:
    code = "import sglang, sys; print('wrapt' in sys.modules)"
    result = run(code, SGLANG_EAGLE3_PATCH=value)
    assert (result.stdout.strip(), result.stderr) == ("False", "")


def test_with_it_only_the_standard_library_is_imported(run: RunPython) -> None:
    result = run(FOREIGN, **ON)
    assert (result.stdout.strip(), result.stderr) == ("['sglang_eagle3_patch']", "")


def test_importing_sglang_puts_the_hooks_in(run: RunPython) -> None:
    code = (
        "import sglang, sys; from sglang_eagle3_patch import status; "
        "print({r.status.value for r in status()}, len(sys.meta_path))"
    )
    bare = run("import sys; print(len(sys.meta_path))")
    result = run(code, **ON)
    # wrapt leaves its own finder; ours has taken itself out again.
    assert result.stdout.split() == ["{'waiting'}", str(int(bare.stdout) + 1)]
    assert result.stderr == ""


def test_a_list_of_names_is_all_that_is_selected(run: RunPython) -> None:
    result = run(SELECTED, SGLANG_EAGLE3_PATCH="draft-weights,fc-guard")
    assert sorted(result.stdout.split()) == ["draft-weights", "fc-guard"]
    assert result.stderr == ""


def test_a_negative_list_selects_the_others(run: RunPython) -> None:
    everything = set(run(SELECTED, **ON).stdout.split())
    result = run(SELECTED, SGLANG_EAGLE3_PATCH="-draft-weights,-fc-guard")
    assert everything > {"draft-weights", "fc-guard"}
    assert set(result.stdout.split()) == everything - {"draft-weights", "fc-guard"}
    assert result.stderr == ""


def test_an_unknown_name_lists_the_known(run: RunPython) -> None:
    everything = set(run(SELECTED, **ON).stdout.split())
    result = run("import sglang", SGLANG_EAGLE3_PATCH="draft-weight")
    known = result.stderr.partition("Fix: use some of ")[2].strip().rstrip(".")
    assert "names draft-weight, which is no patch" in result.stderr
    assert set(known.split(", ")) == everything


def test_no_torch_and_no_transformers_come_with_it(run: RunPython) -> None:
    code = "import sglang, sys; print([m for m in ('torch', 'transformers') if m in sys.modules])"
    assert run(code, **ON).stdout.strip() == "[]"


def test_running_twice_is_running_once(run: RunPython) -> None:
    code = (
        "from sglang_eagle3_patch import _startup; import sys; "
        "_startup.run(); _startup.run(); "
        "print(sum('sglang_eagle3' in type(f).__module__ for f in sys.meta_path))"
    )
    assert run(code, **ON).stdout.strip() == "1"


def test_start_line_and_entry_point_are_one(run: RunPython) -> None:
    """SGLang's plugin loading comes after the start line; neither may undo or double the other."""
    code = (
        "import sglang, sys; from importlib.metadata import entry_points; "
        "from sglang_eagle3_patch.hooks import registry; before = list(registry._bindings); "
        "(point,) = entry_points(group='sglang.srt.plugins', name='eagle3_patch'); point.load()(); "
        "print(len(before) > 0, registry._bindings == before, "
        "sum('sglang_eagle3' in type(f).__module__ for f in sys.meta_path))"
    )
    result = run(code, **ON)
    assert (result.stdout.strip(), result.stderr) == ("True True 0", "")


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_child_is_hooked_too(run: RunPython, tmp_path: Path, method: str) -> None:
    script = tmp_path / "parent.py"
    script.write_text(
        "import multiprocessing\n"
        "def child():\n"
        "    import sglang\n"
        "    from sglang_eagle3_patch import status\n"
        "    print({r.status.value for r in status()})\n"
        "if __name__ == '__main__':\n"
        f"    process = multiprocessing.get_context({method!r}).Process(target=child)\n"
        "    process.start(); process.join()\n"
    )
    # Given as a flag, the script is what runs; the code behind it is only its arguments.
    result = run("", str(script), **ON)
    assert result.stdout.strip() == "{'waiting'}"


@pytest.mark.parametrize("value", ["nonsense", "draft-weights,-fc-guard"])
def test_a_wrong_value_is_told_and_ends_nothing(run: RunPython, value: str) -> None:
    result = run("import sglang; print('alive')", SGLANG_EAGLE3_PATCH=value)
    assert result.stdout.strip() == "alive"
    assert result.returncode == 0
    assert result.stderr.startswith("sglang-eagle3-patch: not active in this process: ")
    assert "Fix: " in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_wrong_value_under_strictness_ends_the_process(run: RunPython) -> None:
    variables = {"SGLANG_EAGLE3_PATCH": "nonsense", "SGLANG_EAGLE3_PATCH_STRICT": "1"}
    result = run("import sglang; print('alive')", **variables)
    assert (result.returncode, result.stdout) == (1, "")
    assert "nonsense, which is no patch" in result.stderr


def test_a_variable_that_nobody_knows_is_told(run: RunPython) -> None:
    result = run("import sglang; print('alive')", **ON, SGLANG_EAGLE3_PATCH_STALL="60")
    assert result.stdout.strip() == "alive"
    assert result.stderr.startswith("sglang-eagle3-patch: SGLANG_EAGLE3_PATCH_STALL: no variable ")
    assert "SGLANG_EAGLE3_PATCH_STALL_S" in result.stderr
    assert result.stderr.count("\n") == 1


def test_without_site_packages_it_is_simply_not_there(run: RunPython) -> None:
    result = run("print('alive')", "-S", **ON)
    assert (result.stdout.strip(), result.stderr) == ("alive", "")


def test_importing_the_package_is_light(run: RunPython) -> None:
    code = (
        "import sys; before = set(sys.modules); import sglang_eagle3_patch; "
        "print(sorted(set(sys.modules) - before))"
    )
    assert run(code).stdout.strip() == "['__future__', 'sglang_eagle3_patch']"
