"""A bug of SGLang's own CPU backend, 0.5.16 to 0.5.18, which no GPU server has.

`IntelAMXAttnBackend` works out the sequence lengths of a verify or draft step and then
overwrites them with `forward_batch.seq_lens`. Verify attention so loses the last committed tokens
(wrong text), draft attention loses the step's own tokens. Fixed upstream in 0.5.19. Only a CPU is
affected, so it is no matter of the plugin: mended here, the CPU answers what a GPU would.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import wrapt

from cpu_standin.route import sglang_release

BACKEND = "sglang.srt.layers.attention.intel_amx_backend"


def register() -> None:
    @wrapt.when_imported(BACKEND)
    def _(module: Any) -> None:
        if not (0, 5, 16) <= sglang_release() <= (0, 5, 18):
            return
        wrapt.wrap_function_wrapper(module, "IntelAMXAttnBackend.forward_extend", _extend)
        wrapt.wrap_function_wrapper(module, "IntelAMXAttnBackend.forward_decode", _decode)


def _extend(wrapped: Callable[..., Any], backend: Any, args: Any, kwargs: Any) -> Any:
    seq_lens = backend.extend_metadata[0]
    return _call_with_seq_lens(wrapped, args, kwargs, seq_lens)


def _decode(wrapped: Callable[..., Any], backend: Any, args: Any, kwargs: Any) -> Any:
    if backend.draft_decode_metadata is None:
        return wrapped(*args, **kwargs)
    _, seq_lens, _ = backend.draft_decode_metadata
    return _call_with_seq_lens(wrapped, args, kwargs, seq_lens)


def _call_with_seq_lens(wrapped: Callable[..., Any], args: Any, kwargs: Any, seq_lens: Any) -> Any:
    """Call `wrapped` (q, k, v, layer, forward_batch, ..) while the batch has these lengths."""
    batch = kwargs["forward_batch"] if "forward_batch" in kwargs else args[4]
    before, batch.seq_lens = batch.seq_lens, seq_lens
    try:
        return wrapped(*args, **kwargs)
    finally:
        batch.seq_lens = before
