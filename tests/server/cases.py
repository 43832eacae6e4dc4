"""The table of servers that the tests look at, and what is asked of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from tests.cpu_sglang import releases, server
from tests.cpu_sglang.pair import forms
from tests.cpu_sglang.pair.outlook import Outlook
from tests.server import other_drafts

PROMPTS = 4
OUTLOOK = Outlook.shipped()
ON = {server.VARIABLE: "1"}
TRACED = {f"{server.VARIABLE}_TRACE": "{folder}/trace.jsonl"}
# glibc fills fresh memory with the complement of this byte: 12.08 as float32. Without it a weight
# that was never loaded can happen to hold something useful.
POISONED = {"MALLOC_PERTURB_": "190"}
# Under our launcher, for what hooks do where the doctor would not let a server start.
NO_PREFLIGHT = ("--eagle3-no-preflight",)

Checkpoint = tuple[forms.Tensors, dict[str, Any]]


@dataclass(frozen=True)
class ServerCase:
    """One server: its draft (written anew for each, or a folder as it is), how it is started,
    what it is told."""

    draft: Callable[[], Checkpoint] | Path | None = None
    release: str = releases.DEFAULT
    algorithm: str | None = "EAGLE3"
    launcher: str = server.STOCK
    variables: dict[str, str] = field(default_factory=dict)
    arguments: Sequence[str] = ()
    topk: int = 1
    draft_tokens: int = 4
    tree: bool = False  # from source that the release's patch files were applied to
    ask_status: bool = False  # by `sglang-eagle3 status --server`, while it runs
    ray: bool = False  # its schedulers are actors of a Ray node that was there before
    converted: Sequence[str] | None = None  # by `sglang-eagle3 convert`, with these arguments
    engine: bool = False  # sgl.Engine in a script instead of a server; tells its own arguments
    # Instead of the usual prompts; gets the folder, which variables can name as `{folder}`.
    asks: Callable[[server.Server, Path], Any] | None = None


def without(name: str, build: Callable[[], Checkpoint] = forms.native) -> Callable[[], Checkpoint]:
    def damaged() -> Checkpoint:
        tensors, config = build()
        del tensors[name]
        return tensors, config

    return damaged


def founding_norm_before_residual() -> Checkpoint:
    """The second drafter in the founding form, whose config says nothing of its training."""
    return forms.rename_layer(
        forms.drafter_weights("drafter_norm_before_residual")
    ), forms.sglang_config()


def eagle1() -> Checkpoint:
    """An EAGLE-1 draft of random weights: other speculation that goes through the same workers."""
    config = {**forms.sglang_config(), "architectures": ["LlamaForCausalLMEagle"]}
    del config["draft_vocab_size"]
    generator = torch.Generator().manual_seed(1)
    shapes = {
        "fc.weight": (128, 256),
        "fc.bias": (128,),
        "layers.0.self_attn.q_proj.weight": (128, 128),
        "layers.0.self_attn.k_proj.weight": (64, 128),
        "layers.0.self_attn.v_proj.weight": (64, 128),
        "layers.0.self_attn.o_proj.weight": (128, 128),
        "layers.0.mlp.gate_proj.weight": (256, 128),
        "layers.0.mlp.up_proj.weight": (256, 128),
        "layers.0.mlp.down_proj.weight": (128, 256),
        "layers.0.post_attention_layernorm.weight": (128,),
    }
    tensors = {name: torch.randn(shape, generator=generator) / 12 for name, shape in shapes.items()}
    return tensors, config


CASES: dict[str, ServerCase] = {
    "reference": ServerCase(algorithm=None),
    "stock-a": ServerCase(forms.native),
    "stock-b": ServerCase(forms.founding),
    "stock-c": ServerCase(forms.speculators),
    "stock-d": ServerCase(forms.native, algorithm="EAGLE"),
    "stock-nbr": ServerCase(founding_norm_before_residual),
    "plugin-a": ServerCase(forms.native, launcher=server.OURS),
    "plugin-b": ServerCase(forms.founding, variables=ON, ask_status=True),
    "plugin-c": ServerCase(forms.speculators, launcher=server.SERVE, variables={**ON, **POISONED}),
    "plugin-d": ServerCase(forms.native, algorithm="EAGLE", launcher=server.OURS),
    "plugin-nbr": ServerCase(forms.SAVED_BY_SPECULATORS, launcher=server.OURS),
    "plugin-nbr-off": ServerCase(
        forms.SAVED_BY_SPECULATORS,
        launcher=server.OURS,
        variables={server.VARIABLE: "-draft-forward"},
    ),
    "stock-no-k": ServerCase(without("midlayer.self_attn.k_proj.weight"), variables=POISONED),
    "plugin-no-k": ServerCase(
        without("midlayer.self_attn.k_proj.weight"),
        launcher=server.OURS,
        variables=POISONED,
        arguments=NO_PREFLIGHT,
    ),
    "refused-no-k": ServerCase(without("midlayer.self_attn.k_proj.weight"), launcher=server.OURS),
    "plugin-tree": ServerCase(forms.founding, variables=ON, topk=2, draft_tokens=6),
    "plugin-dummy": ServerCase(
        forms.native, launcher=server.OURS, arguments=("--load-format", "dummy")
    ),
    "plugin-no-speculation": ServerCase(algorithm=None, variables=ON),
    "stock-nextn": ServerCase(eagle1, algorithm="NEXTN"),
    "plugin-nextn": ServerCase(eagle1, algorithm="NEXTN", launcher=server.OURS),
    "plugin-engine": ServerCase(forms.speculators, algorithm="EAGLE", variables=ON, engine=True),
    "stock-ngram": ServerCase(algorithm="NGRAM"),
    "plugin-ngram": ServerCase(algorithm="NGRAM", launcher=server.OURS),
}


# The founding release whole; what the others do is the matter of `matrix.py`.
KIMI_CAPTURE_ALONE = {server.VARIABLE: "kimi-capture"}
CASES |= {
    "0.5.9 reference": ServerCase(release="0.5.9", algorithm=None),
    "0.5.9 stock-a": ServerCase(forms.native, release="0.5.9"),
    "0.5.9 stock-d": ServerCase(forms.native, release="0.5.9", algorithm="EAGLE"),
    "0.5.9 partial-b": ServerCase(
        forms.founding, release="0.5.9", variables={**KIMI_CAPTURE_ALONE, **POISONED}
    ),
    "0.5.9 partial-d": ServerCase(
        forms.native, release="0.5.9", algorithm="EAGLE", variables=KIMI_CAPTURE_ALONE
    ),
    "0.5.9 plugin-a": ServerCase(forms.native, release="0.5.9", launcher=server.OURS),
    "0.5.9 plugin-b": ServerCase(forms.founding, release="0.5.9", variables=ON),
    "0.5.9 plugin-c": ServerCase(forms.speculators, release="0.5.9", variables=ON),
    "0.5.9 plugin-d": ServerCase(
        forms.native, release="0.5.9", algorithm="EAGLE", launcher=server.OURS
    ),
    "0.5.9 refused-no-k": ServerCase(
        without("midlayer.self_attn.k_proj.weight"), release="0.5.9", launcher=server.OURS
    ),
    "0.5.9 plugin-nbr": ServerCase(
        forms.SAVED_BY_SPECULATORS, release="0.5.9", launcher=server.OURS
    ),
}

# The same repairs as patches of the source, without the plugin but for one: the rows of the demo,
# and drafts trained as speculators does by default.


@dataclass(frozen=True)
class TreeDraft:
    """A draft served from patched source. `outlook`: under which name torch predicts it."""

    build: Callable[[], Checkpoint]
    algorithm: str = "EAGLE3"
    outlook: str = "trained"


TREE_DRAFTS = {
    "a": TreeDraft(forms.native),
    "b": TreeDraft(forms.founding),
    "c": TreeDraft(forms.speculators),
    "d": TreeDraft(forms.native, algorithm="EAGLE"),
    "nbr": TreeDraft(forms.speculators_weak, outlook="weak"),
    "mla": TreeDraft(forms.mla_weak, outlook="mla_weak"),
}
CASES |= {
    f"{release} tree-{name}": ServerCase(draft.build, release, draft.algorithm, tree=True)
    for release in releases.RELEASES
    for name, draft in TREE_DRAFTS.items()
}
CASES |= {
    "0.5.23 tree-no-k": ServerCase(without("midlayer.self_attn.k_proj.weight"), tree=True),
    "0.5.23 tree-plugin": ServerCase(forms.speculators_weak, tree=True, variables=ON),
}

# Other speculation, stock and with the plugin. SGLang serves DFLASH on a CPU up to 0.5.15.post1,
# where its draft's embeddings are bfloat16 whatever the model is, and refuses it from 0.5.16 on.
CASES |= {
    f"{how}-{name}": ServerCase(draft, release, algorithm, launcher, arguments=arguments)
    for name, draft, release, algorithm, arguments in [
        ("standalone", other_drafts.standalone, releases.DEFAULT, "STANDALONE", ()),
        ("mtp", other_drafts.deepseek_mtp, releases.DEFAULT, "NEXTN", ()),
        ("dflash", other_drafts.dflash, "0.5.15.post1", "DFLASH", ("--dtype", "bfloat16")),
    ]
    for how, launcher in [("stock", server.STOCK), ("plugin", server.OURS)]
}

# Two tensor-parallel ranks over gloo. SGLang wants a core named for each rank where there are more
# ranks than memory nodes; nothing is bound without AMX. It opens a communicator on any NCCL that
# it finds, and torch brings one.
TWO_RANKS = ("--tp-size", "2")
TWO_RANKS_VARIABLES = {"SGLANG_CPU_OMP_THREADS_BIND": "0|0", "SGLANG_NCCL_SO_PATH": "none"}
CASES |= {
    name: ServerCase(
        forms.founding,
        release,
        launcher=server.OURS,
        arguments=TWO_RANKS,
        variables={**TWO_RANKS_VARIABLES, **TRACED},
    )
    for name, release in [("two-ranks", releases.DEFAULT), ("0.5.9 two-ranks", "0.5.9")]
}
CASES |= {
    "two-ranks no-k": ServerCase(
        without("midlayer.self_attn.k_proj.weight"),
        launcher=server.OURS,
        arguments=(*TWO_RANKS, *NO_PREFLIGHT),
        variables=TWO_RANKS_VARIABLES,
    ),
}

# Other processes than the three of a plain server.
CASES |= {
    "two-replicas": ServerCase(
        forms.native,
        launcher=server.OURS,
        variables={**TWO_RANKS_VARIABLES, **TRACED},
        arguments=("--dp", "2"),
    ),
    "two-tokenizers": ServerCase(
        forms.native, launcher=server.OURS, arguments=("--tokenizer-worker-num", "2")
    ),
}

# Data-parallel attention: each rank has requests of its own, and all experts are shared.
CASES |= {
    "attention-ranks": ServerCase(
        forms.native,
        launcher=server.OURS,
        variables={**TWO_RANKS_VARIABLES, **TRACED},
        arguments=(*TWO_RANKS, "--dp-size", "2", "--enable-dp-attention"),
    ),
}

# Schedulers as Ray actors, one for each rank.
CASES |= {
    "ray": ServerCase(
        forms.speculators, variables=ON, arguments=("--use-ray", *TWO_RANKS), ray=True
    ),
}

# Drafts with latent attention (MLA); their class came with 0.5.12.
MLA_RELEASES = ("0.5.12.post1", "0.5.16", releases.DEFAULT)
# The one release line that has both the class and the older worker: over a minute, and served with
# the matrix alone.
MLA_OLDER_WORKER = "0.5.12.post1 v1 plugin-mla-weak"
CASES |= {
    "plugin-mla": ServerCase(forms.mla, launcher=server.OURS),
    "stock-mla-weak": ServerCase(forms.mla_weak),
    **{
        f"{release} plugin-mla-weak": ServerCase(forms.mla_weak, release, launcher=server.OURS)
        for release in MLA_RELEASES
    },
    **{
        f"{release} plugin-mla": ServerCase(forms.mla, release, launcher=server.OURS)
        for release in MLA_RELEASES[:-1]
    },
    MLA_OLDER_WORKER: ServerCase(
        forms.mla_weak,
        "0.5.12.post1",
        launcher=server.OURS,
        arguments=("--disable-overlap-schedule",),
    ),
}

# Served with the matrix alone, of all that is under our launcher.
MATRIX_ALONE = (
    MLA_OLDER_WORKER,
    *(f"{release} plugin-mla" for release in MLA_RELEASES[:-1]),
    "attention-ranks",
)


# What the converter writes for stock SGLang. Kimi's class can't capture at 0.5.9: with that mended
# alone, the draft whose names are dropped there ("0.5.9 partial-b") is served converted.
FOR_THE_TARGET = ("--target", str(forms.TARGET))
CASES |= {
    "converted": ServerCase(forms.speculators, converted=FOR_THE_TARGET),
    "converted-mla": ServerCase(forms.mla, converted=FOR_THE_TARGET),
    "0.5.9 converted": ServerCase(
        forms.founding,
        "0.5.9",
        variables={**KIMI_CAPTURE_ALONE, **POISONED},
        converted=("--flag", "norm_before_residual=false"),
    ),
}
