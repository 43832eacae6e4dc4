"""Rules about norms that a draft was trained with and its class may not compute."""

from __future__ import annotations

from sglang_eagle3_patch.checkpoint.config import is_speculators
from sglang_eagle3_patch.checkpoint.flags import norm_output_alone, stated_flag
from sglang_eagle3_patch.checkpoint.layouts import canonical_name
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
from sglang_eagle3_patch.checkpoint.rules.loading import plugin_load
from sglang_eagle3_patch.checkpoint.rules.names import STATE_NORMS

_RETRAIN = "serve a draft that was trained without it, or use the plugin"


def _lacking(case: Case, flag: str, why: str) -> Answer:
    return wrong(
        f"{flag} is true, {why}",
        mended_by(case, "draft-forward", _RETRAIN),
        stock="degraded",
        plugin="serves",
        flag=flag,
    )


@rule("E3-flags-norm-before-residual", "error")
def norm_before_residual(case: Case) -> Answer:
    """The residual of the first layer was trained to be the normed hidden state.

    Cause: `norm_before_residual`, on by default in speculators' trainers. No SGLang release
    computes it, and it can't be folded into weights.

    Remedy: serve it with the plugin, which puts it in.
    """
    if case.draft_class is None or not case.asked("norm_before_residual"):
        return OK
    return _lacking(case, "norm_before_residual", "which no SGLang release computes")


@rule("E3-flags-residual-unstated", "error")
def residual_unstated(case: Case) -> Answer:
    """It is not stated whether the residual was trained normed.

    Cause: a config without `norm_before_residual`. speculators' trainers default to true, its
    config class to false; elsewhere only the trainer knows.

    Remedy: write `norm_before_residual` into the config as it was trained.
    """
    config = case.draft.config
    # A key that is null was written by someone who did not know.
    null = config.get("norm_before_residual", "") is None
    if stated_flag(config, "norm_before_residual") is not None:
        return OK
    if case.draft.flags.norm_before_residual is not None and not null:
        return OK
    remedy = 'write "norm_before_residual": true or false into its config.json, as it was trained'
    if is_speculators(config) or null:
        return wrong(
            "norm_before_residual is unstated, and trainers differ in what they take it for",
            remedy,
            stock="unknown",
            plugin="refuses",
        )
    return unknown(
        "norm_before_residual is unstated and the trainer unknown; it is taken for false, and "
        "speculators trains with true",
        remedy,
        stock="serves",
        plugin="serves",
    )


@rule("E3-flags-norm-before-fc", "error")
def norm_before_fc(case: Case) -> Answer:
    """All aux states of a token were trained to be normed at once before `fc`.

    Cause: `norm_before_fc`, computed by the llama class since 0.5.17 and by the class with latent
    attention not at all.

    Remedy: serve it with the plugin, which puts it in.
    """
    if case.draft_class is None or not case.asked("norm_before_fc"):
        return OK
    if case.stock_computes("norm_before_fc"):
        return OK
    return _lacking(case, "norm_before_fc", f"and the class of {case.release} has no input_norm")


@rule("E3-flags-fc-norm", "error")
def fc_norm(case: Case) -> Answer:
    """Each aux state was trained to be normed by itself before `fc`.

    Cause: `fc_norm` (older: `use_aux_norm`), computed by the llama class since 0.5.12 and by the
    class with latent attention since 0.5.13.

    Remedy: serve it with the plugin, which puts it in.
    """
    if case.draft_class is None or not case.asked("fc_norm", "use_aux_norm"):
        return OK
    if case.stock_computes("fc_norm"):
        return OK
    return _lacking(case, "fc_norm", f"and the class of {case.release} has no fc_norm")


@rule("E3-flags-norm-output", "error")
def norm_output(case: Case) -> Answer:
    """What recurs to the next draft step was trained to be normed.

    Cause: `norm_output` (TensorRT-LLM: `return_hidden_post_norm`), computed since 0.5.12, by the
    class with latent attention since 0.5.13, and only from the config's top level.

    Remedy: serve it with the plugin, which puts it in.
    """
    explicit = bool(stated_flag(case.draft.config, "return_hidden_post_norm"))
    recurs = explicit or case.draft.producer.norm_output != "head"
    if case.draft_class is None or not recurs or case.stock_computes("norm_output"):
        return OK
    if not case.asked("norm_output", "return_hidden_post_norm"):
        return OK
    return _lacking(case, "norm_output", f"and the class of {case.release} recurs before the norm")


@rule("E3-flags-norm-output-meaning", "error")
def norm_output_meaning(case: Case) -> Answer:
    """`norm_output` may mean another thing to the draft's trainer than to SGLang.

    Cause: until September 2026 SpecForge switched the norm before the head by it and never normed
    what recurs; since then it means what recurs, as in SGLang. The file does not tell its date.

    Remedy: say what recurs: write `return_hidden_post_norm` into `eagle_config`, and drop the key.
    """
    stated, meaning = norm_output_alone(case.draft.config), case.draft.producer.norm_output
    if stated is not None and meaning == "head":
        return wrong(
            f"norm_output is {str(stated).lower()}, by which SpecForge meant the norm before the "
            "head until September 2026, and what recurs since",
            "write return_hidden_post_norm: true or false, as it was trained, into its "
            "eagle_config, and drop norm_output",
            stock="unknown",
            plugin="refuses",
            norm_output=stated,
        )
    if stated and meaning == "unknown":
        return unknown(
            "norm_output is true, which means the norm before the head to SpecForge and what "
            "recurs to others; who wrote this draft can't be told",
            "ask whoever trained it; write return_hidden_post_norm into its eagle_config",
        )
    return OK


@rule("E3-flags-no-last-norm", "error")
def no_last_norm(case: Case) -> Answer:
    """The draft was trained without a norm before its head.

    Cause: `use_last_layernorm: false` of ModelOpt. SGLang always norms there.

    Remedy: none: serve a draft that was trained with it.
    """
    if stated_flag(case.draft.config, "use_last_layernorm") is not False:
        return OK
    return wrong(
        "the draft was trained without the norm before its head, which SGLang always computes",
        "serve a draft that was trained with it",
        stock="degraded",
        plugin="refuses",
    )


@rule("E3-flags-double-norm", "warning")
def double_norm(case: Case) -> Answer:
    """The trainer norms the hidden state twice.

    Cause: ModelOpt's trainer leaves the first layer's own norm in place before `hidden_norm`. No
    SGLang release computes that, and a little acceptance is lost.

    Remedy: serve it with the plugin, which puts it in where it recognises the trainer.
    """
    if case.draft_class is None or not case.draft.flags.double_input_norm:
        return OK
    return wrong(
        f"{case.draft.producer.name} trains with the hidden state normed twice, which no SGLang "
        "release computes",
        mended_by(case, "draft-forward", _RETRAIN),
        stock="degraded",
        plugin="serves",
    )


@rule("E3-flags-tensors", "error")
def norms_without_flag(case: Case) -> Answer:
    """The file has norms of the aux states, and the config does not ask for them.

    Cause: an exporter that lost `norm_before_fc` or `fc_norm`. SGLang builds by the config and
    drops the tensors.

    Remedy: write the flag into the config.
    """
    load = plugin_load(case)
    names = [n for n in load.unused if STATE_NORMS.search(canonical_name(n))] if load else []
    if not names:
        return OK
    before_fc = any(canonical_name(name).startswith("input_norm") for name in names)
    flag = "norm_before_fc" if before_fc else "fc_norm"
    return wrong(
        f"the file has {listed(names)}, and the config does not say {flag}",
        f'write "{flag}": true into its config.json',
        stock="degraded",
        plugin="refuses",
        tensors=names,
        flag=flag,
    )
