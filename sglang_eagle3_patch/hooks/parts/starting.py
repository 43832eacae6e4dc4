"""The start of this process, which the hooks of startup-watch tell of and which is watched."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from sglang_eagle3_patch.hooks.parts import own_trouble
from sglang_eagle3_patch.hooks.parts.launch_facts import facts
from sglang_eagle3_patch.hooks.parts.ready_report import ready_report
from sglang_eagle3_patch.hooks.parts.this_process import ranks
from sglang_eagle3_patch.settings import Settings
from sglang_eagle3_patch.startup import answers
from sglang_eagle3_patch.startup.advice import DISABLE_DRAFT_EXTEND
from sglang_eagle3_patch.startup.board import folder_for
from sglang_eagle3_patch.startup.stages import Progress, Stage
from sglang_eagle3_patch.startup.watch import SAYS, Watch

logger = logging.getLogger(__name__)

# Of releases whose prefill servers process their batches elsewhere, a later batch ends the watch.
_BATCHES = 3


@dataclass
class Start:
    """The start of this process, from `Scheduler.__init__` to the end of the first batch."""

    progress: Progress
    watch: Watch
    batches: int = 0
    first_batch: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)


now: Start | None = None  # None before and after, and where it is not watched
safely = partial(own_trouble.safely, f"{SAYS}: not watched")


def begin(server_args: Any) -> None:
    """Begin to watch the start of a scheduler, whose process SGLang has given its ranks."""
    global now
    settings = Settings.from_environment()
    progress = Progress()
    rank = " ".join(f"{kind}{number}" for kind, number in ranks().items())
    watch = Watch(
        progress,
        name=f"scheduler {rank}".rstrip(),
        port=getattr(server_args, "port", None),
        folder=_folder(settings),
        stall_s=settings.stall_s,
        switches=lambda: switches(server_args),
    )
    now = Start(progress, watch)
    watch.start()


def _folder(settings: Settings) -> Path | None:
    try:
        return folder_for(settings.status_dir)
    except OSError as error:
        logger.warning("%s: other ranks are not seen: %s", SAYS, error)
        return None


def switches(server_args: Any) -> set[str]:
    """Return the flags and the variable of the release in hand that advice may name."""
    known = {f"--{name.replace('_', '-')}" for name in dir(server_args)}
    environ = sys.modules.get("sglang.srt.environ")
    if hasattr(getattr(environ, "envs", None), DISABLE_DRAFT_EXTEND):
        known.add(DISABLE_DRAFT_EXTEND)
    return known


def ready() -> None:
    """Tell what came of the start; what is left of it is the first batch."""
    from sglang_eagle3_patch.hooks import PATCHES, registry

    assert now is not None
    progress = now.progress
    progress.idle = True
    took = time.monotonic() - progress.started
    logger.info("%s: started in %.1f s: %s", SAYS, took, progress.summary() or "no stage seen")
    facts.ready = ready_report(facts, registry.report(PATCHES))
    if facts.ready and not any(ranks().values()):
        logger.info("sglang-eagle3-patch: %s", facts.ready)


def end() -> None:
    """Stop watching, whatever came of the start."""
    global now
    if now is not None:
        now.watch.end()
        now = None


def batch_begins() -> None:
    """Note that the first batch is begun, or that it must be over."""
    assert now is not None
    if now.batches == 0:
        now.first_batch.enter_context(now.progress.within(Stage.FIRST_BATCH))
        now.progress.idle = False
    now.batches += 1
    if now.batches > _BATCHES:
        first_batch_is_done()


def first_batch_is_done() -> None:
    """Stop watching: the process serves."""
    assert now is not None
    now.first_batch.close()
    seconds = now.progress.seconds.get(Stage.FIRST_BATCH)
    if seconds is not None:
        logger.info("%s: the first batch took %.1f s; the watch ends", SAYS, seconds)
    end()


def answer() -> None:
    """Have this process answer when it is asked for its stacks."""
    answers.answer(_folder(Settings.from_environment()))


def memory() -> str:
    """Return what is left of the GPU, or what this process takes where it uses none.

    For the boundary of two stages: nothing is captured there, and SGLang asks the same.
    """
    torch = sys.modules.get("torch")
    with contextlib.suppress(Exception):
        if torch is not None and torch.cuda.is_initialized():
            free, total = torch.cuda.mem_get_info()
            return f"{free / 2**30:.1f} of {total / 2**30:.1f} GiB of GPU memory free"
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        return f"{pages * os.sysconf('SC_PAGE_SIZE') / 2**30:.1f} GiB of memory taken"
    return ""
