"""Every order of import, patch, unpatch and another's wrapper, over every touch point that is live.

Each case is a child of its own. What is called where is compared with a list of layers that the
steps lay on and take off.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable

import pytest

import sglang_eagle3_patch
from sglang_eagle3_patch.engine.patch import Hook, Status
from tests.contract.orders import touch_points as points
from tests.contract.orders.touch_points import Live
from tests.contract.orders.zygote import result_of

Order = tuple[str, ...]
OTHER = "other"
WRAPPERS = {"wrapt": points.wrap_by_wrapt, "plugin": points.wrap_by_plugin}


@pytest.fixture(scope="module")
def live() -> Live:
    found = result_of(points.find_live)
    patches = {name for names in found.values() for name in names}
    assert patches > {"draft-config", "draft-weights", "fc-guard", "aux-capture", "acceptance"}
    return found


def distinct(*steps: str) -> list[Order]:
    """Every order of the steps; nobody can wrap what is not imported yet."""
    orders = sorted(set(itertools.permutations(steps)))
    return [o for o in orders if "import" not in o or o.index("import") < o.index(OTHER)]


CASES = [
    *(("wrapt", order) for order in distinct("import", "patch", "patch", "unpatch", OTHER)),
    # SGLang's framework for plugins imports what it wraps.
    *(("plugin", ("import", *order)) for order in distinct("patch", "patch", "unpatch", OTHER)),
]


@pytest.mark.parametrize(
    ("kind", "order"), CASES, ids=lambda p: p if p in WRAPPERS else "-".join(p)
)
def test_each_layer_is_called_once_in_its_place(kind: str, order: Order, live: Live) -> None:
    result_of(play, kind, order, live)


def play(kind: str, order: Order, live: Live) -> None:
    """Play an order in this process and compare after each step, then after a last removal."""
    hooks = points.note_calls(live)
    points.forget_touched_modules()
    active = imported = False
    layers: Live = {path: [] for path in hooks}  # of each touch point, the outermost first
    originals = {}
    for step in (*order, "unpatch"):
        was_active = active
        if step == "import":
            points.import_touched_modules()
            imported = True
        elif step == "patch":
            sglang_eagle3_patch.activate()
            active = True
        elif step == "unpatch":
            sglang_eagle3_patch.deactivate()
            active = False
        for path, hook in hooks.items() if imported else ():
            if step == OTHER:
                if kind == "plugin" and isinstance(points.stored(hook), classmethod):
                    layers[path].clear()  # it wraps what a classmethod wraps, and leaves ours out
                WRAPPERS[kind](hook)
                layers[path].insert(0, OTHER)
            elif active and (step == "import" or not was_active):
                layers[path][:0] = live[path]
            elif not active:
                layers[path] = [name for name in layers[path] if name == OTHER]
            if step == "import":
                originals[path] = points.stored(hook)
                for _ in layers[path]:
                    originals[path] = originals[path].__wrapped__
            told = f"{path} after {step} of {order}"
            called = points.called_at(hook)
            assert called == layers[path], f"{told}: {called} called, not {layers[path]}"
            if not layers[path]:
                assert points.stored(hook) is originals[path], f"{told}: not the very same object"


def test_both_ways_in_at_once_are_one(live: Live) -> None:
    result_of(come_in_twice, live, SGLANG_EAGLE3_PATCH="1")


def come_in_twice(live: Live) -> None:
    from sglang.srt.plugins import load_plugins

    from sglang_eagle3_patch import _startup

    hooks = points.note_calls(live)
    _startup._done = False  # the start line of the warm process found no variable
    _startup.run()
    load_plugins()
    for path, hook in hooks.items():
        called = points.called_at(hook)
        assert called == live[path], f"{path}: {called}"


def test_the_real_hooks_leave_nothing_behind(live: Live) -> None:
    result_of(activate_and_deactivate, live)


def activate_and_deactivate(live: Live) -> None:
    hooks = {hook.path: hook for _, hook in points.declared() if hook.path in live}
    # By identity: a wrapper of wrapt's is equal to what it wraps.
    classes = {points.owner_of(hook) for hook in hooks.values()}
    before = {owner: {name: id(held) for name, held in vars(owner).items()} for owner in classes}
    untouched = {path: points.stored(hook) for path, hook in hooks.items()}
    sglang_eagle3_patch.activate()
    for path, hook in hooks.items():
        assert points.stored(hook) is not untouched[path], path
    sglang_eagle3_patch.deactivate()
    for owner in classes:
        now = {name: id(held) for name, held in vars(owner).items()}
        assert now == before[owner], f"{owner}: {dict(now.items() ^ before[owner].items())}"


@pytest.mark.parametrize("kind", WRAPPERS)
def test_a_hook_that_still_runs_under_anothers_is_applied(kind: str, live: Live) -> None:
    result_of(be_wrapped_over, kind, live)


def be_wrapped_over(kind: str, live: Live) -> None:
    hooks = points.note_calls(live)
    sglang_eagle3_patch.activate()
    for path, hook in hooks.items():
        WRAPPERS[kind](hook)
        word = Status.APPLIED if points.called_at(hook) == [OTHER, *live[path]] else "displaced"
        told = {report.status for _, at, report in points.hook_reports() if at.path == path}
        assert told == {word}, f"{path} is {word}, and {told} is told"


def replace_attribute(hook: Hook) -> None:
    setattr(points.owner_of(hook), points.name_of(hook), lambda *args, **kwargs: None)


def replace_class(hook: Hook) -> None:
    """As a plugin of SGLang's may: the module has another class by that name."""
    owner = points.owner_of(hook)
    methods = {
        points.name_of(at): lambda *args, **kwargs: None
        for _, at in points.declared()
        if points.owner_of(at) is owner
    }
    name = hook.attribute.partition(".")[0]
    setattr(sys.modules[hook.module], name, type(name, (), methods))


@pytest.mark.parametrize("replace", [replace_attribute, replace_class])
def test_being_replaced_is_told(replace: Callable[[Hook], None], live: Live) -> None:
    result_of(be_replaced, replace, live)


def be_replaced(replace: Callable[[Hook], None], live: Live) -> None:
    hooks = points.note_calls(live)
    sglang_eagle3_patch.activate()
    in_place = {path: points.stored(hook) for path, hook in hooks.items()}
    for hook in hooks.values():
        replace(hook)
        for _, at, report in points.hook_reports():
            if points.stored(at) is in_place[at.path]:
                assert report.status is Status.APPLIED, report
            else:
                assert report.status is Status.DISPLACED, report
                assert at.path in report.detail, report
    assert not any(points.stored(hook) is in_place[path] for path, hook in hooks.items())
    others = {path: points.stored(hook) for path, hook in hooks.items()}
    sglang_eagle3_patch.deactivate()
    assert all(points.stored(hook) is others[path] for path, hook in hooks.items())
