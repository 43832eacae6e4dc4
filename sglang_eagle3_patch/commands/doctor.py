"""`sglang-eagle3 doctor`: what comes of a draft and launch arguments, before anything is started.

From config and headers alone, in a second, without SGLang and without torch: whether SGLang serves
the draft as it was trained, serves other numbers, or refuses to start, with and without the plugin.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from sglang_eagle3_patch.checkpoint.json_file import printable
from sglang_eagle3_patch.checkpoint.launch import LaunchArguments
from sglang_eagle3_patch.checkpoint.rules import Case, Judgement, judge_case
from sglang_eagle3_patch.checkpoint.trained_rope import ToldRope
from sglang_eagle3_patch.commands.doctor_fork import perhaps_known
from sglang_eagle3_patch.commands.doctor_inputs import (
    CannotJudge,
    find_draft,
    find_target,
    with_config_file,
)
from sglang_eagle3_patch.facts.engine_facts import EngineFacts
from sglang_eagle3_patch.settings import Settings, SettingsError

__all__ = ["CannotJudge", "add_parser", "judge", "judged", "read_case", "run"]


def add_parser(commands: Any) -> None:
    """Add the command to the subparsers of `sglang-eagle3`."""
    parser = commands.add_parser(
        "doctor",
        help="judge a draft and launch arguments before anything is started",
        usage="sglang-eagle3 doctor DRAFT [--target T] [--sglang-version V] [--stock] [--json] "
        "[-- SGLang's launch arguments]",
    )
    parser.add_argument("draft", metavar="DRAFT", help="a folder, a safetensors file or a hub id")
    parser.add_argument(
        "--target", metavar="T", help="the target's folder or hub id (default: --model-path)"
    )
    parser.add_argument(
        "--sglang-version", metavar="V", help="default: the installed one, else the newest known"
    )
    parser.add_argument(
        "--stock", action="store_true", help="the verdict is stock SGLang's, not the plugin's"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    # argparse itself gives what follows `--` to the first positional that takes several, which
    # it has closed by then.
    parser.parse_known_args = partial(_parse_up_to_dashes, parser.parse_known_args)
    parser.set_defaults(run=run)


def _parse_up_to_dashes(
    parse: Callable[..., tuple[argparse.Namespace, list[str]]],
    args: Sequence[str] | None = None,
    namespace: argparse.Namespace | None = None,
) -> tuple[argparse.Namespace, list[str]]:
    """Parse what stands before `--`, and keep what follows as `launch`."""
    given = sys.argv[1:] if args is None else list(args)
    place = given.index("--") if "--" in given else len(given)
    parsed, unknown = parse(given[:place], namespace)
    parsed.launch = given[place + 1 :]
    return parsed, unknown


def run(arguments: argparse.Namespace) -> int:
    """Print the judgement; 0 when it is ok or a warning, 1 for an error, 2 without a judgement."""
    try:
        judgement = judge(
            arguments.draft,
            arguments.target,
            arguments.sglang_version,
            arguments.launch,
            stock=arguments.stock,
        )
    except CannotJudge as problem:
        print(f"sglang-eagle3 doctor: {printable(str(problem))}", file=sys.stderr)
        return 2
    if arguments.json:
        json.dump(judgement.as_data(), sys.stdout, indent=1)
        print()
    else:
        from sglang_eagle3_patch.commands.doctor_output import print_judgement

        draft = _folder_of(arguments.draft)
        target = arguments.target and _folder_of(arguments.target)
        print_judgement(judgement, draft, target, arguments.launch)
    return 1 if judgement.verdict == "error" else 0


def _folder_of(given: str) -> str:
    """Return the folder of a file that was given: SGLang takes no file."""
    return str(Path(given).parent) if Path(given).is_file() else given


def judge(
    draft: str,
    target: str | None,
    release: str | None,
    launch_arguments: Sequence[str],
    *,
    stock: bool = False,
) -> Judgement:
    """Judge a draft, a target and SGLang's launch arguments on a release.

    `draft` and `target` are folders, files or hub ids; without a target the arguments'
    `--model-path` is taken. `release` None is the installed SGLang, else the newest known. The
    verdict is the plugin's, or stock SGLang's with `stock`.
    Raises `CannotJudge`, in one line, where there is nothing to judge.
    """
    return judged(read_case(draft, target, release, launch_arguments, stock=stock))


def read_case(
    draft: str,
    target: str | None,
    release: str | None,
    launch_arguments: Sequence[str],
    *,
    stock: bool = False,
) -> Case:
    """Read what `judge` judges. Raises `CannotJudge` where there is nothing to read."""
    engine = _engine(release)
    launch = LaunchArguments.parse(
        with_config_file(launch_arguments), engine.launch.speculative_flags, environment=os.environ
    )
    settings = _settings()
    if launch.aux_layers is None:
        launch = replace(launch, aux_layers=settings.aux_layers)
    found = find_draft(draft, launch.draft_revision)
    # The revision of the launch is that of the launch's own target.
    revision = None if target else launch.revision
    if target and launch.model_path and target != launch.model_path:
        raise CannotJudge(
            f"--target is {target}, and the launch arguments' --model-path {launch.model_path}. "
            "Fix: name the target once"
        )
    target = target or launch.model_path
    case = Case(
        replace(found.spec, told_rope=ToldRope.of(settings)),
        find_target(target, revision) if target else None,
        engine,
        launch,
        plugin=not stock,
        values=found.values(target),
        files=found.names,
    )
    return case if release else replace(case, perhaps_known=perhaps_known(case))


def judged(case: Case) -> Judgement:
    """Return what the rules say of a case.

    Raises `CannotJudge` for a config that holds something no rule expects.
    """
    try:
        return judge_case(case)
    except (TypeError, ValueError, KeyError, IndexError, AttributeError, OverflowError) as error:
        # A config can hold anything, and every rule looks at another key of it.
        raise CannotJudge(
            f"{case.draft.folder}: its config holds something that can't be judged "
            f"({type(error).__name__}: {error})"
        ) from error


def _settings() -> Settings:
    """The plugin's own options hold for every launch of this environment."""
    try:
        return Settings.from_environment()
    except SettingsError as error:
        raise CannotJudge(str(error)) from error


def _engine(release: str | None) -> EngineFacts:
    from sglang_eagle3_patch.facts import facts_for, installed, known_releases, newest_known

    engine = facts_for(release) if release else installed() or facts_for(newest_known())
    if engine is None:
        known = known_releases()
        raise CannotJudge(
            f"SGLang {release} is not known. Fix: name one of {known[0]} to {known[-1]}, or run "
            "this where it is installed"
        )
    return engine
