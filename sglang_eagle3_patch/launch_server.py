"""`python -m sglang_eagle3_patch.launch_server …`: SGLang's launcher with every patch on.

Takes every flag of `python -m sglang.launch_server` and a few of its own. The doctor judges the
draft first, and an error of its ends the start. Strict: a patch that can't be applied stops the
start. Acceptance is logged per verify step. What the environment already says is kept.
"""

from __future__ import annotations

import argparse
import atexit
import os
import runpy
import shutil
import sys
import tempfile
from collections.abc import Sequence

from sglang_eagle3_patch import _startup
from sglang_eagle3_patch.settings import PREFIX, SettingsError, with_option

DEFAULTS = {
    PREFIX: "1",
    f"{PREFIX}_STRICT": "1",
    f"{PREFIX}_ACCEPT_LOG": "step",
}


def main() -> None:
    """Run SGLang's own launcher in this process, as if it had been started itself."""
    # Not altering sys.modules keeps this module `__main__`, which spawned children import.
    runpy.run_module("sglang.launch_server", run_name="__main__", alter_sys=False)


def own_parser() -> argparse.ArgumentParser:
    """Return the parser of the flags that are ours; SGLang's are left for SGLang's own."""
    parser = argparse.ArgumentParser(
        prog="sglang_eagle3_patch.launch_server",
        description="SGLang's launcher with every patch on. Flags of its own, then SGLang's:",
        add_help=False,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--eagle3-aux-layers",
        metavar="2:30:58",
        help="the target layers whose inputs the draft was trained on, whatever its config says",
    )
    preflight = parser.add_mutually_exclusive_group()
    preflight.add_argument(
        "--eagle3-no-preflight",
        action="store_true",
        help="start without judging the draft, which would end the start on an error",
    )
    preflight.add_argument(
        "--eagle3-dry-run",
        action="store_true",
        help="judge the draft, print what would be started, and start nothing",
    )
    return parser


def take_own_flags(arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Return our flags and the other arguments, in their order.

    What matters to every process of the server becomes a variable. Raises `SettingsError` for a
    value that a flag can't hold.
    """
    parser = own_parser()
    if {"-h", "--help"} & set(arguments):
        parser.print_help()
        print()
    own, others = parser.parse_known_args(arguments)
    if own.eagle3_aux_layers is not None:
        options = f"{PREFIX}_OPTIONS"
        os.environ[options] = with_option(
            os.environ.get(options, ""), "aux_layers", own.eagle3_aux_layers
        )
    return own, others


def prepare_main_process() -> None:
    """Read our flags, judge the launch, give the server's processes a place to report to."""
    try:
        own, sys.argv[1:] = take_own_flags(sys.argv[1:])
    except SettingsError as error:
        sys.exit(f"sglang-eagle3-patch: {error}")
    judge_launch(own, sys.argv[1:])
    if f"{PREFIX}_STATUS_DIR" not in os.environ:
        folder = tempfile.mkdtemp(prefix="sglang-eagle3-patch-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        os.environ[f"{PREFIX}_STATUS_DIR"] = folder


def judge_launch(own: argparse.Namespace, arguments: Sequence[str]) -> None:
    """Have the doctor judge the launch, unless our flags or a cry for help say otherwise.

    Raises SystemExit where nothing is to be started.
    """
    if own.eagle3_no_preflight or {"-h", "--help"} & set(arguments):
        return
    # Not at the top, which is run again in every process that SGLang spawns.
    from sglang_eagle3_patch import preflight

    if own.eagle3_dry_run:
        sys.exit(preflight.dry_run(arguments))
    preflight.check(arguments)


# SGLang spawns its processes, which import this module again as `__mp_main__`: they are patched
# even where no start line is run (packages on PYTHONPATH, `python -S`).
if __name__ in ("__main__", "__mp_main__"):
    for variable, value in DEFAULTS.items():
        os.environ.setdefault(variable, value)
    if __name__ == "__main__":
        prepare_main_process()
    _startup.run()

if __name__ == "__main__":
    sys.argv[0] = "sglang_eagle3_patch.launch_server"
    main()
