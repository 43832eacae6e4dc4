"""Rules about shapes: of the file against the config, of `fc` against the target."""

from __future__ import annotations

from sglang_eagle3_patch.checkpoint.rules.answers import (
    NO_TARGET,
    OK,
    Answer,
    counted,
    listed,
    rule,
    wrong,
)
from sglang_eagle3_patch.checkpoint.rules.case import Case
from sglang_eagle3_patch.checkpoint.rules.loading import plugin_load, stock_effect_of_shapes

# Rules of their own tell of these.
_OWN_RULES = ("fc.weight", "embed_tokens.weight", "lm_head.weight", "d2t")


@rule("E3-shapes-config", "error")
def config_shapes(case: Case) -> Answer:
    """Tensors have other shapes than the config says.

    Cause: a hand-written config: head_dim, head counts or intermediate_size of another model.
    SGLang's fused and parallel linears cut a tensor that is too large, without a word.

    Remedy: correct the sizes in the config by the shapes.
    """
    load = plugin_load(case)
    if load is None or not case.attention_fits:
        return OK
    found = {n: shapes for n, shapes in load.misshapen.items() if n not in _OWN_RULES}
    if not found:
        return OK
    told = [f"{n} {list(has)}, by the config {list(want)}" for n, (has, want) in found.items()]
    sizes = case.draft.shaped_sizes.differing(case.draft.stated_sizes)
    return wrong(
        f"{counted(len(found), 'tensor')} of other shapes than the config says: {listed(told, 2)}",
        "correct the sizes in its config.json"
        + (f" ({listed(f'{k} is {a}' for k, (a, _) in sizes.items())})" if sizes else ""),
        stock=stock_effect_of_shapes(case, found),
        plugin="refuses",
        misshapen={n: [list(has), list(want)] for n, (has, want) in found.items()},
    )


@rule("E3-shapes-fc", "error")
def fc_shape(case: Case) -> Answer:
    """`fc` is not made for the number and width of aux hidden states that SGLang builds it for.

    Cause: `fc` takes A states of the target's width side by side. SGLang builds it for as many as
    `eagle_config` names layers, else for three; up to 0.5.11 always for three.

    Remedy: state in the config as many layer ids, and the `target_hidden_size`, that `fc` is for.
    """
    load = plugin_load(case)
    shapes = load.misshapen.get("fc.weight") if load else None
    if shapes is None:
        return OK
    has, want = shapes
    return wrong(
        f"fc is {list(has)}, and SGLang builds it as {list(want)} for {case.built_num_aux} states "
        f"of {case.draft.target_hidden_size}",
        "state in its config.json the layer ids and the target_hidden_size that fc is made for",
        stock=stock_effect_of_shapes(case, ["fc.weight"]),
        plugin="refuses",
        fc=list(has),
        built=list(want),
        num_aux=case.built_num_aux,
    )


@rule("E3-shapes-fc-skipped", "error")
def fc_skipped(case: Case) -> Answer:
    """`fc` takes as many values as the draft is wide, and so is skipped.

    Cause: SGLang applies `fc` only if the states' width differs from the embedding's. With one aux
    state of the draft's own width, or three of a third of it, it never does.

    Remedy: none: no release and no patch tells the two apart.
    """
    fc, hidden = case.draft.tensors.get("fc.weight"), case.draft.sizes.hidden
    if fc is None or len(fc.shape) != 2 or fc.shape[1] != hidden:
        return OK
    return wrong(
        f"fc takes {fc.shape[1]} values, as many as the draft is wide: SGLang skips it",
        "serve it with an engine that does not decide by width",
        stock="degraded",
        plugin="refuses",
        fc=list(fc.shape),
        hidden=hidden,
    )


@rule("E3-shapes-eagle1", "error")
def eagle1(case: Case) -> Answer:
    """The attention takes the hidden state alone: an EAGLE-1 or MTP draft.

    Cause: an EAGLE-3 draft's first layer takes the embedding beside the hidden state, so q is 2H
    wide. In EAGLE-1 `fc` joins the two before, and q is H wide.

    Remedy: serve it as the algorithm it was trained for.
    """
    if case.draft.attention != "mha":
        return OK
    q = case.draft.tensors.get("layers.0.self_attn.q_proj.weight")
    hidden = case.draft.sizes.hidden
    if q is None or not hidden or len(q.shape) != 2 or q.shape[1] != hidden:
        return OK
    return wrong(
        f"q takes {hidden} values and not {2 * hidden}: this is no EAGLE-3 draft",
        "serve it with --speculative-algorithm EAGLE, under its own architecture",
        stock="refuses",
        plugin="refuses",
        q=list(q.shape),
        hidden=hidden,
    )


@rule("E3-shapes-target-width", "error")
def target_width(case: Case) -> Answer:
    """The draft was trained on a target of another width.

    Cause: `fc` takes states of the width that the draft's config states; this target hands over
    others.

    Remedy: give the target that the draft was trained for.
    """
    if case.target is None:
        return NO_TARGET
    trained, given = case.draft.target_hidden_size, case.target.hidden_size
    if trained is None or given is None or trained == given:
        return OK
    return wrong(
        f"the draft was trained on states of width {trained}, and {case.target.name} has {given}",
        "give the target that it was trained for",
        stock="refuses",
        plugin="refuses",
        trained=trained,
        given=given,
    )
