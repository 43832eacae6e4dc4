"""The EAGLE-3 draft forward in plain torch, driven by `DraftSpec`: what the trainer computed.

Written from the trainers' equations, not from SGLang, so that it can tell whether SGLang computes
them. With RMS(x; g) = g * x / sqrt(mean(x^2) + eps), float32 throughout:

    u   = RMS(aux; input_norm)               norm_before_fc   (speculators `input_norm`)
        | RMS(aux_i; fc_norm.i) side by side fc_norm          (speculators, SpecForge `fc_norm`)
        | aux
    h0  = fc u                                                (once, not in every step)
    step k, at index t:
    e   = RMS(embedding[token t+1+k]; input_layernorm)
    n   = RMS(hk; hidden_norm)               (ModelOpt: of RMS(hk; input_layernorm))
    r   = n if norm_before_residual else hk                   (speculators `Eagle3FirstLayerMixin`)
    y   = r + o_proj attention([e ; n])      q, k, v of width 2H, position t + k
    g   = y + mlp(RMS(y; post_attention_layernorm))           mlp: down(silu(gate x) * up x)
    g   = plain pre-norm layer of width H, for each layer >= 1
    logits = lm_head RMS(g; norm)            no norm if not norm_before_head (SpecForge)
    hk+1   = RMS(g; norm) if norm_output else g               (speculators `norm_output`)

A step attends to the step-0 keys of indices <= t and to its own index in the steps since
(`extend_dense_mask_for_draft_tokens` of speculators, `cache_hidden` of SpecForge and SafeAILab).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

from sglang_eagle3_patch.checkpoint.flags import DraftFlags
from sglang_eagle3_patch.checkpoint.inventory import required_names, unused_names
from sglang_eagle3_patch.checkpoint.layouts import NOT_WEIGHTS, canonical_name
from sglang_eagle3_patch.checkpoint.rope import RopeUnavailable
from sglang_eagle3_patch.checkpoint.sizes import DraftSizes
from sglang_eagle3_patch.checkpoint.spec import DraftSpec

# Intermediate values by name: `fc`, `step0.layers.0.hidden_norm`, `step1.norm`, ...
Record = dict[str, Tensor]


class ReferenceUnavailable(ValueError):
    """A draft that this reference can't compute; the text names the values and what to give."""


class ReferenceDraft:
    """One draft's forward, on the CPU. Build it with `from_spec`."""

    def __init__(self, spec: DraftSpec, weights: Mapping[str, Tensor], flags: DraftFlags) -> None:
        """Take float32 `weights` under canonical names that are known to be all of them."""
        self.flags = flags
        self.sizes: DraftSizes = spec.sizes
        self.num_layers = len(spec.layer_numbers)
        self._weights = weights
        self._eps = spec.norm_eps or 0.0
        self._mla = spec.attention == "mla"
        if self._mla:
            rotated = _given(self.sizes, "qk_rope_head_dim")
            self._head = _given(self.sizes, "qk_nope_head_dim") + rotated
        else:
            self._head = rotated = _given(self.sizes, "head_dim")
        try:
            self._frequencies = torch.tensor(spec.rope.frequencies(rotated))
            self._amplitude = spec.rope.amplitude(self._mla)
            self._scale = spec.rope.softmax_scale(self._head, self._mla)
        except RopeUnavailable as error:
            raise ReferenceUnavailable(str(error)) from error

    @classmethod
    def from_spec(
        cls,
        spec: DraftSpec,
        tensors: Mapping[str, Tensor],
        embedding: Tensor | None = None,
        head: Tensor | None = None,
        flags: DraftFlags | None = None,
    ) -> ReferenceDraft:
        """Return the reference of a draft.

        `tensors` are the file's, under any producer's names and of any float dtype; `embedding`
        `[V, H]` and `head` `[Vd, H]` are the target's, used where the file has none. `flags`
        replace those of the spec, for one that the spec leaves open or to see what it changes.

        Raises `ReferenceUnavailable` for a tensor that is missing, unknown or of another shape
        than the spec, a flag nobody states, quantised weights, and rope or activations it lacks.
        """
        flags = flags or spec.flags
        _check_settings(spec, flags)
        weights = _canonical(tensors)
        _check_shapes(spec, weights)
        if embedding is not None:
            weights.setdefault("embed_tokens.weight", embedding.float())
        if head is not None:
            weights.setdefault("lm_head.weight", head.float())
        elif spec.tie_word_embeddings and "embed_tokens.weight" in weights:
            weights.setdefault("lm_head.weight", weights["embed_tokens.weight"])
        for number in spec.layer_numbers[1:]:
            # SGLang and TensorRT-LLM call the norm of a later layer's input `hidden_norm`.
            other, usual = (
                f"layers.{number}.{norm}.weight" for norm in ("hidden_norm", "input_layernorm")
            )
            if other in weights and usual not in weights:
                weights[usual] = weights.pop(other)
        _check_names(spec, flags, weights)
        return cls(spec, weights, flags)

    def target_ids(self, draft_ids: Tensor) -> Tensor:
        """Return the target's token ids of `draft_ids`: target = draft + d2t[draft]."""
        d2t = self._weights.get("d2t")
        return draft_ids if d2t is None else draft_ids + d2t[draft_ids]

    def fuse(self, aux: Tensor, record: Record | None = None) -> Tensor:
        """Return h0 `[T, H]` of the aux hidden states `[T, A * Ht]`."""
        aux = aux.float()
        if self.flags.norm_before_fc:
            aux = self._norm(aux, "input_norm")
            _note(record, "input_norm", aux)
        if self.flags.fc_norm:
            count = sum(name.startswith("fc_norm.") for name in self._weights)
            parts = enumerate(aux.chunk(count, -1))
            aux = torch.cat([self._norm(part, f"fc_norm.{i}") for i, part in parts], -1)
            _note(record, "fc_norm", aux)
        return _note(record, "fc", self._linear(aux, "fc"))

    def forward(
        self, aux: Tensor, token_ids: Tensor, steps: int, record: Record | None = None
    ) -> list[Tensor]:
        """Return the teacher-forced logits of `steps` draft steps, each `[T, Vd]` float32.

        `aux` `[T, A * Ht]` are the target's aux hidden states at index t, `token_ids`
        `[T + steps]` the tokens. Step k at index t embeds token t+1+k, stands at position t+k,
        and predicts token t+2+k. Intermediate values are put in `record` by name, in the order
        in which they are computed.
        """
        length = aux.shape[0]
        hidden = self.fuse(aux, record)
        cache: list[list[tuple[Tensor, Tensor]]] = [[] for _ in range(self.num_layers)]
        logits = []
        for step in range(steps):
            name = f"step{step}"
            positions = torch.arange(length) + step
            tokens = token_ids[1 + step : 1 + step + length]
            embeds = self._weights["embed_tokens.weight"][tokens]
            x, residual = self._enter(embeds, hidden, f"{name}.layers.0", record)
            for number in range(self.num_layers):
                layer = f"layers.{number}"
                if number:
                    residual = hidden
                    x = self._norm(hidden, f"{layer}.input_layernorm")
                    _note(record, f"{name}.{layer}.input_layernorm", x)
                attended = self._attend(x, positions, number, cache[number])
                _note(record, f"{name}.{layer}.self_attn", attended)
                hidden = self._leave(residual + attended, layer, name, record)
            normed = self._norm(hidden, "norm") if "norm.weight" in self._weights else hidden
            _note(record, f"{name}.norm", normed)
            out = self._linear(normed if self.flags.norm_before_head else hidden, "lm_head")
            logits.append(_note(record, f"{name}.logits", out))
            hidden = normed if self.flags.norm_output else hidden
        return logits

    def _enter(
        self, embeds: Tensor, hidden: Tensor, name: str, record: Record | None
    ) -> tuple[Tensor, Tensor]:
        """Return layer 0's attention input `[T, 2H]` (embedding first) and residual `[T, H]`."""
        once = hidden
        if self.flags.double_input_norm:
            once = self._norm(hidden, "layers.0.input_layernorm")
        normed = self._norm(once, "layers.0.hidden_norm")
        embeds = self._norm(embeds, "layers.0.input_layernorm")
        residual = normed if self.flags.norm_before_residual else hidden
        _note(record, f"{name}.input_layernorm", embeds)
        _note(record, f"{name}.hidden_norm", normed)
        _note(record, f"{name}.residual", residual)
        return torch.cat([embeds, normed], -1), residual

    def _leave(self, hidden: Tensor, layer: str, name: str, record: Record | None) -> Tensor:
        x = self._norm(hidden, f"{layer}.post_attention_layernorm")
        _note(record, f"{name}.{layer}.post_attention_layernorm", x)
        gate, up = (self._linear(x, f"{layer}.mlp.{part}_proj") for part in ("gate", "up"))
        out = self._linear(functional.silu(gate) * up, f"{layer}.mlp.down_proj")
        return hidden + _note(record, f"{name}.{layer}.mlp", out)

    def _attend(
        self, x: Tensor, positions: Tensor, number: int, cache: list[tuple[Tensor, Tensor]]
    ) -> Tensor:
        """Return o_proj of the attention of this step `[T, H]`; its keys and values are cached."""
        project = self._mla_qkv if self._mla else self._mha_qkv
        q, k, v = project(x, positions, f"layers.{number}.self_attn")
        cache.append((k, v))
        length = x.shape[0]
        seen = torch.ones(length, length, dtype=torch.bool).tril()
        if self.flags.window and number in self.flags.window_layers:
            # The window stays at index t in every step of training; served, it slides along.
            seen = seen.triu(1 - self.flags.window)
        first_keys, first_values = cache[0]
        scores = [(q @ first_keys.transpose(-1, -2)).masked_fill(~seen, -math.inf)]
        scores += [(q * keys).sum(-1, keepdim=True) for keys, _ in cache[1:]]
        weights = (torch.cat(scores, -1) * self._scale).softmax(-1)
        attended = weights[..., :length] @ first_values
        for index, (_, values) in enumerate(cache[1:]):
            attended = attended + weights[..., length + index, None] * values
        merged = attended.transpose(0, 1).reshape(length, -1)
        return self._linear(merged, f"layers.{number}.self_attn.o_proj")

    def _mha_qkv(self, x: Tensor, positions: Tensor, name: str) -> tuple[Tensor, Tensor, Tensor]:
        """Return rotated q and k and v, each `[heads, T, head_dim]`; key heads are repeated."""
        heads, kv_heads = _given(self.sizes, "heads"), _given(self.sizes, "kv_heads")

        def split(part: str, count: int) -> Tensor:
            projected = self._linear(x, f"{name}.{part}_proj").unflatten(-1, (count, self._head))
            if f"{name}.{part}_norm.weight" in self._weights:  # qwen3, before the rotation
                projected = self._norm(projected, f"{name}.{part}_norm")
            return projected.transpose(0, 1)

        q = self._rotate(split("q", heads), positions)
        k = self._rotate(split("k", kv_heads), positions)
        groups = heads // kv_heads
        return q, k.repeat_interleave(groups, 0), split("v", kv_heads).repeat_interleave(groups, 0)

    def _mla_qkv(self, x: Tensor, positions: Tensor, name: str) -> tuple[Tensor, Tensor, Tensor]:
        """Return q, k `[heads, T, nope + rope]` and v `[heads, T, v_head_dim]`, as DeepSeek-V2.

        Only the last `qk_rope_head_dim` of q and k are rotated; those of k are all heads' own.
        """
        heads, nope = _given(self.sizes, "heads"), _given(self.sizes, "qk_nope_head_dim")
        if f"{name}.q_a_proj.weight" in self._weights:
            low = self._norm(self._linear(x, f"{name}.q_a_proj"), f"{name}.q_a_layernorm")
            q = self._linear(low, f"{name}.q_b_proj")
        else:
            q = self._linear(x, f"{name}.q_proj")
        q = q.unflatten(-1, (heads, self._head)).transpose(0, 1)
        latent, k_rope = self._linear(x, f"{name}.kv_a_proj_with_mqa").split(
            [_given(self.sizes, "kv_lora_rank"), self._head - nope], -1
        )
        latent = self._norm(latent, f"{name}.kv_a_layernorm")
        kv = self._linear(latent, f"{name}.kv_b_proj").unflatten(-1, (heads, -1)).transpose(0, 1)
        shared = self._rotate(k_rope[None], positions).expand(heads, -1, -1)
        q = torch.cat([q[..., :nope], self._rotate(q[..., nope:], positions)], -1)
        return q, torch.cat([kv[..., :nope], shared], -1), kv[..., nope:]

    def _rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        """Return `x` `[heads, T, d]` at its positions `[T]`.

        Elements (i, i + d / 2) are a pair, as in llama; (2i, 2i + 1) in MLA, as in DeepSeek.
        """
        angles = positions[:, None].float() * self._frequencies
        cos, sin = angles.cos() * self._amplitude, angles.sin() * self._amplitude
        left, right = (x[..., ::2], x[..., 1::2]) if self._mla else x.chunk(2, -1)
        pair = (left * cos - right * sin, right * cos + left * sin)
        return torch.stack(pair, -1).flatten(-2) if self._mla else torch.cat(pair, -1)

    def _linear(self, x: Tensor, name: str) -> Tensor:
        weight, bias = self._weights[f"{name}.weight"], self._weights.get(f"{name}.bias")
        return functional.linear(x, weight, bias)

    def _norm(self, x: Tensor, name: str) -> Tensor:
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self._eps)
        return x * scale * self._weights[f"{name}.weight"]


def _canonical(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return float32 weights (and integer `d2t`) under canonical names, without what is none."""
    weights: dict[str, Tensor] = {}
    for name, value in tensors.items():
        canonical = canonical_name(name)
        if NOT_WEIGHTS.search(canonical):
            continue
        if canonical in weights:
            raise ReferenceUnavailable(f"two tensors are {canonical}, one of them {name}")
        weights[canonical] = value.long() if canonical == "d2t" else value.float()
    return weights


def _check_settings(spec: DraftSpec, flags: DraftFlags) -> None:
    if flags.unstated:
        raise ReferenceUnavailable(
            f"neither the config nor its producer ({spec.producer.name}) states "
            f"{', '.join(flags.unstated)}: give flags"
        )
    if spec.activation not in (None, "silu"):
        raise ReferenceUnavailable(f"hidden_act is {spec.activation!r}; only silu is known")
    if spec.norm_eps is None:
        raise ReferenceUnavailable("rms_norm_eps is unstated")
    numbers = spec.layer_numbers
    if spec.attention is None or numbers != tuple(range(len(numbers))):
        raise ReferenceUnavailable(f"no attention of a known kind in layers {numbers}")


def _check_shapes(spec: DraftSpec, weights: Mapping[str, Tensor]) -> None:
    for name, value in weights.items():
        header = spec.tensors.get(name)
        if header is not None and header.shape != tuple(value.shape):
            raise ReferenceUnavailable(
                f"{name} is {list(value.shape)}, the checkpoint's is {list(header.shape)}"
            )


def _check_names(spec: DraftSpec, flags: DraftFlags, weights: Mapping[str, Tensor]) -> None:
    """Refuse what is missing and what would be dropped: both compute something else, silently."""
    required = required_names(spec, flags)
    missing = sorted(required - set(weights))
    unused = unused_names(weights, required)
    if missing or unused:
        raise ReferenceUnavailable(f"missing: {missing}; of no use: {list(unused)}")


def _given(sizes: DraftSizes, name: str) -> int:
    size: int | None = getattr(sizes, name)
    if size is None:
        raise ReferenceUnavailable(f"neither config nor shapes give the size {name}")
    return size


def _note(record: Record | None, name: str, value: Tensor) -> Tensor:
    if record is not None:
        record[name] = value
    return value
