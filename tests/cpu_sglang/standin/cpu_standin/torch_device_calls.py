"""Device calls which SGLang makes on any device and which torch answers with an error on a CPU."""

from __future__ import annotations

from typing import Any

import wrapt

from cpu_standin.route import Route


def _nothing(*_args: Any, **_kwargs: Any) -> None:
    return None


def register(route: Route) -> None:
    @wrapt.when_imported("torch")
    def _(torch: Any) -> None:
        # `set_embed` and `set_embed_and_head` end in it; without a driver it raises.
        torch.cuda.synchronize = _nothing
        # A Ray actor's event loop begins with it. Not the same function: Dynamo keeps a rule
        # for each of the two.
        torch.cuda.set_device = lambda _device: None
        if route == "triton":
            # The overlap schedule, the default from 0.5.11 on, marks tensors as used by a
            # stream. Its CPU streams are of a type which torch's method rejects.
            torch.Tensor.record_stream = _nothing
