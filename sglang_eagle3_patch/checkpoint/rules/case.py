"""`Case`: a draft, its target, a release and a launch, as the rules judge them together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from sglang_eagle3_patch.checkpoint.config import (
    ConfigNotUnderstood,
    as_llama,
    from_speculators,
    is_speculators,
)
from sglang_eagle3_patch.checkpoint.corrected_config import corrected_config
from sglang_eagle3_patch.checkpoint.flags import stated_flag
from sglang_eagle3_patch.checkpoint.launch import LaunchArguments
from sglang_eagle3_patch.checkpoint.quantisation import QUANTISATION_FILES, QUANTISATION_KEYS
from sglang_eagle3_patch.checkpoint.rules.small_values import SmallValues
from sglang_eagle3_patch.checkpoint.spec import DraftSpec
from sglang_eagle3_patch.checkpoint.target import TargetSpec
from sglang_eagle3_patch.facts.engine_facts import DraftClass, EngineFacts, TargetClass

MLA_ARCHITECTURE = "Eagle3DeepseekV2ForCausalLM"
IDS = "eagle_aux_hidden_state_layer_ids"
_NO_ARGUMENTS = LaunchArguments()


@dataclass(frozen=True)
class Case:
    """What is judged.

    `plugin`: whether the verdict wanted is the plugin's; remedies follow it. `values`: the small
    values of a local checkpoint. `files`: the names in the draft's folder, None where unknown.
    `perhaps_known`: draft classes and launch flags that the release does not know and the installed
    SGLang may, being a fork or having more registered with it.
    """

    draft: DraftSpec
    target: TargetSpec | None
    engine: EngineFacts
    launch: LaunchArguments = _NO_ARGUMENTS
    plugin: bool = True
    values: SmallValues | None = None
    files: tuple[str, ...] | None = None
    perhaps_known: frozenset[str] = frozenset()

    @property
    def release(self) -> str:
        """The release, for a message."""
        return self.engine.release or "this source tree"

    def before(self, release: str) -> bool | None:
        """Whether the release is older than `release`; None for a tree that doesn't say."""
        try:
            return Version(self.engine.release or "") < Version(release)
        except InvalidVersion:
            return None

    @cached_property
    def stock_config(self) -> Mapping[str, Any] | None:
        """The config as stock SGLang reads it; it can't read speculators' form."""
        return None if is_speculators(self.draft.config) else self.draft.config

    @cached_property
    def plugin_config(self) -> Mapping[str, Any] | None:
        """The config as SGLang gets it from the plugin; None when it refuses to translate it.

        What draft-config and embed-head do with it, in that order.
        """
        config = self.draft.config
        if is_speculators(config):
            if config["speculators_model_type"] != "eagle3":
                return None
            try:
                config = from_speculators(as_llama(config))
            except ConfigNotUnderstood:
                return None
        return corrected_config(config, self.draft)

    @cached_property
    def architecture(self) -> str | None:
        """The draft class's name in this release, by the config; None where it has none."""
        stated = (self.plugin_config or {}).get("architectures")
        # SGLang takes the first architecture that is registered.
        names = stated if isinstance(stated, list) else []
        return next((str(name) for name in names if str(name) in self.engine.drafts), None)

    @property
    def draft_class(self) -> DraftClass | None:
        """What the draft class does with a checkpoint."""
        return self.engine.drafts.get(self.architecture or "")

    @property
    def is_mla_class(self) -> bool:
        """Whether the draft class is the one with latent attention."""
        return self.architecture == MLA_ARCHITECTURE

    @property
    def attention_fits(self) -> bool:
        """Whether the tensors' kind of attention is the class's; true where it can't be told."""
        if self.draft_class is None or not self.draft.tensors or self.draft.attention is None:
            return True
        return (self.draft.attention == "mla") == self.is_mla_class

    @property
    def is_llama_config(self) -> bool:
        """Whether the plugin takes flags of a llama layer from the config."""
        return (self.plugin_config or {}).get("model_type") == "llama"

    @cached_property
    def reads_old_rope(self) -> bool:
        """Whether the release's transformers is version 4, which reads `rope_theta` alone."""
        if self.engine.transformers is not None:
            return SpecifierSet(self.engine.transformers).contains("4.57.1")
        return bool(self.before("0.5.10"))

    @cached_property
    def is_quantised(self) -> bool:
        """Whether the checkpoint says that it is quantised, in its config or a file beside it."""
        stated = any(self.draft.config.get(key) for key in QUANTISATION_KEYS)
        return stated or any(name in (self.files or ()) for name in QUANTISATION_FILES)

    @property
    def target_class(self) -> TargetClass | None:
        """What the target's class can do, None when none is given or the release has none."""
        for name in self.target.architectures if self.target else ():
            if name in self.engine.targets:
                return self.engine.targets[name]
        return None

    @cached_property
    def lent_class(self) -> TargetClass | None:
        """What the target can do with the plugin, which lends a wrapper the methods of its language
        model that it lacks; None where its own class isn't known.

        The class of the language model is the one that the source names, else the config's.
        """
        own = self.target_class
        if own is None or not own.holds_language_model:
            return own
        stated = self.target.text_architectures if self.target else ()
        named = (own.language_model,) if own.language_model else stated
        inner = next(
            (self.engine.targets[name] for name in named if name in self.engine.targets),
            TargetClass(None, None, None),
        )
        setter = own if own.captures else inner
        return replace(
            setter,
            captures=own.captures or inner.captures,
            gives_embed_and_head=own.gives_embed_and_head or inner.gives_embed_and_head,
            takes_embed_and_head=own.takes_embed_and_head or inner.takes_embed_and_head,
        )

    def asked(self, *names: str) -> bool:
        """Whether the config that the plugin hands on asks for a flag of these names."""
        return bool(stated_flag(self.plugin_config or {}, *names))

    def stock_computes(self, flag: str) -> bool:
        """Whether the draft class computes a flag about norms by itself, given this config.

        As in SGLang: `norm_before_fc` is looked for in `eagle_config` too, the others at the top.
        """
        read = self.draft_class.norm_flags if self.draft_class else ()
        config = self.plugin_config or {}
        if flag == "norm_before_fc":
            return flag in read and self.asked(flag)
        names = ("fc_norm", "use_aux_norm") if flag == "fc_norm" else (flag,)
        return any(name in read and bool(config.get(name)) for name in names)

    @cached_property
    def built_num_aux(self) -> int | None:
        """How many aux hidden states the `fc` is built for."""
        chosen = self.draft_class
        if chosen is None or chosen.num_aux_from is None:
            return None
        for path in chosen.num_aux_from:
            value: Any = self.plugin_config
            for key in path.split("."):
                value = value.get(key) if isinstance(value, Mapping) else None
            if isinstance(value, list) and value:
                return len(value)
            if type(value) is int and value > 0:
                return value
        return chosen.num_aux_default

    @property
    def vocabularies(self) -> tuple[int | None, int | None]:
        """The draft's vocabulary and the target's, by the config that the plugin hands on."""
        config = self.plugin_config or {}
        draft, vocab = config.get("draft_vocab_size"), config.get("vocab_size")
        return (draft if type(draft) is int else None), (vocab if type(vocab) is int else None)

    def found_ids(self) -> tuple[int, ...] | None:
        """The layer ids that SGLang finds, in `eagle_config` alone; None is none."""
        return _nested_ids(self.plugin_config or {})


def _nested_ids(config: Mapping[str, Any]) -> tuple[int, ...] | None:
    nested = config.get("eagle_config")
    ids = nested.get(IDS) if isinstance(nested, Mapping) else None
    return tuple(ids) if isinstance(ids, list) and all(type(i) is int for i in ids) else None
