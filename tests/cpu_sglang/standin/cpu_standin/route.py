"""Which route the stand-in takes, and which SGLang release it serves. Standard library only."""

from __future__ import annotations

import importlib.metadata
import os
import re
from typing import Literal, cast, get_args

Route = Literal["cpu", "triton"]
VARIABLE = "EAGLE3_CPU_STANDIN"


def chosen_route() -> Route:
    """Return the route named by EAGLE3_CPU_STANDIN.

    Raises ImportError when it is unset or names no route. It is an ImportError because the
    question is asked by an import: nothing of the stand-in may load outside the project's own
    environments.
    """
    value = os.environ.get(VARIABLE, "")
    if value not in get_args(Route):
        raise ImportError(
            f"{VARIABLE}={value!r}: this is the test stand-in for sgl-kernel on a CPU, and it "
            f"loads only under `./launch.sh run`, `demo` or `test`, which set {VARIABLE} to "
            f"{' or '.join(get_args(Route))}. Start through launch.sh, or take this folder off "
            "PYTHONPATH to use the real sgl-kernel."
        )
    return cast(Route, value)


def sglang_release() -> tuple[int, int, int]:
    """Return the release of the first SGLang on the path, post releases as their base release.

    Raises importlib.metadata.PackageNotFoundError when there is none.
    """
    version = importlib.metadata.version("sglang")
    major, minor, patch = (int(number) for number in re.findall(r"\d+", version)[:3])
    return major, minor, patch
