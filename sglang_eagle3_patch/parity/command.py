"""`sglang-eagle3 parity`: does the SGLang installed here compute what the draft was trained on?"""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sglang_eagle3_patch.checkpoint.flags import DraftFlags
from sglang_eagle3_patch.checkpoint.locate import local_folder

AT_PARITY, DIFFERS, NOT_RUN = 0, 1, 2
_EXAMPLE = "norm_before_residual=false"
_WORDS = {"true": True, "false": False}


def add_parser(commands: Any) -> None:
    """Add the command to the subparsers of `sglang-eagle3`."""
    parser = commands.add_parser(
        "parity",
        help="run SGLang's draft class with the patches and compare it with plain torch",
    )
    parser.add_argument("draft", metavar="DRAFT", help="a folder, or a hub id in the local cache")
    parser.add_argument(
        "--target", metavar="T", help="its embedding and head, where the draft has none"
    )
    parser.add_argument("--steps", type=_positive, default=3, help="draft steps (default: 3)")
    parser.add_argument("--seed", type=int, default=0, help="of the random inputs (default: 0)")
    parser.add_argument(
        "--flag",
        type=_flag,
        action="append",
        default=[],
        metavar="NAME=BOOL",
        help="what the draft was trained with and its config leaves out, "
        f"e.g. {_EXAMPLE}; may be repeated",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the command; returns the exit status."""
    return run_parity(
        arguments.draft,
        arguments.target,
        steps=arguments.steps,
        seed=arguments.seed,
        flags=dict(arguments.flag),
        as_json=arguments.json,
    )


def run_parity(
    draft: str,
    target: str | None = None,
    *,
    steps: int = 3,
    seed: int = 0,
    flags: Mapping[str, bool] | None = None,
    as_json: bool = False,
) -> int:
    """Compare and print; 0 at parity, 1 when the two differ, 2 when it could not be run."""
    try:
        parity = _compare(
            _folder(draft), _folder(target) if target else None, steps, seed, flags or {}
        )
    except Exception as error:  # noqa: BLE001 - SGLang raises anything over a draft it can't serve
        print(f"sglang-eagle3 parity: not run: {_one_line(error)}", file=sys.stderr)
        return NOT_RUN
    if as_json:
        json.dump({"parity": parity.agrees, **dataclasses.asdict(parity)}, sys.stdout, indent=1)
        print()
    else:
        _print(parity)
    return AT_PARITY if parity.agrees else DIFFERS


def _compare(
    draft: Path, target: Path | None, steps: int, seed: int, flags: Mapping[str, bool]
) -> Any:
    import sglang_eagle3_patch

    try:
        import sglang  # noqa: F401
        import torch
    except ImportError as error:
        raise RuntimeError(
            f"there is no SGLang in this environment ({error}). Fix: run this with the python "
            "that serves"
        ) from error
    if torch.cuda.is_available():
        raise RuntimeError(
            "SGLang's layers take their GPU kernels where they see a GPU, and this runs on the "
            "CPU in float32. Fix: hide it with CUDA_VISIBLE_DEVICES="
        )
    # SGLang names each of its own models that it can't import here.
    logging.getLogger("sglang").setLevel(logging.ERROR)
    from sglang_eagle3_patch.parity.compare import compare_draft

    sglang_eagle3_patch.activate()
    return compare_draft(draft, target, steps=steps, seed=seed, stated=flags)


def _print(parity: Any) -> None:
    for step in parity.steps:
        verdict = "equal" if step.agrees else "DIFFERS"
        print(
            f"step {step.step}: {verdict}, max |delta| {step.delta:.1e} of the logit scale "
            f"{step.scale:.3g}, top-1 agreement {step.top1:.1%}"
        )
    if parity.agrees:
        print(f"{parity.draft_class} computes what the draft was trained to compute")
    else:
        print(f"{parity.draft_class} first differs in {parity.first_difference or 'the logits'}")


def _folder(name: str) -> Path:
    folder = local_folder(name)
    if folder is None:
        raise FileNotFoundError(f"{name} is not local. Fix: download it, or give its folder")
    return folder


def _one_line(error: Exception) -> str:
    text = str(error).strip().partition("\n")[0] or repr(error)
    if text.endswith("give flags"):
        return f"{text}. Fix: as it was trained, e.g. --flag {_EXAMPLE}"
    return text


def _flag(text: str) -> tuple[str, bool]:
    name, _, word = text.partition("=")
    known = [field.name for field in dataclasses.fields(DraftFlags) if "bool" in str(field.type)]
    if name not in known or word.lower() not in _WORDS:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not one of {', '.join(known)} with =true or =false"
        )
    return name, _WORDS[word.lower()]


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is no number of steps")
    return number
