"""The tiny EAGLE-3 drafter in plain torch, as its trainer sees it.

It is written from the equations (speculators 0.9's `Eagle3DraftModel`, SafeAILab's `cnets.py`),
not from SGLang, so that what it computes is an independent word on what SGLang must compute.
Names of parameters are the native ones (`midlayer.*`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class DrafterShape:
    """Sizes of the drafter; `vocab` is also the draft vocabulary (d2t is the identity)."""

    hidden: int = 128
    intermediate: int = 256
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    vocab: int = 320
    aux: int = 3
    rope_theta: float = 10000.0
    norm_eps: float = 1e-6


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


def linear(rows: int, columns: int) -> nn.Linear:
    return nn.Linear(columns, rows, bias=False)


class Attention(nn.Module):
    """Projections only: how keys are gathered is the caller's matter."""

    def __init__(self, shape: DrafterShape) -> None:
        super().__init__()
        self.shape = shape
        self.q_proj = linear(shape.heads * shape.head_dim, 2 * shape.hidden)
        self.k_proj = linear(shape.kv_heads * shape.head_dim, 2 * shape.hidden)
        self.v_proj = linear(shape.kv_heads * shape.head_dim, 2 * shape.hidden)
        self.o_proj = linear(shape.hidden, shape.heads * shape.head_dim)

    @property
    def scale(self) -> float:
        """The factor on q @ k before the softmax."""
        return self.shape.head_dim**-0.5

    def qkv(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return rotated q, k and v, each `[B, heads, L, head_dim]`, of `x` `[B, L, 2H]`."""
        shape = self.shape

        def split(projected: Tensor, heads: int) -> Tensor:
            batch, length, _ = projected.shape
            return projected.view(batch, length, heads, shape.head_dim).transpose(1, 2)

        groups = shape.heads // shape.kv_heads
        q = self._rotate(split(self.q_proj(x), shape.heads), positions)
        k = self._rotate(split(self.k_proj(x), shape.kv_heads), positions)
        v = split(self.v_proj(x), shape.kv_heads)
        return q, k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)

    def _rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        half = self.shape.head_dim // 2
        exponent = torch.arange(0, self.shape.head_dim, 2).float() / self.shape.head_dim
        angles = positions[:, None].float() / self.shape.rope_theta**exponent
        cos, sin = angles.cos(), angles.sin()
        left, right = x[..., :half], x[..., half:]
        return torch.cat([left * cos - right * sin, right * cos + left * sin], -1)


class MLP(nn.Module):
    def __init__(self, shape: DrafterShape) -> None:
        super().__init__()
        self.gate_proj = linear(shape.intermediate, shape.hidden)
        self.up_proj = linear(shape.intermediate, shape.hidden)
        self.down_proj = linear(shape.hidden, shape.intermediate)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class DecoderLayer(nn.Module):
    def __init__(self, shape: DrafterShape, norm_before_residual: bool) -> None:
        super().__init__()
        self.norm_before_residual = norm_before_residual
        self.self_attn = Attention(shape)
        self.mlp = MLP(shape)
        self.input_layernorm = RMSNorm(shape.hidden, shape.norm_eps)
        self.hidden_norm = RMSNorm(shape.hidden, shape.norm_eps)
        self.post_attention_layernorm = RMSNorm(shape.hidden, shape.norm_eps)

    def enter(self, embeds: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Return the attention's input `[..., 2H]` and the residual `[..., H]`."""
        normed = self.hidden_norm(hidden)
        residual = normed if self.norm_before_residual else hidden
        return torch.cat([self.input_layernorm(embeds), normed], -1), residual

    def leave(self, residual: Tensor, attended: Tensor) -> Tensor:
        """Add attention (`[..., heads * head_dim]`) and MLP to the residual."""
        hidden = residual + self.self_attn.o_proj(attended)
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


class Drafter(nn.Module):
    def __init__(self, norm_before_residual: bool = False, shape: DrafterShape | None = None):
        super().__init__()
        self.shape = shape = shape or DrafterShape()
        self.fc = linear(shape.hidden, shape.aux * shape.hidden)
        self.midlayer = DecoderLayer(shape, norm_before_residual)
        self.norm = RMSNorm(shape.hidden, shape.norm_eps)
        self.lm_head = linear(shape.vocab, shape.hidden)

    def forward(self, aux: Tensor, ids: Tensor, embedding: Tensor, steps: int) -> list[Tensor]:
        """Teacher-forced logits of `steps` draft steps (EAGLE-3's training-time test).

        `aux` `[B, L, 3H]` are the target's aux hidden states at index t, `ids` `[B, L + steps]`
        the tokens. Step k at index t embeds token t+1+k, stands at position t+k, attends to the
        step-0 keys of indices <= t and to its own earlier steps, and predicts token t+2+k.
        Returns `steps` tensors `[B, L, vocab]`.
        """
        batch, length, _ = aux.shape
        scale = self.midlayer.self_attn.scale
        causal = torch.ones(length, length, dtype=torch.bool).tril()
        hidden = self.fc(aux)
        keys: list[Tensor] = []
        values: list[Tensor] = []
        logits = []
        for step in range(steps):
            embeds = embedding[ids[:, 1 + step : 1 + step + length]]
            x, residual = self.midlayer.enter(embeds, hidden)
            q, k, v = self.midlayer.self_attn.qkv(x, torch.arange(length) + step)
            keys.append(k)
            values.append(v)
            scores = [(q @ keys[0].transpose(-1, -2) * scale).masked_fill(~causal, -math.inf)]
            scores += [(q * own).sum(-1, keepdim=True) * scale for own in keys[1:]]
            weights = torch.cat(scores, -1).softmax(-1)
            attended = weights[..., :length] @ values[0]
            for index, own in enumerate(values[1:]):
                attended = attended + weights[..., length + index, None] * own
            attended = attended.transpose(1, 2).reshape(batch, length, -1)
            hidden = self.midlayer.leave(residual, attended)
            logits.append(self.lm_head(self.norm(hidden)))
        return logits
