"""The attention of a draft whose steps are all computed at once, for every row of a sequence."""

from __future__ import annotations

from typing import Any


class RowAttention:
    """Stands where SGLang's attention backend stands, in plain torch; it is its own memory pool.

    Rows are the T indices of one sequence. The first forward of a layer is causal among them; in
    each later one a row attends to the first forward's keys of rows up to its own, and to its own
    keys of every forward since: what a server's cache would hold for a draft begun at that row.
    """

    def __init__(self) -> None:
        self._kept: dict[int, list[tuple[Any, Any]]] = {}

    @property
    def token_to_kv_pool(self) -> RowAttention:
        """Where layers that save keys by themselves do it."""
        return self

    def set_kv_buffer(self, layer: Any, _location: Any, latent: Any, _value: None) -> None:
        """Keep the latents `[T, 1, rank + rope]` of an MLA layer that attends to whole keys."""
        self._kept.setdefault(layer.layer_id, []).append((latent, None))

    def init_forward_metadata(self, forward_batch: Any) -> None:
        """Prepare nothing; abstract in SGLang's base class up to 0.5.13."""

    def forward(
        self,
        q: Any,
        k: Any,
        v: Any,
        layer: Any,
        _batch: Any,
        save_kv_cache: bool = True,
        q_rope: Any = None,
        k_rope: Any = None,
        **_: Any,
    ) -> Any:
        """Return `[T, heads * v_head_dim]` of q `[T, heads * head_dim]` and keys of one step.

        Absorbed MLA may hand over the rotated parts apart, as `q_rope` and `k_rope`.
        """
        import torch

        rows, heads = q.shape[0], layer.tp_q_head_num

        def whole(x: Any, number: int, rope: Any) -> Any:
            x = x.view(rows, number, -1)
            return x if rope is None else torch.cat([x, rope.view(rows, number, -1)], -1)

        def for_each_head(x: Any) -> Any:
            return x.view(rows, -1, x.shape[-1]).repeat_interleave(heads // x.shape[1], 1)

        q, k = whole(q, heads, q_rope), whole(k, layer.tp_k_head_num, k_rope)
        seen = [(k, v.view(rows, layer.tp_v_head_num, -1))]
        if save_kv_cache:
            seen = self._kept.setdefault(layer.layer_id, [])
            seen.append((k, v.view(rows, layer.tp_v_head_num, -1)))
        # Kept latents are the keys; the values are their unrotated part.
        keys = [for_each_head(k) for k, _ in seen]
        values = [for_each_head(k[..., : layer.v_head_dim] if v is None else v) for k, v in seen]
        window, step = getattr(layer, "sliding_window_size", None) or -1, len(keys) - 1
        # Of a query at row t and step k, whether it sees row j of the first forward.
        seen_rows = torch.ones(rows, rows, dtype=torch.bool).tril()
        if window >= 0:
            seen_rows = seen_rows.triu(step - window)
        scores = [torch.einsum("qhd,khd->hqk", q, keys[0]).masked_fill(~seen_rows, float("-inf"))]
        for number, own in enumerate(keys[1:], 1):
            score = (q * own).sum(-1).T[..., None]
            scores.append(score if window < 0 or step - number <= window else score - float("inf"))
        weights = (torch.cat(scores, -1) * layer.scaling).softmax(-1)
        attended = torch.einsum("hqk,khd->qhd", weights[..., :rows], values[0])
        for index, own in enumerate(values[1:]):
            attended = attended + weights[..., rows + index].T[..., None] * own
        return attended.reshape(rows, -1)
