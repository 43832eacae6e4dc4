"""A healthy case for every rule to be broken in, and the rows that break just one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sglang_eagle3_patch.checkpoint.header import TensorHeader
from sglang_eagle3_patch.checkpoint.launch import LaunchArguments
from sglang_eagle3_patch.checkpoint.rules import Case
from sglang_eagle3_patch.checkpoint.rules.small_values import SmallValues
from sglang_eagle3_patch.checkpoint.spec import DraftSpec
from sglang_eagle3_patch.checkpoint.target import TargetSpec
from sglang_eagle3_patch.facts import facts_for
from tests.unit.checkpoint import drafts

NEWEST, OLDEST = "0.5.23", "0.5.9"
LAYERS = 8
TARGET = TargetSpec(
    "org/target",
    {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": drafts.HIDDEN,
        "num_hidden_layers": LAYERS,
        "vocab_size": drafts.VOCAB,
        "max_position_embeddings": 512,
    },
)
KIMI = TargetSpec(
    "org/kimi",
    {
        "architectures": ["KimiK25ForConditionalGeneration"],
        "text_config": {**TARGET.config, "architectures": ["DeepseekV3ForCausalLM"]},
    },
)
# Two tokens of every four of the target's, as offsets: such a table can't be one of ids.
D2T = tuple(2 * (i // 2) for i in range(drafts.DRAFT_VOCAB))
TOKENS = tuple(i + offset for i, offset in enumerate(D2T))
T2D = tuple(token in TOKENS for token in range(drafts.VOCAB))
NORMS = {"layers.0.hidden_norm.weight": (0.9, 1.1), "norm.weight": (1.0, 2.0)}
VALUES = SmallValues(D2T, T2D, NORMS)
FILES = ("config.json", "model.safetensors")
LAUNCH = ("--speculative-algorithm", "EAGLE3")


def config(**changes: Any) -> drafts.Config:
    """SGLang's own form; a change to `drafts`' None drops the key."""
    return drafts.flat(drafts.SGLANG, **changes)


def tensors(**changes: TensorHeader | None) -> drafts.Headers:
    """The healthy tensors with some others in their place; None leaves one out."""
    found: dict[str, TensorHeader | None] = {
        **drafts.top("embed_tokens.weight"),
        **drafts.layer("midlayer."),
        **changes,
    }
    return {name: header for name, header in found.items() if header is not None}


def floats(*shape: int) -> TensorHeader:
    return TensorHeader("BF16", shape)


def case(
    draft_config: drafts.Config | None = None,
    headers: drafts.Headers | None = None,
    *,
    release: str = NEWEST,
    target: TargetSpec | None = TARGET,
    launch: tuple[str, ...] = LAUNCH,
    values: SmallValues | None = VALUES,
    files: tuple[str, ...] | None = FILES,
    environment: dict[str, str] | None = None,
    plugin: bool = True,
) -> Case:
    engine = facts_for(release)
    assert engine is not None
    arguments = LaunchArguments.parse(launch, engine.launch.speculative_flags, environment)
    spec = DraftSpec.of(
        config() if draft_config is None else draft_config,
        tensors() if headers is None else headers,
    )
    return Case(spec, target, engine, arguments, plugin, values, files)


@dataclass(frozen=True)
class Row:
    """A case in which one rule answers something else than ok, and what it must answer.

    `besides` are rules that can't be in order there either.
    """

    case: Case
    stock: str
    plugin: str
    status: str = "wrong"
    besides: frozenset[str] = field(default_factory=frozenset)


def row(
    stock: str, plugin: str, *arguments: Any, status: str = "wrong", besides: str = "", **rest: Any
) -> Row:
    return Row(case(*arguments, **rest), stock, plugin, status, frozenset(besides.split()))
