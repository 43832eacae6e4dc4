"""Rules about the command line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sglang_eagle3_patch.checkpoint.config_keys import COMPUTATION, SHAPES, STRUCTURE
from sglang_eagle3_patch.checkpoint.quantisation import FLOATS
from sglang_eagle3_patch.checkpoint.rules.answers import (
    OK,
    Answer,
    listed,
    mended_by,
    rule,
    unknown,
    wrong,
)
from sglang_eagle3_patch.checkpoint.rules.case import Case

_EAGLE = ("EAGLE", "NEXTN")
_EAGLE3 = ("--speculative-algorithm", "EAGLE3")
_UNQUANTISED = ("--speculative-draft-model-quantization", "unquant")
# Formats that fill a model without naming tensors, so that none can be accounted for.
UNACCOUNTED = ("sharded_state", "remote", "remote_instance", "ipc_cache", "private")


@rule("E3-launch-algorithm", "error")
def algorithm(case: Case) -> Answer:
    """The draft is started with another algorithm than EAGLE3.

    Cause: SGLang takes `EAGLE` (and its alias `NEXTN`) with an EAGLE-3 draft without a word,
    captures nothing, skips `fc` and puts the target's head over the draft's.

    Remedy: start with `--speculative-algorithm EAGLE3`; the plugin takes EAGLE for it.
    """
    asked = (case.launch.algorithm or "").upper()
    if asked == "EAGLE3" or not case.launch.given or case.draft_class is None:
        return OK
    if asked in _EAGLE:
        return wrong(
            f"--speculative-algorithm {asked} with an EAGLE-3 draft: fc is skipped, accept length "
            "will be about 1",
            mended_by(case, "eagle3-mode", "start with " + " ".join(_EAGLE3)),
            stock="degraded",
            plugin="serves",
            arguments=_EAGLE3,
            algorithm=asked,
        )
    if not asked:
        return OK
    return unknown(
        f"--speculative-algorithm {asked} does not run an EAGLE-3 draft",
        "start with " + " ".join(_EAGLE3),
        arguments=_EAGLE3,
        algorithm=asked,
    )


@rule("E3-launch-no-speculation", "warning")
def no_speculation(case: Case) -> Answer:
    """The launch names no speculative algorithm.

    Cause: without `--speculative-algorithm` SGLang does not speculate, whatever draft is named.

    Remedy: start with `--speculative-algorithm EAGLE3`.
    """
    if not case.launch.given or case.launch.algorithm:
        return OK
    return wrong(
        "the launch arguments name no --speculative-algorithm: the draft is not used",
        "start with " + " ".join(_EAGLE3),
        stock="unknown",
        plugin="unknown",
        arguments=_EAGLE3,
    )


@rule("E3-launch-flags", "error")
def flags(case: Case) -> Answer:
    """The release does not know a `--speculative-*` argument.

    Cause: arguments come and go between releases; SGLang's parser ends the start. What a fork
    under the release's number may have added can't be told.

    Remedy: leave the argument out, or give the release that has it.
    """
    unknown_flags = [typed for typed, flag in case.launch.speculative.items() if flag is None]
    if not unknown_flags:
        return OK
    if case.perhaps_known.issuperset(unknown_flags):
        return unknown(
            f"{case.release} does not know {listed(unknown_flags)}, and the installed SGLang may",
            f"leave {unknown_flags[0]} out if the start ends there",
            flags=unknown_flags,
        )
    return wrong(
        f"{case.release} does not know {listed(unknown_flags)}",
        f"leave {unknown_flags[0]} out",
        stock="refuses",
        plugin="refuses",
        flags=unknown_flags,
    )


def _is_plain(case: Case) -> bool:
    maps = ("d2t", "t2d")
    return not case.is_quantised and all(
        header.dtype in FLOATS for name, header in case.draft.tensors.items() if name not in maps
    )


@rule("E3-launch-quantization", "error")
def quantization(case: Case) -> Answer:
    """The draft is built with the target's quantisation.

    Cause: without a quantisation of its own the draft inherits `--quantization`, and a draft in
    bfloat16 is built with the target's method.

    Remedy: give `--speculative-draft-model-quantization unquant`; the plugin does.
    """
    launch = case.launch
    inherits = launch.quantization not in (None, "unquant") and launch.draft_quantization is None
    if not inherits or not _is_plain(case):
        return OK
    if case.is_mla_class and launch.quantization == "modelopt_fp4":
        return OK  # the class itself sets it aside
    return wrong(
        f"the draft is not quantised, and inherits --quantization {launch.quantization}",
        mended_by(case, "load-paths", "start with " + " ".join(_UNQUANTISED)),
        stock="degraded",
        plugin="serves",
        arguments=_UNQUANTISED,
        quantization=launch.quantization,
    )


def _changed(case: Case, keys: frozenset[str]) -> Mapping[str, Any]:
    config = case.plugin_config or case.draft.config
    overrides = case.launch.overrides
    return {
        k: overrides[k] for k in sorted(keys & overrides.keys()) if config.get(k) != overrides[k]
    }


@rule("E3-launch-structure", "error")
def structure(case: Case) -> Answer:
    """`--json-model-override-args` changes what the draft is built of.

    Cause: the argument is written over the configs of target and draft alike; the draft's tensors
    fit its own values alone.

    Remedy: put what is meant for the target into the target's config.json.
    """
    changed = _changed(case, STRUCTURE)
    if not changed:
        return OK
    layers, chosen = changed.get("num_hidden_layers", 1), case.draft_class
    one_layer = chosen is not None and chosen.several_layers is False
    refuses = bool(SHAPES & changed.keys()) or (one_layer and layers != 1)
    return wrong(
        f"--json-model-override-args is written over the draft's config too: {json.dumps(changed)}",
        "put what is meant for the target into the target's config.json",
        stock="refuses" if refuses else "degraded",
        plugin="refuses",
        overrides=changed,
    )


@rule("E3-launch-computation", "warning")
def computation(case: Case) -> Answer:
    """`--json-model-override-args` changes what the draft computes.

    Cause: the argument is written over the configs of target and draft alike.

    Remedy: put what is meant for the target into the target's config.json; the plugin keeps it
    from the draft.
    """
    # A config of transformers 5 has its theta in rope_parameters, and SGLang takes it from there.
    unread = frozenset() if case.reads_old_rope else frozenset({"rope_theta"})
    changed = _changed(case, COMPUTATION - unread)
    if not changed:
        return OK
    return wrong(
        f"--json-model-override-args is written over the draft's config too: {json.dumps(changed)}",
        mended_by(
            case, "load-paths", "put what is meant for the target into the target's config.json"
        ),
        stock="degraded",
        plugin="serves",
        overrides=changed,
    )


@rule("E3-launch-load-format", "error")
def load_format(case: Case) -> Answer:
    """The load format leaves the draft's tensors unaccounted, or unread.

    Cause: `sharded_state`, `remote` and their like fill a model without naming tensors; `dummy`
    fills it with noise. The draft takes `--load-format` unless it has a format of its own.

    Remedy: give `--speculative-draft-load-format auto`.
    """
    asked = case.launch.draft_load_format or case.launch.load_format
    formats = case.engine.launch.load_formats
    own = ("--speculative-draft-load-format", "auto")
    if asked is None or asked == "auto":
        return OK
    if asked == "dummy":
        return wrong(
            "load format dummy fills the draft with noise: accept length will be about 1",
            "start with " + " ".join(own),
            stock="degraded",
            plugin="degraded",
            load_format=asked,
        )
    if asked in UNACCOUNTED:
        return wrong(
            f"load format {asked} fills the draft without naming tensors: none is accounted for",
            "start with " + " ".join(own),
            stock="unknown",
            plugin="refuses",
            load_format=asked,
        )
    if formats is not None and asked not in formats:
        return unknown(
            f"{case.release} has no load format {asked} unless a plugin brings it",
            "start with " + " ".join(own),
            load_format=asked,
        )
    return OK


@rule("E3-launch-pipeline", "error")
def pipeline(case: Case) -> Answer:
    """The target is split over pipeline stages.

    Cause: every release refuses EAGLE3 with them; aux states captured on earlier stages would be
    lost.

    Remedy: start with one stage.
    """
    stages, asked = case.launch.pipeline_stages or 1, (case.launch.algorithm or "").upper()
    if stages < 2 or asked not in ("EAGLE3", *_EAGLE):
        return OK
    return wrong(
        f"{stages} pipeline stages, with which SGLang refuses EAGLE3",
        "start with --pp-size 1",
        stock="refuses" if asked == "EAGLE3" else "unknown",
        plugin="refuses",
        stages=stages,
    )
