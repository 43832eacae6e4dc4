"""What if a touch point is not as it was: renamed, of another signature, or full of surprises.

The faults are made on SGLang's real classes, each in a child of its own, for every hook there is.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

import sglang_eagle3_patch
from sglang_eagle3_patch.acceptance.recorder import Recorder
from sglang_eagle3_patch.engine.patch import Hook, Risk, Status
from sglang_eagle3_patch.hooks import PATCHES, acceptance
from tests.contract.orders import touch_points as points
from tests.contract.orders.zygote import in_child, result_of

STRICT = "SGLANG_EAGLE3_PATCH_STRICT"
HOOKS = {f"{patch.name}:{hook.path}": hook for patch in PATCHES for hook in patch.hooks}


@dataclass(frozen=True)
class Told:
    """What `status()` says of each hook of `HOOKS`, and whose attribute was altered."""

    words: dict[str, tuple[Status, str]]
    altered: frozenset[str]


def activate_after(fault: Callable[[Hook], None], key: str) -> Told:
    before = {name: points.stored(hook) for name, hook in HOOKS.items()}
    if key:
        fault(HOOKS[key])
    altered = {name for name, hook in HOOKS.items() if points.stored(hook) is not before[name]}
    sglang_eagle3_patch.activate()
    words = {f"{p.name}:{h.path}": (r.status, r.detail) for p, h, r in points.hook_reports()}
    return Told(words, frozenset(altered))


def rename_away(hook: Hook) -> None:
    """Neither the class nor one that it inherits from has the method by its name."""
    name = points.name_of(hook)
    for owner in points.owner_of(hook).__mro__:
        upstream = owner.__module__.partition(".")[0] in ("sglang", "transformers")
        if upstream and name in vars(owner):
            setattr(owner, f"renamed_{name}", vars(owner)[name])
            delattr(owner, name)


def rename_parameters(hook: Hook) -> None:
    """The parameters relied on have other names."""
    owner, name = points.owner_of(hook), points.name_of(hook)
    is_classmethod = isinstance(points.stored(hook), classmethod)
    function = getattr(owner, name)
    signature = inspect.signature(function.__func__ if is_classmethod else function)

    def changed(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("what is wrapped is not called while it is being wrapped")

    changed.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[
            p.replace(name=f"{p.name}_of_late") if p.name in hook.parameters else p
            for p in signature.parameters.values()
        ]
    )
    setattr(owner, name, classmethod(changed) if is_classmethod else changed)


@pytest.fixture(scope="module")
def stock() -> dict[str, tuple[Status, str]]:
    """What is told where nothing is at fault."""
    words: dict[str, tuple[Status, str]] = result_of(activate_after, rename_away, "").words
    assert Status.UNSUPPORTED not in {status for status, _ in words.values()}
    return words


def tell(stock: dict[str, tuple[Status, str]], fault: Callable[[Hook], None], key: str) -> Told:
    """Make the fault in a child; skip where the hook was not in before."""
    if stock[key][0] is not Status.APPLIED:
        pytest.skip(f"this release does not take the hook: {stock[key]}")
    told: Told = result_of(activate_after, fault, key)
    assert key in told.altered
    return told


def check_the_others(stock: dict[str, tuple[Status, str]], told: Told) -> None:
    """What was not altered is as before; a slot is taken over by its next hook, or it is told."""
    slots = {f"{p.name}:{h.path}": (p.name, h.slot) for p in PATCHES for h in p.hooks if h.slot}
    open_slots = {slots[key] for key in told.altered if key in slots}
    for key, word in told.words.items():
        if key not in told.altered and slots.get(key) not in open_slots:
            assert word == stock[key], key
    for slot in open_slots:
        words = [told.words[key][0] for key in slots if slots[key] == slot]
        assert words.count(Status.APPLIED) == (Status.UNSUPPORTED not in words), f"{slot}: {words}"


def check_strictness(told: Told, fault: Callable[[Hook], None], key: str) -> None:
    """Strictness ends the process with the text of the first trouble, if there is any."""
    outcome = in_child(activate_after, fault, key, **{STRICT: "1"})
    trouble = [k for k, (status, _) in told.words.items() if status is Status.UNSUPPORTED]
    if not trouble:
        assert (outcome.exit_status, outcome.result) == (0, told), outcome.stderr[-2000:]
        return
    (patch, _, _), detail = trouble[0].partition(":"), told.words[trouble[0]][1]
    assert outcome.exit_status == 1
    assert outcome.stderr.splitlines()[-1] == (
        f"sglang-eagle3-patch: {patch}: unsupported: {detail}. "
        f"Fix: leave it out with SGLANG_EAGLE3_PATCH=-{patch}."
    )


@pytest.mark.parametrize("key", HOOKS)
def test_a_touch_point_renamed_away_is_told(stock: dict[str, tuple[Status, str]], key: str) -> None:
    hook, told = HOOKS[key], tell(stock, rename_away, key)
    status, detail = told.words[key]
    if hook.attribute.endswith((".__init__", ".forward")):
        # Every class, and every torch module, inherits one; it takes other parameters.
        assert status is Status.UNSUPPORTED
        assert detail.startswith(f"{hook.path} takes (")
    else:
        assert status is (Status.NOT_NEEDED if hook.optional else Status.UNSUPPORTED)
        assert detail == f"{hook.module} has no {hook.attribute}"
    check_the_others(stock, told)
    check_strictness(told, rename_away, key)


@pytest.mark.parametrize("key", [key for key, hook in HOOKS.items() if hook.parameters])
def test_parameters_renamed_are_told(stock: dict[str, tuple[Status, str]], key: str) -> None:
    hook, told = HOOKS[key], tell(stock, rename_parameters, key)
    status, detail = told.words[key]
    assert status is Status.UNSUPPORTED
    assert detail.startswith(f"{hook.path} takes (")
    assert all(f"{name}_of_late" in detail for name in hook.parameters)
    assert detail.endswith(f"relied on: {', '.join(hook.parameters)}")
    check_the_others(stock, told)
    check_strictness(told, rename_parameters, key)


class Hostile:
    """Whatever is asked of it raises."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"no {name} today")


class Empty:
    """Nothing that is asked of it is there."""


OBSERVERS = {
    f"{patch.name}:{hook.attribute}": hook
    for patch in PATCHES
    if patch.risk is Risk.OBSERVABILITY
    for hook in patch.hooks
}


@pytest.mark.parametrize("surprise", [Hostile, Empty])
@pytest.mark.parametrize("key", OBSERVERS)
def test_an_observer_never_costs_a_call(key: str, surprise: type) -> None:
    hook, seen = OBSERVERS[key], []
    arguments = tuple(surprise() for _ in hook.parameters) or (surprise(),)

    def real(*args: Any, **kwargs: Any) -> str:
        seen.append((args, kwargs))
        return "the answer"

    assert hook.wrapper(real, surprise(), arguments, {}) == "the answer"
    named = dict(zip(hook.parameters, arguments, strict=False))
    assert hook.wrapper(real, surprise(), (), named) == "the answer"
    assert seen == [(arguments, {}), ((), named)]


@pytest.mark.parametrize("key", OBSERVERS)
def test_an_observer_hides_no_error_of_the_call(key: str) -> None:
    hook = OBSERVERS[key]
    seen = []

    def real(*args: Any, **kwargs: Any) -> None:
        seen.append(args)
        raise ZeroDivisionError("the call's own")

    arguments = tuple(Empty() for _ in hook.parameters) or (Empty(),)
    with pytest.raises(ZeroDivisionError, match="the call's own"):
        hook.wrapper(real, Empty(), arguments, {})
    assert len(seen) == 1


class Verified:
    """A verify step of one running request, as a scheduler has it; the names are SGLang's."""

    num_correct_drafts_per_req_cpu = (2,)
    accept_lens = object()
    speculative_num_draft_tokens = 4
    speculative_num_steps = 3
    topk = 1
    name = "EAGLE3"
    metrics_collector = None
    is_stats_logging_rank = True
    spec_verify_ct = 0
    finished_reason = None

    def __init__(self) -> None:
        self.spec_algorithm = self.metrics_reporter = self.draft_worker = self
        self.reqs = [self]

    def process(self, *args: Any) -> str:
        self.spec_verify_ct += 1
        return "the answer"

    def is_eagle3(self) -> bool:
        return True

    def finished(self) -> bool:
        return False


@pytest.mark.parametrize(
    ("where", "what"), [(Recorder, "add"), (acceptance, "step_line"), (acceptance, "AcceptanceLog")]
)
def test_a_recorder_that_raises_is_told_once_and_costs_nothing(
    where: Any, what: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SGLANG_EAGLE3_PATCH_ACCEPT_LOG", "step")
    monkeypatch.setattr(acceptance, "_log", None)
    monkeypatch.setattr(acceptance, "_trouble_told", False)
    (observer, *_) = (hook for key, hook in OBSERVERS.items() if key.startswith("acceptance:"))
    step = Verified()

    def decode() -> None:
        with caplog.at_level(logging.INFO):
            assert observer.wrapper(step.process, step, (step, step), {}) == "the answer"

    decode()
    assert "accepted: [2]" in caplog.text  # the step is one that is recorded
    caplog.clear()

    def break_down(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("the disk is full")

    monkeypatch.setattr(acceptance, "_log", None)
    monkeypatch.setattr(where, what, break_down)
    decode()
    decode()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "acceptance: not recorded: RuntimeError('the disk is full')" in caplog.text
