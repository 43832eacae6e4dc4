"""The loader, simulated: which tensors a draft class takes from a checkpoint and which it misses.

Once as the class's own `load_weights` does it, once with the plugin, which brings names to those of
the class and puts in what the config asks for and the class lacks.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from sglang_eagle3_patch.checkpoint.layouts import NOT_WEIGHTS, canonical_name
from sglang_eagle3_patch.checkpoint.quantisation import FLOATS
from sglang_eagle3_patch.checkpoint.rules.answers import Outcome
from sglang_eagle3_patch.checkpoint.rules.case import Case
from sglang_eagle3_patch.checkpoint.sizes import DraftSizes, stated_sizes
from sglang_eagle3_patch.facts.engine_facts import DraftClass

Shape = tuple[int, ...]
_LATER_INPUT_NORM = re.compile(r"^layers\.[1-9]\d*\.input_layernorm\.")
# Split over ranks by rows or by columns: what is too large there is cut without a word.
_ROWS_CUT = re.compile(r"\.(q|k|v|gate|up|q_b|kv_b)_proj\.")
_COLUMNS_CUT = re.compile(r"\.(o|down)_proj\.")


@dataclass(frozen=True)
class Wanted:
    """One tensor that a class takes; `shape` None where its config doesn't tell."""

    shape: Shape | None
    optional: bool = False


@dataclass(frozen=True)
class Load:
    """What became of a checkpoint's tensors.

    `wanted` and `missing` are canonical names, `unused` names as in the file, `misshapen` maps
    canonical names to the shape found and the shape wanted.
    """

    wanted: Mapping[str, Wanted]
    unused: tuple[str, ...]
    missing: tuple[str, ...]
    misshapen: Mapping[str, tuple[Shape, Shape]]


def stock_load(case: Case) -> Load | None:
    """Return what stock SGLang does; None where it never comes to loading."""
    chosen = case.draft_class
    if chosen is None or case.stock_config is None or not case.draft.tensors:
        return None
    wanted = wanted_tensors(case, chosen, plugin=False)
    own = {_own_name(name, chosen): name for name in wanted}
    taken, unused = {}, []
    for name in case.draft.names:
        if NOT_WEIGHTS.search(canonical_name(name)):
            continue
        found = _stock_name(name, chosen, own)
        if found is None:
            unused.append(name)
        else:
            taken[found] = name
    return _account(case, wanted, taken, unused)


def plugin_load(case: Case) -> Load | None:
    """Return what happens with the plugin; None where it never comes to loading."""
    chosen = case.draft_class
    if chosen is None or case.plugin_config is None or not case.draft.tensors:
        return None
    wanted = wanted_tensors(case, chosen, plugin=True)
    canonical = {canonical_name(name): name for name in case.draft.names}
    taken, unused = {}, []
    for found, name in canonical.items():
        renamed = found.replace("input_layernorm", "hidden_norm")
        if _LATER_INPUT_NORM.search(found) and renamed in wanted and renamed not in canonical:
            found = renamed  # what others call the norm of a later layer's input
        if found in wanted:
            taken[found] = name
        elif not NOT_WEIGHTS.search(found):
            unused.append(name)
    return _account(case, wanted, taken, unused)


def _account(
    case: Case, wanted: Mapping[str, Wanted], taken: Mapping[str, str], unused: list[str]
) -> Load:
    misshapen: dict[str, tuple[Shape, Shape]] = {}
    for canonical, name in taken.items():
        header = case.draft.tensors[canonical_name(name)]
        shape = wanted[canonical].shape
        # Packed forms have shapes of their own, which the quantisation checks.
        packed = case.is_quantised or (header.dtype not in FLOATS and canonical != "d2t")
        if shape is not None and not packed and header.shape != shape:
            misshapen[canonical] = (header.shape, shape)
    missing = tuple(n for n, want in wanted.items() if n not in taken and not want.optional)
    return Load(wanted, tuple(unused), missing, misshapen)


def _stock_name(name: str, chosen: DraftClass, own: Mapping[str, str]) -> str | None:
    for rename in chosen.renames:
        if rename.anywhere:
            name = name.replace(rename.old, rename.new)
        elif name.startswith(rename.old):
            name = rename.new + name.removeprefix(rename.old)
    if "d2t" in name:
        return "d2t" if "d2t" in own else None
    if chosen.takes_model_prefix and name not in own and not name.startswith("model.lm_head."):
        name = name.removeprefix("model.")
    return own.get(name)


def _own_name(canonical: str, chosen: DraftClass) -> str:
    if chosen.decoder == "midlayer" and canonical.startswith("layers.0."):
        return "midlayer." + canonical.removeprefix("layers.0.")
    return canonical


def wanted_tensors(case: Case, chosen: DraftClass, *, plugin: bool) -> dict[str, Wanted]:
    """Return what the class takes, by canonical name, as its config and this release have it."""
    config = (case.plugin_config if plugin else case.stock_config) or {}
    sizes = stated_sizes(config, config)
    hidden, target = sizes.hidden, sizes.target_hidden
    num_aux, vocab = case.built_num_aux, sizes.vocab
    states = target * num_aux if target and num_aux else None
    own_width = config.get("target_hidden_size") in (None, hidden)
    nested = config.get("eagle_config")
    takes_states = not isinstance(nested, Mapping) or nested.get("use_aux_hidden_state", True)
    wanted = {
        "embed_tokens.weight": Wanted(_shape(vocab, hidden), own_width),
        # The plugin forces the states on for an fc over several of them.
        "fc.weight": Wanted(
            _shape(hidden, states),
            not takes_states and not (plugin and (case.draft.num_aux or 0) > 1),
        ),
        "norm.weight": Wanted(_shape(hidden)),
    }
    if config.get("bias"):
        wanted["fc.bias"] = Wanted(_shape(hidden))
    draft_vocab = config.get("draft_vocab_size")
    if not config.get("tie_word_embeddings"):
        lent = draft_vocab is None
        wanted["lm_head.weight"] = Wanted(_shape(vocab if lent else draft_vocab, hidden), lent)
    reduced = type(draft_vocab) is int and vocab is not None and draft_vocab < vocab
    wanted["d2t"] = Wanted(_shape(draft_vocab if type(draft_vocab) is int else None), not reduced)
    if case.stock_computes("norm_before_fc") or (plugin and case.asked("norm_before_fc")):
        wanted["input_norm.weight"] = Wanted(_shape(states))
    if case.stock_computes("fc_norm") or (plugin and case.asked("fc_norm", "use_aux_norm")):
        # A config may state any number; one more than there are tensors is missing already.
        for number in range(min(num_aux or 0, len(case.draft.tensors) + 1)):
            wanted[f"fc_norm.{number}.weight"] = Wanted(_shape(target))
    count = config.get("num_hidden_layers")
    layers = count if chosen.several_layers and type(count) is int else 1
    # Layers that the file has not at all are counted elsewhere.
    layers = min(layers, 1 + max(case.draft.layer_numbers, default=0))
    for number in range(layers):
        for name, want in _layer(case, sizes, number, plugin).items():
            wanted[f"layers.{number}.{name}"] = want
    return wanted


def _layer(case: Case, sizes: DraftSizes, number: int, plugin: bool) -> dict[str, Wanted]:
    hidden = sizes.hidden
    width = hidden * 2 if hidden and number == 0 else hidden
    weights: dict[str, Wanted] = {
        "input_layernorm.weight": Wanted(_shape(hidden), number > 0),
        "hidden_norm.weight": Wanted(_shape(hidden)),
        "post_attention_layernorm.weight": Wanted(_shape(hidden)),
        "mlp.gate_proj.weight": Wanted(_shape(sizes.intermediate, hidden)),
        "mlp.up_proj.weight": Wanted(_shape(sizes.intermediate, hidden)),
        "mlp.down_proj.weight": Wanted(_shape(hidden, sizes.intermediate)),
    }
    attention = _mla(sizes, width) if case.is_mla_class else _mha(case, sizes, width, plugin)
    return weights | {f"self_attn.{name}": want for name, want in attention.items()}


def _mha(case: Case, sizes: DraftSizes, width: int | None, plugin: bool) -> dict[str, Wanted]:
    config = (case.plugin_config if plugin else case.stock_config) or {}
    q_rows = _product(sizes.heads, sizes.head_dim)
    kv_rows = _product(sizes.kv_heads, sizes.head_dim)
    wanted = {
        "q_proj.weight": Wanted(_shape(q_rows, width)),
        "k_proj.weight": Wanted(_shape(kv_rows, width)),
        "v_proj.weight": Wanted(_shape(kv_rows, width)),
        "o_proj.weight": Wanted(_shape(sizes.hidden, q_rows)),
    }
    if config.get("attention_bias") or config.get("bias"):
        wanted["o_proj.bias"] = Wanted(_shape(sizes.hidden))
    if plugin and case.is_llama_config and case.asked("attention_bias"):
        for part, rows in (("q", q_rows), ("k", kv_rows), ("v", kv_rows)):
            wanted[f"{part}_proj.bias"] = Wanted(_shape(rows))
    if plugin and case.is_llama_config and case.asked("qk_norm"):
        wanted |= {f"{part}_norm.weight": Wanted(_shape(sizes.head_dim)) for part in "qk"}
    return wanted


def _mla(sizes: DraftSizes, width: int | None) -> dict[str, Wanted]:
    nope, rope, value = sizes.qk_nope_head_dim, sizes.qk_rope_head_dim, sizes.v_head_dim
    per_q, per_kv = _sum(nope, rope), _sum(nope, value)
    return {
        "q_a_proj.weight": Wanted(_shape(sizes.q_lora_rank, width)),
        "q_a_layernorm.weight": Wanted(_shape(sizes.q_lora_rank)),
        "q_b_proj.weight": Wanted(_shape(_product(sizes.heads, per_q), sizes.q_lora_rank)),
        "kv_a_proj_with_mqa.weight": Wanted(_shape(_sum(sizes.kv_lora_rank, rope), width)),
        "kv_a_layernorm.weight": Wanted(_shape(sizes.kv_lora_rank)),
        "kv_b_proj.weight": Wanted(_shape(_product(sizes.heads, per_kv), sizes.kv_lora_rank)),
        "o_proj.weight": Wanted(_shape(sizes.hidden, _product(sizes.heads, value))),
    }


def stock_effect_of_shapes(case: Case, names: Collection[str]) -> Outcome:
    """Return what stock SGLang does with these misshapen tensors: cut them, or stop.

    Those that it drops by their names it never looks at.
    """
    load = stock_load(case)
    shapes = load.misshapen if load else {}
    stops = any(_stops(name, *shapes[name]) for name in names if name in shapes)
    return "refuses" if stops or load is None else "degraded"


def _stops(name: str, found: Shape, wanted: Shape) -> bool:
    """Whether loading raises over the shape: on a GPU it does over one too small to be cut."""
    axis = 0 if _ROWS_CUT.search(name) else 1 if _COLUMNS_CUT.search(name) else None
    if name == "d2t":
        return False
    if axis is None or len(found) != len(wanted):
        return True
    others_fit = all(
        f == w for i, (f, w) in enumerate(zip(found, wanted, strict=True)) if i != axis
    )
    return not others_fit or found[axis] < wanted[axis]


def _shape(*sizes: int | None) -> Shape | None:
    known = tuple(size for size in sizes if size is not None)
    return known if len(known) == len(sizes) else None


def _product(a: int | None, b: int | None) -> int | None:
    return a * b if a and b else None


def _sum(a: int | None, b: int | None) -> int | None:
    return a + b if a and b else None
