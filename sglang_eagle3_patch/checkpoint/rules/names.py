"""Rules about the tensors' names: what the loader drops, and what it never fills."""

from __future__ import annotations

import re

from sglang_eagle3_patch.checkpoint.layouts import canonical_name
from sglang_eagle3_patch.checkpoint.rules.answers import (
    OK,
    Answer,
    counted,
    listed,
    mended_by,
    rule,
    wrong,
)
from sglang_eagle3_patch.checkpoint.rules.case import Case
from sglang_eagle3_patch.checkpoint.rules.loading import plugin_load, stock_load

# Of other architectures: EAGLE-1 and MTP heads, P-EAGLE, TensorRT-LLM's variants, parallel heads.
FOREIGN = re.compile(r"(^|\.)(mask_hidden|enorm|hnorm|eh_proj|parallel_draft_heads)(\.|$)")
STATE_NORMS = re.compile(r"^(input_norm|fc_norm\.\d+)\.")
HEAD_NORMS = re.compile(r"\.self_attn\.[qk]_norm\.")
BIASES = re.compile(r"\.bias$")
SCALES = re.compile(r"_scale(_2|_inv)?$")
# Rules of their own tell of these.
_TOLD_ELSEWHERE = (FOREIGN, STATE_NORMS, HEAD_NORMS, BIASES, SCALES)
_OWN_RULES = ("embed_tokens.weight", "lm_head.weight", "d2t")
_ABOUT_1 = "accept length will be about 1"


def _beyond(case: Case, name: str) -> bool:
    """Whether a layer's tensor is of one that only the file, or only the config, has."""
    found = re.match(r"layers\.(\d+)\.", name)
    if found is None:
        return False
    stated = (case.plugin_config or {}).get("num_hidden_layers")
    number = int(found[1])
    if case.draft_class is not None and case.draft_class.several_layers is False:
        stated = 1
    return number not in case.draft.layer_numbers or (type(stated) is int and number >= stated)


@rule("E3-names-clash", "error")
def clash(case: Case) -> Answer:
    """Several tensors of the file are the same one under different names.

    Cause: a file with two layouts (`midlayer.*` and `layers.0.*`, or with and without a prefix).
    Which one SGLang takes depends on the release and on their order.

    Remedy: write the file anew with one layout.
    """
    twice = case.draft.name_clashes
    if not twice:
        return OK
    return wrong(
        f"{counted(len(twice), 'tensor')} twice, under different names: {listed(twice)}",
        "keep one layout and drop the other",
        stock="degraded",
        plugin="refuses",
        twice=list(twice),
    )


@rule("E3-names-dropped", "error")
def dropped(case: Case) -> Answer:
    """Tensors are dropped because the draft class calls them otherwise.

    Cause: SGLang's loader passes over names that it does not know, without a word, and what they
    should have filled stays uninitialised. Up to 0.5.11 the class says `midlayer.*` and drops
    `layers.0.*`; prefixes of trainers are unknown to every release.

    Remedy: serve it with the plugin, which goes by the names of the class in hand, or rename them.
    """
    load = stock_load(case)
    if load is None or not case.attention_fits or case.draft.name_clashes:
        return OK
    names = [n for n in load.unused if canonical_name(n) in load.wanted]
    if not names:
        return OK
    return wrong(
        f"{len(names)} of {len(case.draft.names)} tensors are dropped by their names "
        f"({listed(names, 2)}): {_ABOUT_1}",
        mended_by(case, "draft-weights", "rename them: sglang-eagle3 convert"),
        stock="degraded",
        plugin="serves",
        dropped=names,
        unfilled=list(load.missing),
    )


@rule("E3-names-missing", "error")
def missing(case: Case) -> Answer:
    """The checkpoint lacks tensors that the draft class needs.

    Cause: a truncated or wrongly converted file. SGLang never notices a parameter that nothing
    filled: it serves on uninitialised memory.

    Remedy: export the draft anew.
    """
    load = plugin_load(case)
    if load is None or not case.attention_fits:
        return OK
    names = [n for n in load.missing if n not in _OWN_RULES and not _beyond(case, n)]
    if not names:
        return OK
    return wrong(
        f"{counted(len(names), 'tensor')} missing ({listed(names)}), and SGLang would serve on "
        f"uninitialised memory: {_ABOUT_1}",
        "export the draft anew, whole",
        stock="degraded",
        plugin="refuses",
        missing=names,
    )


@rule("E3-names-unused", "error")
def unused(case: Case) -> Answer:
    """The checkpoint has tensors that no draft class uses.

    Cause: another architecture's, or a new trainer's. SGLang drops them without a word, and the
    draft computes without them.

    Remedy: find out what they are; drop them from the file if the draft does not need them.
    """
    load = plugin_load(case)
    if load is None or not case.attention_fits:
        return OK
    names = [
        name
        for name in load.unused
        if not _beyond(case, canonical_name(name))
        and not any(told.search(canonical_name(name)) for told in _TOLD_ELSEWHERE)
        and canonical_name(name) not in _OWN_RULES
    ]
    if not names:
        return OK
    return wrong(
        f"{counted(len(names), 'tensor')} used by nothing: {listed(names)}",
        "drop them from the checkpoint if the draft was trained without them",
        stock="degraded",
        plugin="refuses",
        unused=names,
    )


@rule("E3-names-foreign", "error")
def foreign(case: Case) -> Answer:
    """The checkpoint is another architecture's than EAGLE-3's.

    Cause: P-EAGLE drafts have `mask_hidden`, EAGLE-1 and MTP heads `enorm`, `hnorm` and `eh_proj`,
    some of ModelOpt's parallel heads. SGLang drops them.

    Remedy: give an EAGLE-3 draft, or serve this one with the algorithm it was trained for.
    """
    names = [name for name in case.draft.names if FOREIGN.search(name)]
    if not names:
        return OK
    return wrong(
        f"it has tensors of another architecture: {listed(names)}",
        "give an EAGLE-3 draft",
        stock="degraded",
        plugin="refuses",
        foreign=names,
    )


@rule("E3-names-later-norm", "error")
def later_norm(case: Case) -> Answer:
    """A later layer's norm has a name that SGLang does not load it by.

    Cause: speculators and ModelOpt call the norm of a later layer's input `input_layernorm`,
    SGLang `hidden_norm`, which so stays at ones.

    Remedy: serve it with the plugin, or rename `layers.N.input_layernorm` to `hidden_norm`.
    """
    load = stock_load(case)
    wanted = [] if load is None else [n for n in load.missing if ".hidden_norm." in n]
    names = [
        name
        for name in wanted
        if name.replace("hidden_norm", "input_layernorm") in case.draft.tensors
        and not name.startswith("layers.0.")
    ]
    if not names:
        return OK
    return wrong(
        f"{listed(names)} stays at ones: the file calls it input_layernorm",
        mended_by(case, "draft-weights", "rename it: sglang-eagle3 convert"),
        stock="degraded",
        plugin="serves",
        unfilled=names,
    )


@rule("E3-names-layer-count", "error")
def layer_count(case: Case) -> Answer:
    """The file holds another number of decoder layers than the config states.

    Cause: a config copied from the target, with the target's number of layers. SGLang builds what
    the config says and leaves unfilled what the file lacks.

    Remedy: state the number of layers that the file holds.
    """
    config, held = case.plugin_config or {}, case.draft.num_layers
    stated = config.get("num_hidden_layers")
    if not held or type(stated) is not int or stated == held or case.draft_class is None:
        return OK
    refused = case.draft_class.several_layers is False and stated != 1
    return wrong(
        f"num_hidden_layers is {stated}, and the file holds {held}",
        f'write "num_hidden_layers": {held} into its config.json',
        stock="refuses" if refused else "degraded",
        plugin="refuses",
        stated=stated,
        held=held,
    )


@rule("E3-names-several-layers", "error")
def several_layers(case: Case) -> Answer:
    """The draft has several decoder layers, and the class takes one.

    Cause: up to 0.5.11, and in the class with latent attention up to now, any other number than
    one is an error.

    Remedy: serve a llama draft of several layers with 0.5.12 or newer.
    """
    stated = (case.plugin_config or {}).get("num_hidden_layers")
    # What the file does not tell, the config does, by which the class is built.
    held = case.draft.num_layers or (stated if type(stated) is int else 0)
    chosen = case.draft_class
    if held < 2 or chosen is None or chosen.several_layers is not False:
        return OK
    return wrong(
        f"the draft has {held} decoder layers, and {case.architecture} of {case.release} takes one",
        "give a draft of one layer" if case.is_mla_class else "serve it with 0.5.12 or newer",
        stock="refuses",
        plugin="refuses",
        held=held,
    )
