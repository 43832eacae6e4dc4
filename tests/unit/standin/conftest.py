"""Loads the stand-in for these tests, and hides it from every other test of the session.

The stand-in is found by path and refuses to load without EAGLE3_CPU_STANDIN, and its name is that
of the real kernels. So it is imported once with path and variable in place, and both, with its
entries in `sys.modules`, are put back at once: tests hold the module objects. In an environment
that has chosen the stand-in itself there is nothing to hide, and a second import would register
its ops twice: there it stays.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

STANDIN = Path(__file__).parents[2] / "cpu_sglang" / "standin"
PACKAGES = ("sgl_kernel", "cpu_standin")
MODULES = (
    "sgl_kernel",
    "sgl_kernel.speculative",
    "cpu_standin.route",
    "cpu_standin.server_defaults",
    "cpu_standin.triton_attention",
)


def _loaded() -> dict[str, ModuleType]:
    return {name: sys.modules[name] for name in sys.modules if name.split(".")[0] in PACKAGES}


@contextmanager
def _importable() -> Iterator[None]:
    if os.environ.get("EAGLE3_CPU_STANDIN"):
        yield
        return
    before = _loaded()
    for name in before:
        del sys.modules[name]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EAGLE3_CPU_STANDIN", "cpu")
        patch.syspath_prepend(str(STANDIN))
        yield
    for name in _loaded():
        del sys.modules[name]
    sys.modules.update(before)


@pytest.fixture(scope="session")
def standin() -> SimpleNamespace:
    """The modules of the stand-in by the last part of their name; `sgl_kernel` holds the ops."""
    with _importable():
        modules = {name: importlib.import_module(name) for name in MODULES}
    assert all(str(STANDIN) in str(module.__file__) for module in modules.values())
    return SimpleNamespace(**{name.rpartition(".")[2]: module for name, module in modules.items()})


@pytest.fixture(scope="session")
def sgl_kernel(standin: SimpleNamespace) -> ModuleType:
    module: ModuleType = standin.sgl_kernel
    return module


@pytest.fixture(scope="session")
def standin_environment() -> dict[str, str]:
    """The environment of a process that finds the stand-in first, without the variable set."""
    environment = {key: value for key, value in os.environ.items() if key != "EAGLE3_CPU_STANDIN"}
    paths = [str(STANDIN), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    return environment
