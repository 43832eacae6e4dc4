"""What keeps a draft from being converted: each check gives a reason and the way out."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sglang_eagle3_patch.checkpoint import vocab_map
from sglang_eagle3_patch.checkpoint.config import is_speculators
from sglang_eagle3_patch.checkpoint.conversion.config import ARCHITECTURES, NEUTRAL
from sglang_eagle3_patch.checkpoint.conversion.options import Options
from sglang_eagle3_patch.checkpoint.conversion.source import Stored
from sglang_eagle3_patch.checkpoint.flags import DraftFlags, undated_flag
from sglang_eagle3_patch.checkpoint.inventory import required_names, unused_names
from sglang_eagle3_patch.checkpoint.rope import RopeUnavailable
from sglang_eagle3_patch.checkpoint.spec import DraftSpec
from sglang_eagle3_patch.checkpoint.trained_rope import shown

_OTHER_HEAD = "serve it as what it is, or train an EAGLE-3 draft"
_RETRAIN = "train the draft without it"
_FROM_TRAINER = "take it from the trainer's own output"
_FLAG = "say how it was trained: --flag"
# The words to choose from, by the flag that only the draft's date decides.
_BY_DATE = {
    "norm_output": "norm_output=false if before September 2026, --flag norm_output=true if since",
    "norm_before_head": "norm_before_head=true if since September 2026 (before, it was trained "
    "without that norm, which nothing in SGLang computes)",
}


@dataclass(frozen=True)
class Problem:
    """A reason not to convert. `plugin` tells that the plugin mends it when the draft is served."""

    reason: str
    fix: str
    plugin: bool = False


def problems(
    spec: DraftSpec, flags: DraftFlags, stored: Mapping[str, Stored], options: Options
) -> Iterator[Problem]:
    """Return all that is wrong with a draft; `stored` has its tensors by canonical names."""
    found = [*_architecture(spec)]
    if found:  # of another kind of draft, nothing below makes sense
        yield from found
        return
    yield from _tensors(spec, flags)
    yield from _sizes(spec, options)
    yield from _forward(spec, flags)
    yield from _release(spec, flags, options)
    yield from _rope(spec)
    yield from _vocabulary(spec, stored)
    yield from _values(spec, stored)


def _architecture(spec: DraftSpec) -> Iterator[Problem]:
    kind = spec.config.get("speculators_model_type")
    if is_speculators(spec.config) and kind not in ("eagle3", "peagle"):
        yield Problem(f"it is a {kind} draft of speculators, no EAGLE-3", _OTHER_HEAD)
    if kind == "peagle" or "mask_hidden" in spec.tensors or spec.config.get("parallel_drafting"):
        yield Problem("it is a P-EAGLE draft (mask_hidden); SGLang has no class for it", _RETRAIN)
    elif strange := [n for n in spec.tensors if re.search(r"(^|\.)(eh_proj|enorm|hnorm)\.", n)]:
        yield Problem(f"it is an MTP draft or a variant with eh_proj ({strange[0]})", _OTHER_HEAD)
    elif not spec.tensors:
        yield Problem("the folder holds no weights", "give the folder of the checkpoint")
    elif spec.attention is None or "layers.0.hidden_norm.weight" not in spec.tensors:
        yield Problem(
            "layer 0 has no hidden_norm: it is an EAGLE-1 or MTP draft, or no draft", _OTHER_HEAD
        )


def _tensors(spec: DraftSpec, flags: DraftFlags) -> Iterator[Problem]:
    if spec.name_clashes:
        yield Problem(
            f"several tensors mean {', '.join(spec.name_clashes)}", "leave one layout in the folder"
        )
    if spec.layer_numbers != tuple(range(len(spec.layer_numbers))):
        yield Problem(f"it has the layers {list(spec.layer_numbers)}", _FROM_TRAINER)
    if flags.mlp_bias or flags.fc_bias:
        yield Problem("it has biases in its MLP or fc, which no SGLang class computes", _RETRAIN)
    required = {_either_norm(name, spec) for name in required_names(spec, flags)}
    if not spec.has_embedding and not _is_wider(spec):
        required.discard("embed_tokens.weight")
    required.discard("lm_head.weight")  # told with the vocabulary
    if missing := sorted(required - set(spec.tensors)):
        yield Problem(f"it lacks {', '.join(missing)}", _FROM_TRAINER)
    unused = [n for n in unused_names(spec.tensors, required | {"lm_head.weight"}) if _counts(n)]
    if unused:
        yield Problem(f"no EAGLE-3 class of SGLang has {', '.join(unused)}", _RETRAIN)


def _either_norm(name: str, spec: DraftSpec) -> str:
    """Later layers norm their input by `input_layernorm` or, as SGLang has it, `hidden_norm`."""
    other = name.replace(".input_layernorm.", ".hidden_norm.")
    later = not name.startswith("layers.0.")
    return other if later and other in spec.tensors and name not in spec.tensors else name


def _counts(name: str) -> bool:
    return not re.search(r"(^embed_tokens\.weight|(weight|input)_scale(_2|_inv)?)$", name)


def _is_wider(spec: DraftSpec) -> bool:
    return spec.sizes.hidden != spec.target_hidden_size


def _sizes(spec: DraftSpec, options: Options) -> Iterator[Problem]:
    differing = spec.shaped_sizes.differing(spec.stated_sizes)
    differing.pop("draft_vocab", None)
    differing.pop("num_aux", None)
    if differing:
        told = "; ".join(f"{k}: tensors {a}, config {b}" for k, (a, b) in differing.items())
        yield Problem(f"tensors and config differ ({told})", "correct config.json")
    if spec.num_aux is None:
        shape = list(spec.tensors["fc.weight"].shape) if "fc.weight" in spec.tensors else None
        yield Problem(
            f"fc {shape} takes no whole number of states of {spec.target_hidden_size}",
            "state the target's hidden_size as target_hidden_size",
        )
    elif spec.num_aux * (spec.target_hidden_size or 0) == spec.sizes.hidden:
        yield Problem("its fc keeps the width, and SGLang skips such an fc", _RETRAIN)
    if options.target and options.target.hidden != spec.target_hidden_size:
        yield Problem(
            f"it was trained for hidden states of {spec.target_hidden_size}, the target's have "
            f"{options.target.hidden}",
            "give the target that it was trained for",
        )


def _forward(spec: DraftSpec, flags: DraftFlags) -> Iterator[Problem]:
    if spec.activation not in (None, "silu"):
        yield Problem(f"hidden_act is {spec.activation}; SGLang refuses all but silu", _RETRAIN)
    dated = undated_flag(spec.config, spec.producer)
    if dated is not None and dated in flags.unstated:
        yield Problem(
            "norm_output is stated, by which SpecForge switched the norm before the head until "
            "September 2026 and what recurs since; the file does not tell its date",
            f"{_FLAG} {_BY_DATE[dated]}",
        )
    elif unstated := flags.unstated:
        yield Problem(
            f"{', '.join(unstated)}: unstated, and trainers differ in it",
            f"{_FLAG} {unstated[0]}=false, or =true",
        )
    if flags.norm_before_head is False:
        yield Problem(
            "it was trained without a norm before its head, which SGLang always computes", _RETRAIN
        )
    if flags.double_input_norm:
        yield Problem(
            f"its producer ({spec.producer.name}) norms the hidden state twice, which no SGLang "
            "computes, and the plugin by the original's form alone",
            "serve the original with the plugin; if this draft was trained otherwise, "
            f"{_FLAG} double_input_norm=false",
        )
    eagle = spec.config.get("eagle_config") or {}
    for key, neutral in NEUTRAL.items():
        if key in eagle and eagle[key] not in (None, neutral):
            yield Problem(f"eagle_config.{key} is {eagle[key]}, SGLang takes {neutral}", _RETRAIN)
    if flags.norm_before_residual:
        yield Problem("norm_before_residual is true, which no SGLang computes", "", plugin=True)
    if spec.config.get("embed_requires_grad") is True:
        yield Problem(
            "its embedding was trained, and SGLang overwrites it with the target's", "", plugin=True
        )
    if flags.qk_norm or flags.qkv_bias:
        what = "norms of q and k" if flags.qk_norm else "biases of q, k and v"
        mha = spec.attention == "mha"
        yield Problem(f"it has {what}, which SGLang's class lacks", _RETRAIN, plugin=mha)
    elif flags.o_bias:
        yield Problem("it has a bias of o_proj alone, which SGLang's class lacks", _RETRAIN)


def _release(spec: DraftSpec, flags: DraftFlags, options: Options) -> Iterator[Problem]:
    release = options.facts.release
    architecture = ARCHITECTURES[spec.attention or "mha"]
    draft_class = options.facts.drafts.get(architecture)
    if draft_class is None:
        yield Problem(
            f"SGLang {release} has no class for it ({architecture})",
            "give a newer --sglang-version: the MLA class came with 0.5.12",
        )
        return
    several = (spec.num_layers or 1) > 1
    if several and not draft_class.several_layers:
        yield Problem(
            f"{architecture} of SGLang {release} has one decoder layer, the draft "
            f"{spec.num_layers}",
            "serve it with 0.5.12 or newer, as an MHA draft",
        )
    for flag in ("norm_before_fc", "fc_norm", "norm_output"):
        if getattr(flags, flag) and flag not in draft_class.norm_flags:
            yield Problem(
                f"{flag} is true, which {architecture} of SGLang {release} ignores", "", plugin=True
            )
    fixed = not draft_class.num_aux_from and draft_class.num_aux_default
    if fixed and spec.num_aux not in (None, fixed):
        yield Problem(
            f"SGLang {release} takes {fixed} aux hidden states, the draft {spec.num_aux}",
            "give --sglang-version 0.5.12 or newer",
        )
    if flags.window is not None and len(flags.window_layers) != spec.num_layers:
        yield Problem(
            f"only its layers {list(flags.window_layers)} attend to a window, and SGLang gives all "
            "layers of a draft one window or none",
            "train all of its layers with one window, or none",
        )
    elif flags.window is not None and not draft_class.draft_window:
        yield Problem(
            f"it attends to a window of {flags.window} tokens, and {architecture} of SGLang "
            f"{release} has none for drafts",
            "give --sglang-version 0.5.12 or newer, for an MHA draft",
        )
    if spec.attention == "mla" and "layers.0.self_attn.q_a_proj.weight" not in spec.tensors:
        yield Problem("its queries are of full rank, and the MLA class wants q_lora_rank", _RETRAIN)


def _rope(spec: DraftSpec) -> Iterator[Problem]:
    if conflict := spec.trained_rope.conflict:
        top, nested = map(shown, conflict)
        yield Problem(
            f"rope_theta is {top}, and {nested} in rope_parameters or rope_scaling",
            "write the theta it was trained with in both places of its config.json",
        )
    rope = spec.rope
    if rope.kind == "dynamic":
        yield Problem(
            "its rope is dynamic, which SGLang scales in every context",
            "leave the scaling out: up to max_position_embeddings it is plain rope",
        )
    if spec.attention == "mla" or rope.kind != "yarn":
        return
    try:
        plain = type(rope)(scaling={"rope_type": "yarn", "factor": rope.scaling.get("factor")})
        differs = rope.amplitude(mla=False) != plain.amplitude(mla=False)
    except RopeUnavailable as error:
        yield Problem(str(error), "correct the rope in config.json")
        return
    if differs:
        yield Problem("its yarn has an amplitude that SGLang's class lacks", "", plugin=True)


def _vocabulary(spec: DraftSpec, stored: Mapping[str, Stored]) -> Iterator[Problem]:
    vocab, head = spec.sizes.vocab, spec.tensors.get("lm_head.weight")
    rows = head.shape[0] if head is not None else vocab
    if vocab is None:
        yield Problem("config.json states no vocab_size", "state the target's vocab_size")
        return
    if head is None:
        stated = spec.stated_sizes.draft_vocab
        if spec.has_d2t or stated not in (None, vocab) or _is_wider(spec):
            yield Problem("it lacks lm_head.weight, and the target's doesn't fit", _FROM_TRAINER)
        return
    if not spec.has_d2t:
        if rows != vocab:
            yield Problem(
                f"its head has {rows} of {vocab} tokens, and there is no d2t that says which",
                "take d2t from the trainer's own output (ModelOpt's Megatron export loses it)",
            )
        return
    found = d2t_kind(spec, stored)
    if found.kind == "broken" or (found.kind == "offset" and found.reason):
        shown = f" (the first: {list(found.values)})" if found.values else ""
        yield Problem(
            f"d2t does not map {rows} draft ids to {vocab} target ids: {found.reason}{shown}",
            "take d2t from the trainer anew, as offsets, with its t2d",
        )


def d2t_kind(spec: DraftSpec, stored: Mapping[str, Stored]) -> vocab_map.VocabMap:
    """Return what the draft's `d2t` is, checked against its head and its `t2d`.

    A `t2d` of another length or with another number of marks is padded or of another draft, and
    not asked. Raises `CheckpointUnreadable` for a `d2t` that holds no integers.
    """
    values = stored["d2t"].integers()
    marks = stored["t2d"].integers() if "t2d" in stored else None
    vocab = spec.sizes.vocab or 0
    if marks is not None and (len(marks) != vocab or sum(map(bool, marks)) != len(values)):
        marks = None
    head = spec.tensors.get("lm_head.weight")
    return vocab_map.check(values, vocab, head.shape[0] if head is not None else None, marks)


def _values(spec: DraftSpec, stored: Mapping[str, Stored]) -> Iterator[Problem]:
    norms = [t for n, t in stored.items() if n.startswith("layers.") and "norm.weight" in n]
    random = spec.producer.name == "speculators converter 0.2 to 0.4"
    if random and norms and all(tensor.is_all_ones() for tensor in norms):
        yield Problem(
            "its decoder was never trained: every norm is exactly 1, as speculators' converter 0.2 "
            "to 0.4 left it when it lost the weights of midlayer.*",
            "convert the source of that conversion instead",
        )
