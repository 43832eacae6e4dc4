"""What our launcher makes of every flag of this release: SGLang's are left as they are."""

from __future__ import annotations

import argparse
import contextlib
import io
import re
import runpy
import sys
from typing import Any

from sglang_eagle3_patch import launch_server

# A value for every flag, so that none is taken for another's.
VALUE = "a-value"


def observe() -> dict[str, Any]:
    """Return the flags that both launchers show in their help, and what became of each of SGLang's.

    Neither launcher gets further than its help.
    """
    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    flags = [flag for action in parser._actions for flag in action.option_strings]
    arguments = [
        word
        for flag in flags
        if flag not in ("-h", "--help")
        for word in (flag, VALUE, f"{flag}={VALUE}")
    ]
    _, left = launch_server.take_own_flags(arguments)
    stock = shown_flags(lambda: runpy.run_module("sglang.launch_server", run_name="__main__"))
    return {
        "known": sorted(flags),
        "given": len(arguments),
        "left_as_given": left == arguments,
        "stock": stock,
        "ours": shown_flags(_our_help),
        "own": sorted(
            flag for action in launch_server.own_parser()._actions for flag in action.option_strings
        ),
    }


def _our_help() -> None:
    _, sys.argv[1:] = launch_server.take_own_flags(sys.argv[1:])
    launch_server.main()


def shown_flags(launch: Any) -> list[str]:
    """Return the flags that a launcher shows when it is asked for help."""
    shown, arguments = io.StringIO(), sys.argv
    sys.argv = ["launch_server", "--help"]
    try:
        with contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit):
            launch()
    finally:
        sys.argv = arguments
    # Of an option's own line, not of what is said of others.
    lines = re.findall(r"^  (-.*?)(?:  |$)", shown.getvalue(), re.MULTILINE)
    return sorted({flag for line in lines for flag in re.findall(r"(?<![\w-])--?[\w-]+", line)})
