"""Rules about the files: their format, their dtypes, the few values that are cheap to read."""

from __future__ import annotations

import math

from sglang_eagle3_patch.checkpoint.quantisation import FLOATS, MAPS
from sglang_eagle3_patch.checkpoint.rules.answers import (
    OK,
    Answer,
    counted,
    listed,
    rule,
    unknown,
    wrong,
)
from sglang_eagle3_patch.checkpoint.rules.case import Case
from sglang_eagle3_patch.checkpoint.rules.names import SCALES

_PICKLED = (".bin", ".pt", ".pth", ".ckpt")


@rule("E3-files-weights", "error")
def weights(case: Case) -> Answer:
    """The draft's weights are not there, or not as safetensors.

    Cause: a folder with a config alone, or with pickled weights (`.bin`), whose names and shapes
    can't be looked into without loading them.

    Remedy: fetch the weights, or save them as safetensors.
    """
    if case.draft.tensors:
        return OK
    if case.files is None:
        return unknown("the draft's weights could not be looked at", "fetch the draft first")
    pickled = [name for name in case.files if name.endswith(_PICKLED)]
    if pickled:
        return unknown(
            f"the weights are pickled ({listed(pickled)}) and were not looked into",
            "save them as safetensors",
            files=pickled,
        )
    return wrong(
        "there are no weights in the draft's folder",
        "fetch the draft's weights",
        stock="refuses",
        plugin="refuses",
    )


@rule("E3-files-dtypes", "error")
def dtypes(case: Case) -> Answer:
    """Tensors are not plain floats, and no quantisation is stated.

    Cause: packed or scaled weights whose `quantization_config` was lost. SGLang casts the numbers
    as they stand.

    Remedy: restore the quantization_config, or give the draft in bfloat16.
    """
    if case.is_quantised:
        return OK
    names = [
        name
        for name, header in case.draft.tensors.items()
        if name not in MAPS and (header.dtype not in FLOATS or SCALES.search(name))
    ]
    if not names:
        return OK
    found = f"{counted(len(names), 'tensor')} quantised ({listed(names, 2)})"
    if case.files is None:
        return unknown(
            f"{found}, the config does not say how, and a file beside it could",
            "fetch the draft first, or give it in bfloat16",
            tensors=names,
        )
    scaled = any(SCALES.search(name) for name in names)
    return wrong(
        f"{found}, and the config does not say how",
        "restore its quantization_config, or give the draft in bfloat16",
        stock="degraded",
        plugin="refuses" if scaled else "degraded",
        dtypes=sorted({case.draft.tensors[name].dtype for name in names}),
        tensors=names,
    )


@rule("E3-files-quantised", "warning")
def quantised(case: Case) -> Answer:
    """The draft is quantised.

    Cause: few quantised drafts exist. Shapes of packed tensors say nothing, and which scales a
    method wants is its own affair.

    Remedy: compare its accept length with that of the draft in bfloat16.
    """
    if not case.is_quantised:
        return OK
    return unknown(
        "the draft is quantised: packed shapes and scales were not checked",
        "compare its accept length with that of the draft in bfloat16",
        stock="serves",
        plugin="serves",
    )


@rule("E3-files-not-finite", "error")
def not_finite(case: Case) -> Answer:
    """Norms hold NaN or infinity.

    Cause: speculators since 0.5 fills what it never loads with NaN, so that it shows.

    Remedy: export the draft anew from the trained weights.
    """
    names = [
        name
        for name, numbers in (case.values.vectors if case.values else {}).items()
        if not all(map(math.isfinite, numbers))
    ]
    if not names:
        return OK
    return wrong(
        f"{listed(names)} hold NaN or infinity: they were never loaded",
        "export the draft anew from the trained weights",
        stock="degraded",
        plugin="degraded",
        tensors=names,
    )


@rule("E3-files-untrained", "error")
def untrained(case: Case) -> Answer:
    """All norms are exactly one, as in a layer that was never trained.

    Cause: speculators' converter 0.2 to 0.4 lost the renaming of `midlayer.*` and saved a decoder
    layer of random weights. Names and shapes are perfect.

    Remedy: convert the original draft anew with speculators 0.5 or newer.
    """
    suspect = case.draft.producer.name == "speculators converter 0.2 to 0.4"
    remedy = "convert the original draft anew with speculators 0.5 or newer"
    if case.values is None:
        if not suspect or not case.draft.tensors:
            return OK
        return unknown(
            "written by a converter that saved random decoder weights for midlayer.* sources; the "
            "values were not read",
            "fetch the draft and judge the local folder",
        )
    norms = {n: v for n, v in case.values.vectors.items() if n.startswith("layers.")}
    if not norms or any(value != 1.0 for numbers in norms.values() for value in numbers):
        return OK
    if not suspect:
        return unknown(
            f"all {len(norms)} norms of the decoder are exactly 1, as before training",
            "ask whoever trained it, or export it anew",
            norms=sorted(norms),
        )
    return wrong(
        f"all {len(norms)} norms of the decoder are exactly 1: the converter saved random weights",
        remedy,
        stock="degraded",
        plugin="degraded",
        norms=sorted(norms),
    )


@rule("E3-files-values-unread", "info")
def values_unread(case: Case) -> Answer:
    """The values of vocabulary map and norms were not read.

    Cause: only a local folder's values are read, of a hub draft the headers alone; a map of
    millions of tokens, or of a dtype that holds no integers, is not read either.

    Remedy: fetch the draft and judge the local folder.
    """
    unread = case.values is None or (case.draft.has_d2t and case.values.d2t is None)
    if not unread or not case.draft.tensors:
        return OK
    return unknown(
        "the values of d2t and of the norms were not read",
        "fetch the draft and judge the local folder",
        stock="serves",
        plugin="serves",
    )
