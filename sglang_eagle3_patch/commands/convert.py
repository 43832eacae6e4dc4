"""`sglang-eagle3 convert`: writes a draft in the form that a SGLang release loads by itself."""

from __future__ import annotations

import argparse
import dataclasses
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from sglang_eagle3_patch import __version__
from sglang_eagle3_patch.checkpoint.conversion.convert import Conversion, plan_conversion
from sglang_eagle3_patch.checkpoint.conversion.options import NotConvertible, Options, read_target
from sglang_eagle3_patch.checkpoint.conversion.streaming import Progress
from sglang_eagle3_patch.checkpoint.conversion.write import refuse_place
from sglang_eagle3_patch.checkpoint.flags import DraftFlags
from sglang_eagle3_patch.checkpoint.header import CheckpointUnreadable, weight_files
from sglang_eagle3_patch.checkpoint.json_file import printable
from sglang_eagle3_patch.checkpoint.locate import local_folder
from sglang_eagle3_patch.checkpoint.trained_rope import ToldRope
from sglang_eagle3_patch.commands.convert_outcome import refuse_an_error, served
from sglang_eagle3_patch.commands.doctor_inputs import CannotJudge
from sglang_eagle3_patch.commands.pickled import pickled_tensors
from sglang_eagle3_patch.facts.engine_facts import EngineFacts
from sglang_eagle3_patch.facts.store import facts_for, known_releases, newest_known
from sglang_eagle3_patch.settings import Settings, SettingsError

DONE, REFUSED, FAILED = 0, 1, 2
_SHOWN = 8


def add_parser(commands: Any) -> None:
    """Add the command to the subparsers of `sglang-eagle3`."""
    parser = commands.add_parser(
        "convert",
        help="write a draft in the form that SGLang loads by itself; the source stays as it is",
    )
    parser.add_argument("draft", metavar="DRAFT", help="a folder, or a hub id in the local cache")
    parser.add_argument("out", metavar="OUT", type=Path, help="the folder to write")
    parser.add_argument(
        "--to",
        choices=("sglang", "canonical"),
        default="sglang",
        help="names as the release's class takes them, or layers.N.* for the plugin, whatever "
        "the release (default: sglang)",
    )
    parser.add_argument(
        "--sglang-version",
        metavar="V",
        default=newest_known(),
        help=f"the release that is to load it (default: {newest_known()})",
    )
    parser.add_argument(
        "--target",
        metavar="T",
        help="the target's folder, for its layers and how its class reads aux ids; needed unless "
        "the class adds 1 to them, as most do",
    )
    parser.add_argument(
        "--aux-layers",
        type=_layers,
        metavar="A:B:C",
        help="the target layers whose inputs the draft was trained on",
    )
    parser.add_argument(
        "--aux-order",
        choices=("listed", "layer"),
        help="of aux ids that aren't ascending: whether fc was trained on the states in the order "
        "of the list or of the layers (default: as the draft's producer does)",
    )
    parser.add_argument(
        "--flag",
        type=_flag,
        action="append",
        default=[],
        metavar="NAME=BOOL",
        help="what the draft was trained with and its config leaves out, "
        "e.g. norm_before_residual=false; may be repeated",
    )
    parser.add_argument(
        "--needs-plugin",
        action="store_true",
        help="write a draft that stock SGLang serves with other numbers than it was trained on, "
        "for the plugin to compute",
    )
    parser.add_argument("--dry-run", action="store_true", help="tell what would be done")
    parser.add_argument(
        "--verify", action="store_true", help="read everything back and compare it with the source"
    )
    parser.add_argument("--force", action="store_true", help="replace a checkpoint at OUT")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Convert; returns 0, 1 for a draft that is refused, 2 for what can't be read or written."""
    try:
        return _run(arguments)
    except NotConvertible as problem:
        print(f"sglang-eagle3 convert: refused: {printable(str(problem))}", file=sys.stderr)
        return REFUSED
    except (CheckpointUnreadable, CannotJudge, SettingsError, OSError) as problem:
        print(f"sglang-eagle3 convert: failed: {printable(str(problem))}", file=sys.stderr)
        return FAILED


def _run(arguments: argparse.Namespace) -> int:
    facts = _facts(arguments.sglang_version)
    source = _folder(arguments.draft)
    if not arguments.dry_run:
        refuse_place(arguments.out, source, force=arguments.force)
    target = _folder(arguments.target) if arguments.target else None
    options = Options(
        facts=facts,
        to=arguments.to,
        target=read_target(target, facts) if target else None,
        aux_inputs=arguments.aux_layers,
        listed_order=arguments.aux_order and arguments.aux_order == "listed",
        flags=dict(arguments.flag),
        told_rope=ToldRope.of(Settings.from_environment()),
        needs_plugin=arguments.needs_plugin,
        tool_version=__version__,
    )
    pickled = None if weight_files(source) else pickled_tensors(source)
    conversion = plan_conversion(source, options, pickled)
    stock, plugin = served(conversion, target)
    refuse_an_error(plugin if options.plugin_is_there else stock)
    _print(conversion)
    for found in (stock, plugin):
        print(found.line)
    if arguments.dry_run:
        print("nothing was written (--dry-run)")
        return DONE
    steps = conversion.size * (2 if arguments.verify else 1)
    with _terminated_as_interrupted(), _progress_bar(steps) as progress:
        conversion.write(
            arguments.out, force=arguments.force, verify=arguments.verify, progress=progress
        )
    verified = ", verified" if arguments.verify else ""
    print(f"wrote {arguments.out}: {conversion.size / 1e6:.1f} MB{verified}")
    return DONE


def _print(conversion: Conversion) -> None:
    plan = conversion.plan
    print(
        f"{conversion.spec.producer.name}; {len(plan.moves)} tensors, {plan.renamed} renamed, "
        f"{sum(move.transform is not None for move in plan.moves)} changed, "
        f"{len(plan.dropped)} dropped"
    )
    renamed = [m for m in plan.moves if m.name != m.source.name]
    for move in renamed[:_SHOWN]:
        print(f"  {move.source.name} -> {move.name}")
    if len(renamed) > _SHOWN:
        print(f"  ... and {len(renamed) - _SHOWN} more")
    if plan.dropped:
        print(f"  dropped: {', '.join(plan.dropped)}")
    for change in plan.changes:
        print(f"  {printable(change)}")
    for note in plan.notes:
        print(f"note: {printable(note)}")


@contextmanager
def _progress_bar(total: int) -> Iterator[Progress]:
    if not sys.stderr.isatty():  # a log has no use for a bar
        yield lambda _: None
        return
    from rich import progress
    from rich.console import Console

    columns = (progress.BarColumn(), progress.DownloadColumn(), progress.TransferSpeedColumn())
    with progress.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda done: bar.advance(task, done)


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """Let SIGTERM unwind, so that an unfinished folder is removed."""

    def stop(number: int, _frame: Any) -> NoReturn:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _facts(release: str) -> EngineFacts:
    facts = facts_for(release)
    if facts is None:
        raise NotConvertible(
            f"nothing is known of SGLang {release}", f"give one of {', '.join(known_releases())}"
        )
    return facts


def _folder(name: str) -> Path:
    if not name.strip():
        raise CheckpointUnreadable("an empty name was given for a draft or a target")
    folder = local_folder(name)
    if folder is None and Path(name).is_file():
        raise CheckpointUnreadable(f"{name} is a file. Fix: give its folder, {Path(name).parent}")
    if folder is None:
        raise CheckpointUnreadable(f"{name} is not local. Fix: download it, or give its folder")
    return folder


def _layers(text: str) -> tuple[int, ...]:
    try:
        layers = tuple(int(layer) for layer in text.split(":"))
    except ValueError:
        layers = ()
    if not layers or min(layers) < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of layers like 2:30:58")
    return layers


def _flag(text: str) -> tuple[str, bool]:
    name, _, word = text.partition("=")
    known = [field.name for field in dataclasses.fields(DraftFlags) if "bool" in str(field.type)]
    if name not in known or word.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not one of {', '.join(known)} with =true or =false"
        )
    return name, word.lower() == "true"
