"""What our launcher does before SGLang: it has the doctor judge the draft, on one screen.

An error ends the launch before torch and SGLang are imported. What can't be judged, at all or in
time, never does: SGLang has its own words for a path that is none, and a mistake of ours must not
cost a launch.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Thread

from sglang_eagle3_patch.checkpoint import aux_layers
from sglang_eagle3_patch.checkpoint.config import ConfigNotUnderstood, is_eagle3
from sglang_eagle3_patch.checkpoint.json_file import printable
from sglang_eagle3_patch.checkpoint.launch import LaunchArguments
from sglang_eagle3_patch.checkpoint.rules import Case, Judgement
from sglang_eagle3_patch.commands.doctor import CannotJudge, judged, read_case
from sglang_eagle3_patch.commands.doctor_inputs import find_target, with_config_file
from sglang_eagle3_patch.commands.doctor_output import OUTCOMES
from sglang_eagle3_patch.settings import PREFIX, Selection, Settings, SettingsError

# huggingface_hub retries a hub that hangs for minutes, and so may a disk.
JUDGING_SECONDS = 30.0
_SAYS = "sglang-eagle3-patch: preflight"
_SECRETS = ("--api-key", "--admin-api-key", "--ssl-keyfile-password", "--watermark-config")
_NO_SECRET = "--ssl-keyfile"  # though one of them starts with it
_HIDDEN = "[hidden]"
_OTHER_HUB = "SGLANG_USE_MODELSCOPE"


@dataclass(frozen=True)
class Examined:
    """A launch and its judgement.

    `excuse` says why an error doesn't end the launch, "" where it does.
    """

    case: Case
    judgement: Judgement
    excuse: str

    @property
    def is_refused(self) -> bool:
        """Whether the launch ends here."""
        return self.judgement.verdict == "error" and not self.excuse


def check(arguments: Sequence[str]) -> None:
    """Tell on stderr what the doctor says of a launch with these arguments of SGLang's.

    Silent where no EAGLE-3 draft is asked for or every patch is off. Raises SystemExit with all
    that is wrong where the verdict is an error.
    """
    refused, told = False, ""
    try:
        examined = _examine_in_time(arguments)
        refused = examined is not None and examined.is_refused
        if examined is not None:
            told = screen(examined)
            if not refused:
                told = f"{_with_details(examined)}\n  {'starts':9} {_command(arguments)}"
    except (CannotJudge, SettingsError) as problem:
        told = f"{_SAYS}: WARNING: not judged: {problem}"
    except Exception as error:  # noqa: BLE001 - said above
        told = f"{_SAYS}: WARNING: not judged, since it failed: {type(error).__name__}: {error}"
    if refused:
        sys.exit(
            f"{told}\nsglang-eagle3-patch: not started. Fix: mend the errors above. "
            "(To start anyway: --eagle3-no-preflight)"
        )
    if told:
        print(told, file=sys.stderr, flush=True)


def dry_run(arguments: Sequence[str]) -> int:
    """Print what `check` would say, what was found, and the command that is handed over to.

    Returns 0 for a launch that would go on, 1 for one that would not, 2 where it can't be judged.
    With every patch off the judgement is stock SGLang's.
    """
    status = 0
    try:
        examined = _examine_in_time(arguments, even_off=True)
    except (CannotJudge, SettingsError) as problem:
        print(f"{_SAYS}: not judged: {problem}")
        status = 2
    else:
        if examined is None:
            print(f"{_SAYS}: nothing to judge: these arguments ask for no EAGLE-3 draft")
        else:
            status = int(examined.is_refused)
            print(_with_details(examined))
    print(f"\nstarts:\n\n  {_command(arguments)}")
    return status


def examine(arguments: Sequence[str], *, even_off: bool = False) -> Examined | None:
    """Judge a launch with these arguments on the installed SGLang.

    None where no EAGLE-3 draft is asked for, by EAGLE3, EAGLE or NEXTN, or where every patch is off
    (with `even_off` that is judged as stock). Raises `CannotJudge` or `SettingsError`.
    """
    selection = Settings.from_environment().selection
    if selection.off and not even_off:
        return None
    given = with_config_file(arguments)
    launch = LaunchArguments.parse(given)
    algorithm, draft = (launch.algorithm or "").upper(), launch.draft_model_path
    if algorithm not in ("EAGLE", "NEXTN", "EAGLE3") or draft is None or launch.model_path is None:
        return None
    if os.environ.get(_OTHER_HUB, "").lower() in ("1", "true", "yes", "y"):
        for name in (draft, launch.model_path):
            if not Path(name).exists():
                raise CannotJudge(f"{name} is ModelScope's ({_OTHER_HUB}), which is not read")
    if algorithm != "EAGLE3" and not is_eagle3(find_target(draft, launch.draft_revision).config):
        return None  # EAGLE, alias NEXTN, runs drafts of other kinds
    case = read_case(draft, None, None, given, stock=selection.off)
    return Examined(case, judged(case), _excuse(case, selection))


def screen(examined: Examined) -> str:
    """Return the verdict, then what makes it worse than ok, errors first, each with its remedy."""
    judgement = examined.judgement
    side = judgement.asked
    verdict = "warning" if examined.excuse else judgement.verdict
    who = "with the plugin" if judgement.side == "plugin" else "as it is"
    why = f" {side.why}" if side.outcome == "serves" else ""
    outcome = OUTCOMES[side.outcome] + why
    lines = [f"{_SAYS}: {verdict}: SGLang {judgement.release} {who}: {outcome}"]
    for mark in ("error", "warning"):
        for finding in judgement.told:
            if finding.mark(judgement.side) == mark:
                lines.append(f"  {mark} {finding.id}: {printable(finding.message)}")
                lines.append(f"    remedy: {printable(finding.remedy)}")
    if examined.excuse:
        lines.append(f"{_SAYS}: WARNING: no error ends this start: {examined.excuse}")
    return "\n".join(lines)


def _examine_in_time(arguments: Sequence[str], *, even_off: bool = False) -> Examined | None:
    """Call `examine`, and raise `CannotJudge` when that takes too long."""
    future: Future[Examined | None] = Future()

    def run() -> None:
        try:
            future.set_result(examine(arguments, even_off=even_off))
        except BaseException as error:  # noqa: BLE001 - SystemExit too: a strict start line's
            future.set_exception(error)

    # Not a pool's thread, which Python would wait for when it ends.
    thread = Thread(target=run, name="preflight", daemon=True)
    thread.start()
    thread.join(JUDGING_SECONDS)
    if not future.done():
        raise CannotJudge(f"reading draft and target took more than {JUDGING_SECONDS:.0f} s")
    return future.result()


def _excuse(case: Case, selection: Selection) -> str:
    """Say why an error of this launch must not end it."""
    from sglang_eagle3_patch.engine.patch import Risk
    from sglang_eagle3_patch.hooks import PATCHES

    if selection.off:
        return ""
    judging = [patch.name for patch in PATCHES if patch.risk is not Risk.OBSERVABILITY]
    missing = [name for name in judging if not selection.wants(name)]
    if missing:
        return (
            "it is judged as if every patch were on, and "
            f"{PREFIX}={os.environ.get(PREFIX)} leaves out {', '.join(missing)}"
        )
    if (case.launch.draft_load_format or case.launch.load_format) == "dummy":
        return "the load format dummy reads no weights"
    return ""


def _with_details(examined: Examined) -> str:
    return "\n".join([screen(examined), *_details(examined.case)])


def _command(arguments: Sequence[str]) -> str:
    """Return the command that is handed over to, with our variables as they are set now.

    It goes to logs: the values of keys and passwords are not in it.
    """
    ours = [f"{name}={value}" for name, value in os.environ.items() if name.startswith(PREFIX)]
    shown = list(arguments)
    for place, argument in enumerate(arguments):
        flag, given, _ = argument.partition("=")
        if not _is_secret(flag):
            continue
        if given:
            shown[place] = f"{flag}={_HIDDEN}"
        elif place + 1 < len(shown):
            shown[place + 1] = _HIDDEN
    return shlex.join([*ours, sys.executable, "-m", "sglang.launch_server", *shown])


def _is_secret(flag: str) -> bool:
    """Whether a key or a password follows; argparse takes the beginning of a flag for it too."""
    names = any(secret.startswith(flag) for secret in _SECRETS)
    return len(flag) > len("--") and flag != _NO_SECRET and names


def _details(case: Case) -> list[str]:
    """Return what was found, a line for each thing."""
    from sglang_eagle3_patch.hooks import PATCHES

    draft, target = case.draft, case.target
    selection = Settings.from_environment().selection
    stated = {name: value for name, value in asdict(draft.flags).items() if value}
    found = {
        "target": target and f"{target.name}, {', '.join(target.architectures)}",
        "draft": f"{draft.folder}, {case.architecture}, {len(draft.tensors)} tensors",
        "producer": draft.producer.name,
        "layers": _layers(case),
        "flags": ", ".join(f"{name}={value}" for name, value in stated.items()),
        "patches": ", ".join(patch.name for patch in PATCHES if selection.wants(patch.name)),
    }
    return [f"  {name:9} {printable(value or 'none')}" for name, value in found.items()]


def _layers(case: Case) -> str:
    num_layers = case.target.num_layers if case.target else None
    if num_layers is None:
        return "the target's config does not say how many layers it has"
    try:
        trained = aux_layers.resolve(
            case.draft.config, num_layers, case.launch.aux_layers, case.draft.producer
        )
    except ConfigNotUnderstood as problem:
        return str(problem)
    inputs = trained.inputs
    if inputs is None and case.lent_class is not None:
        inputs = case.lent_class.captured_layers(case.found_ids(), num_layers)
    shown = "not known" if inputs is None else f"inputs of {list(inputs)} of {num_layers}"
    return f"{shown}; {trained.source}"
