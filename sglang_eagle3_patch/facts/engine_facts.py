"""`EngineFacts`: what one SGLang release names, supports and forgets, as one value.

None always means that the source didn't tell, never "no".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# How a target's setter turns the ids of a draft's config into the layers whose inputs it captures.
PLUS_ONE = "plus_one"
PLUS_ONE_IF_FIRST_IS_1 = "plus_one_if_first_is_1"
AS_IS_IF_MAX_IS_NUM_LAYERS = "as_is_if_max_is_num_layers"

# Layers captured when the draft names none, by their inputs, for a target of N layers.
USUAL_DEFAULT = "2,N//2,N-3"
ONE_LATER_DEFAULT = "3,N//2+1,N-2"


@dataclass(frozen=True)
class Rename:
    """A renaming of checkpoint tensors that the draft's own `load_weights` does.

    old, new: what is replaced by what.
    anywhere: whether `old` is replaced wherever it occurs, or only at the start of a name.
    """

    old: str
    new: str
    anywhere: bool


@dataclass(frozen=True)
class DraftClass:
    """What one of SGLang's EAGLE-3 draft classes does with a checkpoint.

    decoder: the attribute that holds the decoder, "midlayer" (one layer) or "layers" (a list);
        after the renames, weight names must begin with it.
    several_layers: whether it builds `num_hidden_layers` layers; False: it refuses all but one.
    renames: what `load_weights` renames, in its order.
    takes_model_prefix: whether names that begin with `model.` are found too.
    norm_flags: the config flags about norms that are read: any other flag changes nothing.
    draft_window: whether `--speculative-draft-window-size` reaches its attention.
    num_aux_from: the config fields that give the number of aux hidden states, first one wins;
        empty where the number is fixed.
    num_aux_default: the number where none of them is there.
    draft_vocab_size_optional: whether the config may lack `draft_vocab_size`; False: that is an
        AttributeError. A null means the target's head in every release.
    """

    decoder: str | None
    several_layers: bool | None
    renames: tuple[Rename, ...]
    takes_model_prefix: bool | None
    norm_flags: tuple[str, ...]
    draft_window: bool
    num_aux_from: tuple[str, ...] | None
    num_aux_default: int | None
    draft_vocab_size_optional: bool | None


@dataclass(frozen=True)
class TargetClass:
    """What a registered model class can do as the target of an EAGLE-3 draft.

    captures: has `set_eagle3_layers_to_capture`, without which EAGLE3 can't start.
    gives_embed_and_head: has `get_embed_and_head`, without which no EAGLE draft can start.
    takes_embed_and_head: has `set_embed_and_head`.
    explicit_ids: the rule for ids that the draft's config names (one of this module's), None
        where the setter follows none of them or hands on to a class that isn't known.
    default_ids: the layers captured when it names none, likewise.
    delegates_to: the class whose setter it calls, where it calls another's.
    holds_language_model: its instances have a `language_model`, whose methods can be lent to them.
    language_model: the class of that, where it is one that the source names.
    """

    captures: bool | None
    gives_embed_and_head: bool | None
    takes_embed_and_head: bool | None
    explicit_ids: str | None = None
    default_ids: str | None = None
    delegates_to: str | None = None
    holds_language_model: bool | None = False
    language_model: str | None = None

    def captured_layers(self, ids: Sequence[int] | None, num_layers: int) -> tuple[int, ...] | None:
        """Return the layers, by their inputs, whose states a target of `num_layers` captures.

        `ids` are those of the draft's `eagle_config`, None where it has none. None: not known.
        """
        if ids is None:
            later = {USUAL_DEFAULT: 0, ONE_LATER_DEFAULT: 1}.get(self.default_ids or "")
            if later is None:
                return None
            return tuple(layer + later for layer in (2, num_layers // 2, num_layers - 3))
        if self.explicit_ids == PLUS_ONE:
            shift = 1
        elif self.explicit_ids == PLUS_ONE_IF_FIRST_IS_1:
            shift = int(bool(ids) and ids[0] == 1)
        elif self.explicit_ids == AS_IS_IF_MAX_IS_NUM_LAYERS:
            shift = int(not ids or max(ids) != num_layers)
        else:
            return None
        return tuple(layer + shift for layer in ids)


@dataclass(frozen=True)
class LaunchFacts:
    """The command line of a release, as far as speculation goes.

    speculative_flags: every `--speculative-*` of its parser, aliases and deprecated ones too.
    load_formats: the choices of `--load-format` (and `--speculative-draft-load-format`) before
        any plugin adds its own.
    """

    speculative_flags: tuple[str, ...]
    load_formats: tuple[str, ...] | None

    @property
    def draft_quantization(self) -> str | None:
        """The flag for the draft's quantization, else the target's; None: there is none."""
        return self._flag("--speculative-draft-model-quantization")

    @property
    def draft_attention_backend(self) -> str | None:
        """The flag for the draft's attention backend; None: there is none."""
        return self._flag("--speculative-draft-attention-backend")

    @property
    def draft_window(self) -> str | None:
        """The flag for the draft's attention window; None: there is none."""
        return self._flag("--speculative-draft-window-size")

    def _flag(self, name: str) -> str | None:
        return name if name in self.speculative_flags else None


@dataclass(frozen=True)
class WorkerFacts:
    """How a release runs EAGLE.

    classes: the worker classes of `srt/speculative`, by name.
    default: the one that runs EAGLE-3 (one layer, topk 1, overlap on) unless told otherwise.
    capture_ids_from: where the target's capture looks for layer ids in the draft's config:
        "eagle_config", "top level".
    layers_set_before_graphs: whether the draft's ids are set before the target's CUDA graphs are
        captured; False: the graphs capture the default layers, whatever the draft says.
    accepted_lists: for each result class, its list of accepted drafts (without the bonus token)
        per request, which lies on the host.
    plugins: whether there is a plugin framework (`sglang.srt.plugins`).
    cpu_eagle: whether EAGLE has a CPU path.
    """

    classes: tuple[str, ...]
    default: str | None
    capture_ids_from: tuple[str, ...] | None
    layers_set_before_graphs: bool | None
    accepted_lists: Mapping[str, str]
    plugins: bool
    cpu_eagle: bool


@dataclass(frozen=True)
class EngineFacts:
    """One SGLang release.

    release: as on the package index; None for a source tree that doesn't say.
    requires_python, transformers: specifiers of the distribution, None without its metadata.
    drafts: the EAGLE-3 draft classes it has, by architecture.
    targets: every registered architecture, the drafts' own among them.
    """

    release: str | None
    requires_python: str | None
    transformers: str | None
    drafts: Mapping[str, DraftClass]
    targets: Mapping[str, TargetClass]
    launch: LaunchFacts
    workers: WorkerFacts
