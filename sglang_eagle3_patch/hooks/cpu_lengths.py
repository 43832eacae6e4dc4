"""cpu-lengths: on a CPU, attention sees the lengths of the step and not those of the batch.

Why: from 0.5.16 to 0.5.18 `IntelAMXAttnBackend` works out the lengths of a verify or draft step and
then overwrites them with those of the batch. Verify loses the last committed tokens, so that the
text is wrong; a draft step loses its own tokens.
Where: `forward_extend` and `forward_decode` of that backend, for batches of EAGLE-3.
How: the batch holds the step's lengths while the method runs.
When it can go: with support for 0.5.18; since 0.5.19 nothing is overwritten (the probe notices).
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sglang_eagle3_patch.engine.patch import Hook, Patch, Risk
from sglang_eagle3_patch.hooks.parts.source_probe import method_tree

NAME = "cpu-lengths"


def forward_extend(
    wrapped: Callable[..., Any], backend: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Around `forward_extend(q, k, v, layer, forward_batch, …)`."""
    batch = _batch(args, kwargs)
    if not batch.spec_algorithm.is_eagle3():
        return wrapped(*args, **kwargs)
    with _lengths(batch, backend.extend_metadata[0]):
        return wrapped(*args, **kwargs)


def forward_decode(
    wrapped: Callable[..., Any], backend: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Around `forward_decode(q, k, v, layer, forward_batch, …)`; only drafting brings lengths."""
    batch = _batch(args, kwargs)
    if not batch.spec_algorithm.is_eagle3() or backend.draft_decode_metadata is None:
        return wrapped(*args, **kwargs)
    _, seq_lens, _ = backend.draft_decode_metadata
    with _lengths(batch, seq_lens):
        return wrapped(*args, **kwargs)


def _batch(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return kwargs["forward_batch"] if "forward_batch" in kwargs else args[4]


@contextmanager
def _lengths(batch: Any, seq_lens: Any) -> Iterator[None]:
    before, batch.seq_lens = batch.seq_lens, seq_lens
    try:
        yield
    finally:
        batch.seq_lens = before


def keeps_lengths(method: str) -> Callable[[Any], bool]:
    """Return the probe: whether the backend's `method` leaves the step's lengths alone."""

    def probe(backend_class: Any) -> bool:
        # Within a branch it is the plain batch's case; at the method's own level it has the last
        # word over every branch.
        return not any(
            isinstance(statement, ast.Assign)
            and ast.unparse(statement) == "seq_lens = forward_batch.seq_lens"
            for function in method_tree(backend_class, method).body
            if isinstance(function, ast.FunctionDef)
            for statement in function.body
        )

    return probe


PATCH = Patch(
    name=NAME,
    title="Give CPU attention the lengths of the step it computes",
    hooks=tuple(
        Hook(
            module="sglang.srt.layers.attention.intel_amx_backend",
            attribute=f"IntelAMXAttnBackend.{name}",
            parameters=("forward_batch",),
            wrapper=wrapper,
            fixed_when=keeps_lengths(name),
        )
        for name, wrapper in (
            ("forward_extend", forward_extend),
            ("forward_decode", forward_decode),
        )
    ),
    processes=("scheduler",),
    applies=">=0.5.16,<0.5.19",
    reason="The CPU backend overwrites the lengths it worked out: wrong text, worse drafts.",
    upstream="none: upstream mended it at 0.5.19",
    remove_when="0.5.18 is no longer supported",
    risk=Risk.NUMERICS,
)
