"""SGLang's real draft class in this process: built, loaded and driven, one rank on the CPU.

Everything that decides the numbers is SGLang's: its reader of configs, its draft class and the
class's `load_weights`, so that whatever is hooked there acts here too. Only what a server would
put around them is ours: the batch, and an attention over all rows at once.
"""

from __future__ import annotations

import atexit
import inspect
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sglang_eagle3_patch.checkpoint.config import EAGLE3_ARCHITECTURES
from sglang_eagle3_patch.checkpoint.layouts import canonical_name
from sglang_eagle3_patch.parity.row_attention import RowAttention


class DraftClassMissing(RuntimeError):
    """The SGLang in this environment has no class for the draft; the text names both."""


class SglangDraft:
    """One draft checkpoint's model, as the SGLang in this environment builds it."""

    def __init__(self, folder: Path) -> None:
        """Build the model of the folder's `config.json`; its weights are not read yet.

        Raises what SGLang raises for a config it can't read, `DraftError` where a hook refuses
        it, and `DraftClassMissing` where SGLang would take a class that is no EAGLE-3 draft.
        """
        become_rank(str(folder))
        import sglang
        from sglang.srt.models.registry import ModelRegistry
        from sglang.srt.utils.hf_transformers_utils import get_config

        config = get_config(str(folder), trust_remote_code=False)
        model_class, _ = ModelRegistry.resolve_model_cls(config.architectures)
        if model_class.__name__ not in EAGLE3_ARCHITECTURES:
            raise DraftClassMissing(
                f"SGLang {sglang.__version__} has no class for {config.architectures}: it takes "
                f"{model_class.__name__}"
            )
        self.model = model_class(config)

    def load(
        self, weights: Mapping[str, Any], embedding: Any = None, head: Any = None
    ) -> SglangDraft:
        """Load `weights`, under the names of the file, and hand over the target's tensors.

        `embedding` and `head`, both `[V, H]`, go the way a worker's go: the head only to a draft
        that asks for it. Raises `DraftError` where a hook refuses the weights.
        """
        from torch.nn import Parameter

        self.model.load_weights(iter(weights.items()))
        if embedding is not None:
            shared = Parameter(embedding.float(), requires_grad=False)
            if head is not None and self.model.load_lm_head_from_target:
                self.model.set_embed_and_head(shared, Parameter(head.float(), requires_grad=False))
            else:
                self.model.set_embed(shared)
        return self

    def forward(
        self,
        aux: Any,
        token_ids: Any,
        steps: int,
        record: dict[str, Any] | None = None,
        target_fed: str = "EXTEND",
    ) -> list[Any]:
        """Return the logits of `steps` draft steps, each `[T, Vd]` float32.

        `aux` `[T, A * Ht]` are the target's hidden states at index t, `token_ids` `[T + steps]`
        the tokens. Step k at index t embeds token t + 1 + k and stands at position t + k; step 0
        takes `aux`, later ones what the model handed back for the step before. Outputs of modules
        are put in `record` under the names that the reference has for them. `target_fed` is the
        mode of step 0: `EXTEND` over a prompt, `DRAFT_EXTEND_V2` after verifying; MLA attends to
        whole keys in the one, to latents in the other and in later steps.
        """
        import torch
        from sglang.srt.model_executor.forward_batch_info import ForwardMode

        rows, config = aux.shape[0], self.model.config
        attention, logits, states = _attention_backend(), [], aux
        for step in range(steps):
            ids = token_ids[1 + step : 1 + step + rows]
            mode = ForwardMode.DECODE if step else ForwardMode[target_fed]
            batch = make_batch(ids, torch.arange(rows) + step, states, mode, attention)
            with self._recording(step, record):
                final, states = self.run(batch)
            vocab = getattr(config, "draft_vocab_size", None) or config.vocab_size
            logits.append(final.float() @ self.model.lm_head.weight[:vocab].float().T)
        return logits

    def run(self, batch: Any) -> tuple[Any, Any]:
        """Return the final and the recurrent hidden states, both `[T, H]`, of one forward."""
        import torch

        handed: list[Any] = []
        # The class's own forward ends in the logits processor, which wants a batch of a server.
        self.model.logits_processor.forward = lambda *args, **_: handed.extend(args)
        with torch.no_grad(), _in_context(batch.attn_backend):
            self.model(batch.input_ids, batch.positions, batch)
        _, final, _, _, (recurrent, *_) = handed
        return final, recurrent

    @contextmanager
    def _recording(self, step: int, record: dict[str, Any] | None) -> Iterator[None]:
        def note(path: str, output: Any) -> None:
            name = _reference_name(path, step)
            # Norms that add the residual hand back both, the normed one first.
            first = output[0] if isinstance(output, tuple) else output
            if record is not None and hasattr(first, "clone"):
                record.setdefault(name, first.clone())

        handles = [
            module.register_forward_hook(lambda _module, _args, out, path=path: note(path, out))
            for path, module in self.model.named_modules()
            if record is not None and path
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


def _reference_name(path: str, step: int) -> str:
    """Return what `reference.ReferenceDraft` calls the output of a module of the draft class."""
    name = canonical_name(path)
    if name in ("fc", "input_norm"):
        return name
    layer, _, norm = name.rpartition(".")
    if norm == "hidden_norm" and layer != "layers.0":
        name = f"{layer}.input_layernorm"
    return f"step{step}.{name}"


def become_rank(model_path: str) -> None:
    """Make this process what a scheduler's is before it loads models: one rank, gloo, the CPU.

    Idempotent. `model_path` is a folder whose config SGLang can read: its arguments want one.
    """
    import torch
    from sglang.srt.distributed import parallel_state

    if torch.distributed.is_initialized():
        return
    arguments = _publish_arguments(model_path)
    folder = tempfile.mkdtemp(prefix="sglang-eagle3-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    parallel_state.init_distributed_environment(
        world_size=1,
        rank=0,
        local_rank=0,
        backend="gloo",
        distributed_init_method=f"file://{folder}/meeting-point",
    )
    parallel_state.initialize_model_parallel(backend="gloo")
    _place_attention(arguments)


def _publish_arguments(model_path: str) -> Any:
    from sglang.srt import server_args

    arguments = server_args.ServerArgs(model_path=model_path, device="cpu", dtype="float32")
    if hasattr(arguments, "resolve_once"):
        arguments.resolve_once()
    try:
        from sglang.srt import runtime_context
    except ImportError:
        runtime_context = None
    if hasattr(runtime_context, "SpawnRanks"):
        ranks = runtime_context.SpawnRanks(world_rank=0, gpu_id=0)
        runtime_context.publish(arguments, role="scheduler", ranks=ranks)
    else:
        server_args.set_global_server_args_for_scheduler(arguments)
    return arguments


def _place_attention(arguments: Any) -> None:
    from sglang.srt.configs.model_config import ModelConfig
    from sglang.srt.layers.dp_attention import initialize_dp_attention

    given = {"server_args": arguments}
    # Releases up to 0.5.20 size buffers by the model.
    if "model_config" in inspect.signature(initialize_dp_attention).parameters:
        given["model_config"] = ModelConfig.from_server_args(arguments)
    initialize_dp_attention(**given)


def _attention_backend() -> Any:
    """Return a `RowAttention` with the defaults of SGLang's own base class around it."""
    from sglang.srt.layers.attention.base_attn_backend import AttentionBackend

    return type("RowAttentionBackend", (RowAttention, AttentionBackend), {})()


def make_batch(ids: Any, positions: Any, states: Any, mode: Any, attention: Any = None) -> Any:
    """Return a `ForwardBatch` whose rows, all `[T]`, are requests of their own.

    `states` `[T, width]` are the hidden states that enter the draft.
    """
    from types import SimpleNamespace

    from sglang.srt.model_executor.forward_batch_info import ForwardBatch

    batch = ForwardBatch(
        forward_mode=mode,
        batch_size=len(ids),
        input_ids=ids,
        req_pool_indices=positions,
        seq_lens=positions + 1,
        out_cache_loc=positions,
        seq_lens_sum=int((positions + 1).sum()),
    )
    batch.positions = positions
    batch.spec_info = SimpleNamespace(hidden_states=states)
    batch.extend_prefix_lens_cpu = [0] * len(ids)
    # Where releases up to 0.5.13 look for them; newer ones look into the context.
    batch.attn_backend = batch.token_to_kv_pool = attention
    return batch


@contextmanager
def _in_context(attention: Any) -> Iterator[None]:
    """Name the attention where newer releases look for it."""
    try:
        from sglang.srt.model_executor.forward_context import ForwardContext, forward_context
    except ImportError:
        yield
        return
    with forward_context(ForwardContext(attn_backend=attention)):
        yield
