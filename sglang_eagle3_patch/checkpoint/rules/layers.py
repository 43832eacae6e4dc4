"""Rules about aux layers: which target layers the draft was trained on, and which are captured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sglang_eagle3_patch.checkpoint import aux_layers
from sglang_eagle3_patch.checkpoint.aux_layers import AuxLayers
from sglang_eagle3_patch.checkpoint.config import ConfigNotUnderstood, is_speculators
from sglang_eagle3_patch.checkpoint.rules.answers import (
    NO_TARGET,
    OK,
    Answer,
    Outcome,
    mended_by,
    rule,
    unknown,
    wrong,
)
from sglang_eagle3_patch.checkpoint.rules.case import Case
from sglang_eagle3_patch.checkpoint.rules.loading import plugin_load
from sglang_eagle3_patch.facts.engine_facts import TargetClass

_NAME_THEM = "name the layers it was trained on: SGLANG_EAGLE3_PATCH_OPTIONS=aux_layers=…"


def _trained(case: Case, num_layers: int) -> AuxLayers | None:
    """The layers that the draft was trained on; None where the config can't be read."""
    try:
        return aux_layers.resolve(
            case.draft.config, num_layers, case.launch.aux_layers, case.draft.producer
        )
    except ConfigNotUnderstood:
        return None


def _stated(case: Case) -> tuple[tuple[int, ...], str] | None:
    """The ids that the config states and where; None where it states none that can be read."""
    try:
        return aux_layers.stated_ids(case.draft.config)
    except ConfigNotUnderstood:
        return None


def _plugin_captures(case: Case, chosen: TargetClass, trained: AuxLayers) -> Sequence[int] | None:
    """What the target captures with the plugin, which sets what the class can; None: not known."""
    num_layers = case.target.num_layers if case.target else None
    if num_layers is None:
        return None
    if trained.inputs is None:
        return chosen.captured_layers(case.found_ids(), num_layers)
    for ids in ([layer - 1 for layer in trained.inputs], list(trained.inputs)):
        captured = chosen.captured_layers(ids, num_layers)
        if captured in (None, trained.inputs):
            break
    return captured


def _with_states(captured: int, wanted: int) -> Outcome:
    """What comes of as many states: `fc` fails over too few, and is passed over for one alone,
    which is as wide as an embedding."""
    return "refuses" if 1 < captured < wanted else "degraded"


def _ids_at_top_alone(case: Case) -> bool:
    stated = _stated(case)
    return stated is not None and stated[1] != "eagle_config" and case.stock_config is not None


@rule("E3-layers-unreadable", "error")
def unreadable(case: Case) -> Answer:
    """The aux layer ids are no list of layer numbers.

    Cause: a hand-written config. SGLang adds 1 to what `eagle_config` holds, and fails over all but
    numbers; at the top level it does not look, and captures the default layers.

    Remedy: write the ids as a list of numbers.
    """
    try:
        aux_layers.stated_ids(case.draft.config)
    except ConfigNotUnderstood as problem:
        nested = case.draft.config.get("eagle_config")
        ids = nested.get(aux_layers.KEY) if isinstance(nested, Mapping) else None
        numbers = isinstance(ids, list) and all(isinstance(number, int) for number in ids)
        return wrong(
            str(problem),
            "write the layer ids as a list of numbers",
            stock="degraded" if ids is None or numbers else "refuses",
            plugin="refuses",
        )
    return OK


@rule("E3-layers-place", "error")
def place(case: Case) -> Answer:
    """The aux layer ids stand where SGLang does not look.

    Cause: SGLang captures by the ids of `eagle_config` alone; at the top level they are passed
    over, and the default layers are captured.

    Remedy: move them into `eagle_config`; the plugin reads both places.
    """
    if not _ids_at_top_alone(case):
        return OK
    if case.target is None or case.target.num_layers is None:
        return NO_TARGET
    trained = _trained(case, case.target.num_layers)
    default = aux_layers.default_inputs(case.target.num_layers)
    if trained is None or trained.inputs in (None, default):
        return OK
    return wrong(
        f"eagle_aux_hidden_state_layer_ids stands at the top level, where SGLang does not look: "
        f"inputs of {list(default)} are captured instead of {list(trained.inputs or ())}",
        mended_by(case, "aux-capture", "move the ids into its eagle_config, as outputs"),
        stock="degraded",
        plugin="serves",
        trained=trained.inputs,
        captured=default,
    )


@rule("E3-layers-captured", "error")
def captured(case: Case) -> Answer:
    """The target captures other layers than the draft was trained on.

    Cause: an id names a layer's input to some trainers and its output to others. SGLang decides by
    the target's class: most add 1, some by a guess at the ids.

    Remedy: serve it with the plugin, which goes by who wrote the draft.
    """
    if case.target is None or case.target.num_layers is None:
        return NO_TARGET
    chosen, trained = case.lent_class, _trained(case, case.target.num_layers)
    if chosen is None or not chosen.captures or trained is None or case.draft_class is None:
        return OK
    ids = None if _ids_at_top_alone(case) else case.found_ids()
    stock = chosen.captured_layers(ids, case.target.num_layers)
    plugin = _plugin_captures(case, chosen, trained)
    if trained.inputs is None or not trained.certain:
        return _uncertain(trained, stock)
    plugin_can = (
        "serves" if plugin == trained.inputs else "unknown" if plugin is None else "refuses"
    )
    if stock is None or plugin is None:
        return unknown(
            f"which layers {case.target.name} captures is not known; trained on inputs of "
            f"{list(trained.inputs)} ({trained.source})",
            "look for the line 'are captured' in the server's log",
            trained=trained.inputs,
        )
    if _ids_at_top_alone(case) and plugin_can == "serves":
        return OK  # told by E3-layers-place
    if stock == trained.inputs and plugin_can == "serves":
        return OK
    return wrong(
        f"inputs of layers {list(stock)} are captured, and the draft was trained on "
        f"{list(trained.inputs)} ({trained.source})",
        mended_by(
            case, "aux-capture", "write other ids into its eagle_config: sglang-eagle3 convert"
        )
        if plugin_can == "serves"
        else "serve it with a release whose target class can capture them",
        stock="serves" if stock == trained.inputs else "degraded",
        plugin="serves" if plugin_can == "serves" else "refuses",
        captured=stock,
        trained=trained.inputs,
    )


def _uncertain(trained: AuxLayers, stock: Sequence[int] | None) -> Answer:
    if trained.certain:
        return OK
    return unknown(
        f"which layers the draft was trained on can't be told ({trained.source})",
        _NAME_THEM,
        captured=stock,
        trained=trained.inputs,
    )


@rule("E3-layers-number", "error")
def number(case: Case) -> Answer:
    """Another number of layers is captured than `fc` takes.

    Cause: a list of ids of another draft, or an `fc` for another number of states than three
    without ids.

    Remedy: state the ids that the draft was trained on.
    """
    load, held = plugin_load(case), case.draft.num_aux
    if load is None or held is None or "fc.weight" in load.misshapen:
        return OK
    stated = _stated(case)
    count = len(stated[0]) if stated else 3
    if case.launch.aux_layers is not None:
        count = len(case.launch.aux_layers)
    if count == held or "fc.weight" not in case.draft.tensors:
        return OK
    return wrong(
        f"{count} layers are captured, and fc takes {held}",
        "write the ids it was trained on into its eagle_config",
        stock="refuses",
        plugin="refuses",
        captured=count,
        num_aux=held,
    )


@rule("E3-layers-order", "error")
def order(case: Case) -> Answer:
    """The aux layer ids are not ascending, or not distinct.

    Cause: every engine captures in the order of the layers. A trainer that captured in the order of
    the list has its `fc` meet other states than it was trained on; ModelOpt and SpecForge list ids
    in any order and capture in that of the layers.

    Remedy: sort the ids, and the column blocks of `fc` with them.
    """
    stated = _stated(case)
    if stated is None:
        return OK
    in_order = case.draft.producer.ids_in_layer_order and len(set(stated[0])) == len(stated[0])
    if in_order or list(stated[0]) == sorted(set(stated[0])):
        return OK
    return wrong(
        f"the layer ids {list(stated[0])} are not ascending: states come in the order of layers",
        "sort the ids, and the column blocks of fc with them",
        stock=_with_states(len(set(stated[0])), len(stated[0])),
        plugin="refuses",
        ids=stated[0],
    )


@rule("E3-layers-range", "error")
def beyond(case: Case) -> Answer:
    """The draft was trained on layers that the target does not have.

    Cause: another target, or ids that were shifted twice.

    Remedy: give the target that the draft was trained for.
    """
    stated = _stated(case)
    if stated is None:
        return OK
    if case.target is None or (count := case.target.num_layers) is None:
        return NO_TARGET
    trained = _trained(case, count)
    inputs = (trained.inputs if trained else None) or stated[0]
    if max(inputs) <= count:
        return OK
    return wrong(
        f"the draft was trained on layers {list(inputs)}, and {case.target.name} has {count}",
        "give the target that it was trained for",
        stock=_with_states(sum(layer <= count for layer in inputs), len(inputs)),
        plugin="refuses",
        layers=inputs,
        num_layers=count,
    )


@rule("E3-layers-last", "warning")
def last(case: Case) -> Answer:
    """The draft was trained on the output of the target's last layer.

    Cause: targets capture the inputs of layers, and few classes that of the one after the last.
    Older ones capture one state less.

    Remedy: look whether drafts are accepted.
    """
    if case.target is None or case.target.num_layers is None:
        return NO_TARGET
    trained = _trained(case, case.target.num_layers)
    if trained is None or case.target.num_layers not in (trained.inputs or ()):
        return OK
    return unknown(
        f"it was trained on the output of the last layer (input of {case.target.num_layers}), "
        "which few target classes capture",
        "look whether drafts are accepted",
        trained=trained.inputs,
    )


@rule("E3-layers-graphs", "error")
def graphs(case: Case) -> Answer:
    """CUDA graphs are captured with the default layers.

    Cause: up to 0.5.10.post1 the ids are set after the target's graphs are captured, so that they
    keep to the default layers whatever the draft was trained on.

    Remedy: start without graphs; the plugin sets the ids before.
    """
    if case.engine.workers.layers_set_before_graphs is not False or case.launch.graphs_disabled:
        return OK
    if is_speculators(case.draft.config):
        return OK
    if case.target is None or case.target.num_layers is None:
        return NO_TARGET
    chosen, trained = case.lent_class, _trained(case, case.target.num_layers)
    if chosen is None or trained is None:
        return OK
    default = chosen.captured_layers(None, case.target.num_layers)
    wanted = trained.inputs or chosen.captured_layers(case.found_ids(), case.target.num_layers)
    if wanted is None or default is None or wanted == default:
        return OK
    return wrong(
        f"{case.release} captures its graphs with the default layers {list(default)}, and the "
        f"draft was trained on {list(wanted)}",
        mended_by(case, "aux-capture", "start with --disable-cuda-graph"),
        stock="degraded",
        plugin="serves",
        arguments=() if case.plugin else ("--disable-cuda-graph",),
        default=default,
        trained=wanted,
    )
