"""Puts patches in, takes them out, and says what became of them. The exception policy lives here.

A post-import hook that raises removes the module it fires for from `sys.modules`, and the next
import succeeds unpatched. So nothing raises out of one, unless strictness was asked for: then
ending the process is the point.
"""

from __future__ import annotations

import contextlib
import functools
import graphlib
import importlib
import inspect
import logging
import multiprocessing
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import wrapt

from sglang_eagle3_patch.engine.contract import TouchPointMissing, find_owner, signature_difference
from sglang_eagle3_patch.engine.patch import Hook, HookReport, Patch, PatchReport, Status
from sglang_eagle3_patch.settings import PREFIX, VARIABLES, Settings, SettingsError

logger = logging.getLogger(__name__)


def in_order(patches: Iterable[Patch]) -> tuple[Patch, ...]:
    """Return the patches by name, each behind those it names in `after`.

    A name that no patch has is passed over: the patch was removed. Raises `graphlib.CycleError`
    when patches want to be behind one another.
    """
    by_name = {patch.name: patch for patch in sorted(patches, key=lambda patch: patch.name)}
    before = {name: [n for n in patch.after if n in by_name] for name, patch in by_name.items()}
    return tuple(by_name[name] for name in graphlib.TopologicalSorter(before).static_order())


@dataclass(eq=False)  # two bindings of one hook, before and after a removal, are not the same
class _Binding:
    """One hook of one patch in this process, and the handle it can be removed by."""

    patch: Patch
    hook: Hook
    status: Status = Status.WAITING
    detail: str = ""
    retired: bool = False  # by its probe; it holds its slot all the same
    lacking: bool = False  # its module, in this release
    told: bool = False  # its trouble
    owner: Any = None
    name: str = ""
    handle: Any = None
    removed: bool = False  # and void, should another's wrapper still hold on to it


class Registry:
    """The patches of this process."""

    def __init__(self) -> None:
        self.settings: Settings | None = None
        self._bindings: list[_Binding] = []

    def apply(self, patches: Sequence[Patch], settings: Settings) -> None:
        """Put the selected patches in, each as soon as the module it touches is imported.

        Idempotent: a second call changes nothing. Raises `SettingsError` for an unknown name.
        """
        if self.settings is not None:
            return
        _refuse_unknown_names(patches, settings)
        _tell_unknown_variables(settings)
        self.settings = settings
        for patch in patches:
            if not settings.selection.wants(patch.name):
                continue
            for hook in patch.hooks:
                binding = _Binding(patch, hook)
                self._bindings.append(binding)
                # Modules that this release lacks just stay waiting.
                wrapt.register_post_import_hook(functools.partial(self._bind, binding), hook.module)

    def verify(self) -> None:
        """Import every module that is touched, so that each hook is in, retired or in trouble.

        What would otherwise be noticed when a scheduler imports it is noticed here. A module that
        this release lacks is trouble, unless only some releases have it or another hook fills the
        slot. One that can't be imported here is left waiting: it may never be needed.
        """
        waiting = [binding for binding in self._bindings if binding.status is Status.WAITING]
        for binding in waiting:
            try:
                importlib.import_module(binding.hook.module)
            except Exception as error:  # noqa: BLE001 - whatever a module does when imported
                binding.detail = f"{binding.hook.module} can't be imported: {error!r}"
                binding.lacking = isinstance(error, ModuleNotFoundError) and _is_part_of(
                    error.name, binding.hook.module
                )
        for binding in waiting:
            if binding.lacking:
                known = binding.hook.absent_module_ok or self._slot_is_taken(binding)
                binding.status = Status.NOT_NEEDED if known else Status.UNSUPPORTED
                binding.detail = f"there is no module {binding.hook.module}"
                if not known:
                    self._complain(binding)

    def verify_after(self, module: str) -> None:
        """Have `verify` run as soon as `module` has been imported."""
        wrapt.register_post_import_hook(lambda _module: self.verify(), module)

    def remove(self) -> None:
        """Take every hook out, the last one put in first."""
        for binding in reversed(self._bindings):
            binding.removed = True
            if binding.handle is not None:
                # Under another's plain closure it can't be taken out, only be made void.
                with contextlib.suppress(wrapt.WrapperNotOutermostError):
                    wrapt.unwrap_object(
                        binding.owner, binding.name, binding.handle, missing_ok=True
                    )
        self._bindings = []
        self.settings = None

    def report(self, patches: Iterable[Patch]) -> list[PatchReport]:
        """Say what became of each patch, asking the classes themselves."""
        return [self._report_patch(patch) for patch in patches]

    def _bind(self, binding: _Binding, module: ModuleType) -> None:
        # wrapt can't take a post-import hook back: one left over from before `remove()` is void.
        if binding not in self._bindings or binding.handle is not None:
            return
        try:
            self._wrap(module, binding)
        except Exception as error:  # noqa: BLE001 - see the module's docstring
            binding.status, binding.detail = Status.FAILED, f"{type(error).__name__}: {error}"
        if binding.status in (Status.UNSUPPORTED, Status.FAILED):
            self._complain(binding)

    def _wrap(self, module: ModuleType, binding: _Binding) -> None:
        hook = binding.hook
        if self._slot_is_taken(binding):
            binding.status, binding.detail = Status.NOT_NEEDED, f"{hook.slot} is hooked elsewhere"
            return
        try:
            owner, name = find_owner(module, hook)
        except TouchPointMissing as missing:
            lacking = Status.NOT_NEEDED if hook.optional else Status.UNSUPPORTED
            binding.status, binding.detail = lacking, str(missing)
            return
        if hook.fixed_when is not None and hook.fixed_when(owner):
            binding.status, binding.detail = Status.NOT_NEEDED, "this release does it itself"
            binding.retired = True
            return
        difference = signature_difference(getattr(owner, name), hook)
        if difference:
            binding.status, binding.detail = Status.UNSUPPORTED, difference
            return
        binding.handle = wrapt.wrap_function_wrapper(owner, name, _while_in(binding))
        binding.owner, binding.name = owner, name
        binding.status = Status.APPLIED

    def _slot_is_taken(self, binding: _Binding) -> bool:
        slot = binding.hook.slot
        return slot is not None and any(
            other.hook.slot == slot and (other.status is Status.APPLIED or other.retired)
            for other in self._bindings
            if other is not binding and other.patch is binding.patch
        )

    def _complain(self, binding: _Binding) -> None:
        if binding.told:
            return
        binding.told = True
        assert self.settings is not None
        name = binding.patch.name
        text = f"sglang-eagle3-patch: {name}: {binding.status.value}: {binding.detail}"
        if self.settings.strict:
            # Not an exception: SGLang's model registry logs those of an import and goes on.
            sys.stderr.write(f"{text}. Fix: leave it out with {PREFIX}=-{name}.\n")
            raise SystemExit(1)
        level = logging.ERROR if name in self.settings.selection.named else logging.WARNING
        logger.log(level, "%s", text)

    def _report_patch(self, patch: Patch) -> PatchReport:
        if self.settings is None or not self.settings.selection.wants(patch.name):
            return PatchReport(name=patch.name, status=Status.DISABLED)
        hooks = tuple(_report_hook(b) for b in self._bindings if b.patch is patch)
        status = _summary({report.status for report in hooks})
        telling = [h.detail for h in hooks if h.detail and h.status is status]
        detail = "; ".join(dict.fromkeys(telling))
        return PatchReport(name=patch.name, status=status, detail=detail, hooks=hooks)


def _is_part_of(name: str | None, module: str) -> bool:
    """Whether what was not found is the module itself or a package it would be in."""
    return name is not None and f"{module}.".startswith(f"{name}.")


def _report_hook(binding: _Binding) -> HookReport:
    status, detail = binding.status, binding.detail
    if status is Status.APPLIED and not _is_in_place(binding):
        status, detail = Status.DISPLACED, f"{binding.hook.path} was replaced by someone else"
    return HookReport(path=binding.hook.path, status=status, detail=detail)


def _summary(statuses: set[Status]) -> Status:
    """The worst word wins; a patch is applied when a hook of it is and none is in trouble."""
    for status in (
        Status.FAILED,
        Status.UNSUPPORTED,
        Status.DISPLACED,
        Status.APPLIED,
        Status.NOT_NEEDED,
    ):
        if status in statuses:
            return status
    return Status.WAITING


def _refuse_unknown_names(patches: Sequence[Patch], settings: Settings) -> None:
    known = [patch.name for patch in patches]
    unknown = sorted((settings.selection.named | settings.selection.excluded) - set(known))
    if unknown:
        raise SettingsError(
            f"{PREFIX} names {', '.join(unknown)}, which is no patch. "
            f"Fix: use some of {', '.join(known)}."
        )


def _tell_unknown_variables(settings: Settings) -> None:
    # Of a server's processes, which all have them, the first one tells.
    if settings.unknown and multiprocessing.parent_process() is None:
        logger.warning(
            "sglang-eagle3-patch: %s: no variable of ours, ignored. Fix: use some of %s.",
            ", ".join(settings.unknown),
            ", ".join(variable.name for variable in VARIABLES),
        )


def _while_in(binding: _Binding) -> Any:
    """Return the hook's wrapper, which does nothing once the binding is removed."""
    wrapper = binding.hook.wrapper

    def unless_removed(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        if binding.removed:
            return wrapped(*args, **kwargs)
        return wrapper(wrapped, instance, args, kwargs)

    return unless_removed


def _is_in_place(binding: _Binding) -> bool:
    """Whether what the module holds now still runs the hook, however others wrapped it."""
    try:
        owner, name = find_owner(sys.modules[binding.hook.module], binding.hook)
    except (KeyError, TouchPointMissing):
        return False
    # Statically: what a class hands out is a bound wrapper, not the one that was put in.
    current = inspect.getattr_static(owner, name, None)
    # Another's closure holds what the class handed out: a bound wrapper, whose parent is ours.
    return wrapt.is_wrapped_by(
        current,
        predicate=lambda entry: (
            entry is binding.handle or getattr(entry, "_self_parent", None) is binding.handle
        ),
    )
