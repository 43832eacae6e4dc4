"""The engine, on modules made for the purpose: it knows nothing of SGLang."""

from __future__ import annotations

import graphlib
import importlib
import itertools
import logging
import multiprocessing
import sys
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import wrapt

from sglang_eagle3_patch.engine.patch import Hook, Patch, Risk, Status
from sglang_eagle3_patch.engine.registry import Registry, in_order
from sglang_eagle3_patch.settings import PREFIX, VARIABLES, Selection, Settings, SettingsError

SOURCE = """
class Model:
    def forward(self, batch, scale=1):
        return batch * scale

    @classmethod
    def read(cls, path):
        return path
"""


@pytest.fixture
def module_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: Any) -> str:
    """The name of a module that can be imported and was not yet."""
    name = f"engine_target_{abs(hash(request.node.nodeid))}"
    (tmp_path / f"{name}.py").write_text(textwrap.dedent(SOURCE))
    monkeypatch.syspath_prepend(tmp_path)
    return name


def doubling(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    return wrapped(*args, **kwargs) * 2


def patch_of(*hooks: Hook, name: str = "doubling") -> Patch:
    return Patch(
        name=name,
        title="Double",
        hooks=hooks,
        processes=("main",),
        applies=">=0",
        reason="test",
        upstream="none: test",
        remove_when="never",
        risk=Risk.OBSERVABILITY,
    )


def hook_on(module: str, attribute: str = "Model.forward", **fields: Any) -> Hook:
    return Hook(module=module, attribute=attribute, wrapper=doubling, **fields)


def status_of(registry: Registry, patch: Patch) -> Status:
    return registry.report([patch])[0].status


# Every order in which an import may fall between two activations and a removal.
STEPS = ("import", "apply", "apply", "remove", "apply")


@pytest.mark.parametrize("order", sorted(set(itertools.permutations(STEPS))), ids="-".join)
def test_any_order_patches_once_or_not_at_all(module_name: str, order: tuple[str, ...]) -> None:
    registry, patch = Registry(), patch_of(hook_on(module_name))
    active = False
    for step in order:
        if step == "import":
            importlib.import_module(module_name)
        elif step == "apply":
            registry.apply([patch], Settings())
            active = True
        else:
            registry.remove()
            active = False
        if module_name in sys.modules:
            result = sys.modules[module_name].Model().forward(5)
            assert result == (10 if active else 5), f"after {step}"
    assert status_of(registry, patch) is (Status.APPLIED if active else Status.DISABLED)


def test_a_removed_patch_leaves_the_very_same_function(module_name: str) -> None:
    model = importlib.import_module(module_name).Model
    # By identity: what wrapt wraps around a function equals the function.
    before = {name: id(value) for name, value in vars(model).items()}
    registry = Registry()
    hooks = hook_on(module_name), hook_on(module_name, "Model.read")
    registry.apply([patch_of(*hooks)], Settings())
    assert model.read("x") == "xx"
    registry.remove()
    assert {name: id(value) for name, value in vars(model).items()} == before


def test_a_module_never_imported_stays_waiting() -> None:
    registry, patch = Registry(), patch_of(hook_on("no_such_module_anywhere"))
    registry.apply([patch], Settings())
    assert status_of(registry, patch) is Status.WAITING


def test_a_lost_parameter_is_unsupported_and_told(
    module_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    registry = Registry()
    patch = patch_of(hook_on(module_name, parameters=("batch", "positions")))
    registry.apply([patch], Settings())
    module = importlib.import_module(module_name)
    assert module.Model().forward(5) == 5
    report = registry.report([patch])[0]
    assert report.status is Status.UNSUPPORTED
    assert "takes (self, batch, scale), relied on: positions" in report.detail
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_a_patch_the_user_named_is_an_error(
    module_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    registry = Registry()
    named = Settings(selection=Selection.parse("doubling"))
    registry.apply([patch_of(hook_on(module_name, "Model.gone"))], named)
    importlib.import_module(module_name)
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert "has no Model.gone" in caplog.text


def test_unknown_variables_are_told_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry, unknown = Registry(), Settings(unknown=(f"{PREFIX}_STALL",))
    for _ in range(2):
        registry.apply([], unknown)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert f"{PREFIX}_STALL: no variable of ours" in caplog.text
    assert all(variable.name in caplog.text for variable in VARIABLES)
    caplog.clear()
    registry.remove()
    registry.apply([], Settings())
    # Processes that it spawns have the same variables.
    monkeypatch.setattr(multiprocessing, "parent_process", multiprocessing.current_process)
    Registry().apply([], unknown)
    assert not caplog.records


def test_strictness_ends_the_process(module_name: str, capsys: pytest.CaptureFixture[str]) -> None:
    registry = Registry()
    registry.apply([patch_of(hook_on(module_name, "Gone.forward"))], Settings(strict=True))
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(module_name)
    assert ended.value.code == 1
    assert "has no Gone. Fix: leave it out with SGLANG_EAGLE3_PATCH=-doubling" in (
        capsys.readouterr().err
    )


def test_an_exception_of_ours_never_breaks_the_import(
    module_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    def probe(owner: Any) -> bool:
        raise RuntimeError("probe broke")

    registry, patch = Registry(), patch_of(hook_on(module_name, fixed_when=probe))
    registry.apply([patch], Settings())
    assert importlib.import_module(module_name).Model().forward(5) == 5
    assert module_name in sys.modules
    assert status_of(registry, patch) is Status.FAILED
    assert "probe broke" in caplog.text


def test_a_probe_retires_a_hook(module_name: str) -> None:
    registry = Registry()
    patch = patch_of(hook_on(module_name, fixed_when=lambda owner: hasattr(owner, "read")))
    registry.apply([patch], Settings())
    assert importlib.import_module(module_name).Model().forward(5) == 5
    assert status_of(registry, patch) is Status.NOT_NEEDED


def test_a_slot_takes_the_first_that_exists(module_name: str) -> None:
    registry = Registry()
    patch = patch_of(
        hook_on(module_name, "Model.newer", optional=True, slot="run"),
        hook_on(module_name, "Model.forward", slot="run"),
        hook_on(module_name, "Model.read", slot="run"),
    )
    registry.apply([patch], Settings())
    importlib.import_module(module_name)
    words = [hook.status for hook in registry.report([patch])[0].hooks]
    assert words == [Status.NOT_NEEDED, Status.APPLIED, Status.NOT_NEEDED]
    assert status_of(registry, patch) is Status.APPLIED


def test_a_retired_hook_holds_its_slot(module_name: str) -> None:
    registry = Registry()
    patch = patch_of(
        hook_on(module_name, "Model.forward", slot="run", fixed_when=lambda owner: True),
        hook_on(module_name, "Model.gone", slot="run"),
    )
    registry.apply([patch], Settings())
    importlib.import_module(module_name)
    assert status_of(registry, patch) is Status.NOT_NEEDED


def test_being_replaced_by_someone_else_is_seen(module_name: str) -> None:
    registry, patch = Registry(), patch_of(hook_on(module_name))
    registry.apply([patch], Settings())
    model = importlib.import_module(module_name).Model
    model.forward = lambda self, batch: -batch
    assert status_of(registry, patch) is Status.DISPLACED


def test_being_wrapped_over_by_wrapt_is_no_displacement(module_name: str) -> None:
    registry, patch = Registry(), patch_of(hook_on(module_name))
    registry.apply([patch], Settings())
    model = importlib.import_module(module_name).Model
    wrapt.wrap_function_wrapper(model, "forward", doubling)
    assert status_of(registry, patch) is Status.APPLIED
    registry.remove()
    assert model().forward(5) == 10


def test_patches_go_in_behind_those_they_name() -> None:
    first, second, third = (patch_of(name=name) for name in "abc")
    behind_third = replace(first, after=("c", "removed"))
    names = [patch.name for patch in in_order([behind_third, second, third])]
    assert sorted(names) == ["a", "b", "c"]
    assert names.index("a") > names.index("c")
    with pytest.raises(graphlib.CycleError):
        in_order([behind_third, replace(third, after=("a",))])


class TestVerify:
    def test_imports_what_is_touched(self, module_name: str) -> None:
        registry, patch = Registry(), patch_of(hook_on(module_name))
        registry.apply([patch], Settings())
        assert status_of(registry, patch) is Status.WAITING
        registry.verify()
        assert status_of(registry, patch) is Status.APPLIED

    def test_an_absent_module_is_trouble(self, caplog: pytest.LogCaptureFixture) -> None:
        registry, patch = Registry(), patch_of(hook_on("json.gone"))
        registry.apply([patch], Settings())
        registry.verify()
        assert status_of(registry, patch) is Status.UNSUPPORTED
        assert caplog.text.count("there is no module json.gone") == 1

    def test_unless_another_hook_fills_its_slot(
        self, module_name: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        registry = Registry()
        patch = patch_of(hook_on("json.gone", slot="run"), hook_on(module_name, slot="run"))
        registry.apply([patch], Settings())
        registry.verify()
        words = [hook.status for hook in registry.report([patch])[0].hooks]
        assert words == [Status.NOT_NEEDED, Status.APPLIED]
        assert caplog.text == ""

    def test_unless_only_some_releases_have_it(self) -> None:
        registry = Registry()
        patch = patch_of(hook_on("json.gone", absent_module_ok=True))
        registry.apply([patch], Settings(strict=True))
        registry.verify()
        assert status_of(registry, patch) is Status.NOT_NEEDED

    def test_a_module_that_breaks_is_left_waiting(self, tmp_path: Path, monkeypatch: Any) -> None:
        (tmp_path / "breaks_when_imported.py").write_text("import no_such_dependency")
        monkeypatch.syspath_prepend(tmp_path)
        registry, patch = Registry(), patch_of(hook_on("breaks_when_imported"))
        registry.apply([patch], Settings(strict=True))
        registry.verify()
        report = registry.report([patch])[0]
        assert report.status is Status.WAITING
        assert "no_such_dependency" in report.hooks[0].detail

    def test_strictness_ends_the_process(self, capsys: pytest.CaptureFixture[str]) -> None:
        registry = Registry()
        registry.apply([patch_of(hook_on("json.gone"))], Settings(strict=True))
        with pytest.raises(SystemExit):
            registry.verify()
        assert "there is no module json.gone. Fix: leave it out" in capsys.readouterr().err


def test_unknown_names_list_the_known() -> None:
    settings = Settings(selection=Selection.parse("-dubling"))
    with pytest.raises(SettingsError, match=r"dubling, which is no patch. Fix: .*doubling"):
        Registry().apply([patch_of()], settings)


def test_a_patch_not_selected_is_disabled(module_name: str) -> None:
    registry, patch = Registry(), patch_of(hook_on(module_name))
    registry.apply([patch], Settings(selection=Selection.parse("-doubling")))
    assert importlib.import_module(module_name).Model().forward(5) == 5
    assert status_of(registry, patch) is Status.DISABLED
