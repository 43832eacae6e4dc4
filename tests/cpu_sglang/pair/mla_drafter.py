"""The tiny EAGLE-3 drafter with latent attention (MLA) in plain torch, as its trainer sees it.

All but the attention is `drafter.Drafter`'s. The attention is written from the equations of
DeepSeek-V2 and the rope from those of YaRN (arXiv 2405.04434, 2309.00071), not from SGLang.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tests.cpu_sglang.pair.drafter import Drafter, DrafterShape, RMSNorm, linear


@dataclass(frozen=True)
class Yarn:
    """YaRN's settings, under the names of `rope_scaling`."""

    factor: float = 2.0
    original: int = 1024  # original_max_position_embeddings
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale_all_dim: float = 1.0

    def frequencies(self, size: int, theta: float) -> Tensor:
        """Return the angle per position `[size / 2]` of each rotated pair.

        Pairs that turn more than `beta_fast` times over the original length keep their frequency,
        those that turn less than `beta_slow` times are slowed down by `factor`.
        """
        plain = theta ** (-torch.arange(0, size, 2).float() / size)

        def pair_that_turns(times: float) -> float:
            return size * math.log(self.original / (2 * math.pi * times)) / (2 * math.log(theta))

        first = math.floor(pair_that_turns(self.beta_fast))
        last = math.ceil(pair_that_turns(self.beta_slow))
        slowed = ((torch.arange(size // 2) - first) / (last - first)).clamp(0, 1)
        return plain * (1 - slowed) + plain / self.factor * slowed

    @property
    def attention_factor(self) -> float:
        """What DeepSeek multiplies q and k by, each; their product scales the softmax."""
        return 0.1 * self.mscale_all_dim * math.log(self.factor) + 1


@dataclass(frozen=True)
class MLAShape:
    """Sizes of the attention, no two alike, so that one taken for another does not fit."""

    q_rank: int = 44
    kv_rank: int = 24
    nope: int = 32
    rope: int = 16
    value: int = 20
    yarn: Yarn = Yarn()


class MLAttention(nn.Module):
    """Projections only: how keys are gathered is the caller's matter."""

    def __init__(self, shape: DrafterShape, mla: MLAShape) -> None:
        super().__init__()
        self.shape, self.mla = shape, mla
        heads, wide = shape.heads, 2 * shape.hidden
        self.q_a_proj = linear(mla.q_rank, wide)
        self.q_a_layernorm = RMSNorm(mla.q_rank, shape.norm_eps)
        self.q_b_proj = linear(heads * (mla.nope + mla.rope), mla.q_rank)
        self.kv_a_proj_with_mqa = linear(mla.kv_rank + mla.rope, wide)
        self.kv_a_layernorm = RMSNorm(mla.kv_rank, shape.norm_eps)
        self.kv_b_proj = linear(heads * (mla.nope + mla.value), mla.kv_rank)
        self.o_proj = linear(shape.hidden, heads * mla.value)

    @property
    def scale(self) -> float:
        """The factor on q @ k before the softmax."""
        return (self.mla.nope + self.mla.rope) ** -0.5 * self.mla.yarn.attention_factor**2

    def qkv(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return q, k `[B, heads, L, nope + rope]` and v `[B, heads, L, value]` of `x`
        `[B, L, 2H]`. Only the last `rope` of q and k are rotated; k's are the same in all heads.
        """
        mla, heads = self.mla, self.shape.heads
        q = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x)))
        q_nope, q_rope = _split_heads(q, heads).split([mla.nope, mla.rope], -1)
        latent, k_rope = self.kv_a_proj_with_mqa(x).split([mla.kv_rank, mla.rope], -1)
        kv = _split_heads(self.kv_b_proj(self.kv_a_layernorm(latent)), heads)
        k_nope, v = kv.split([mla.nope, mla.value], -1)
        shared = self._rotate(k_rope[:, None], positions).expand(-1, heads, -1, -1)
        q = torch.cat([q_nope, self._rotate(q_rope, positions)], -1)
        return q, torch.cat([k_nope, shared], -1), v

    def _rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        """Rotate the pairs (2i, 2i + 1) of `x` `[B, heads, L, rope]`."""
        frequencies = self.mla.yarn.frequencies(self.mla.rope, self.shape.rope_theta)
        angles = positions[:, None].float() * frequencies
        turned = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
        turned = turned * torch.polar(torch.ones_like(angles), angles)
        return torch.view_as_real(turned).flatten(-2)


def _split_heads(projected: Tensor, heads: int) -> Tensor:
    return projected.unflatten(-1, (heads, -1)).transpose(1, 2)


class MLADrafter(Drafter):
    def __init__(
        self, norm_before_residual: bool = False, shape: DrafterShape | None = None
    ) -> None:
        super().__init__(norm_before_residual, shape)
        self.midlayer.self_attn = MLAttention(self.shape, MLAShape())
