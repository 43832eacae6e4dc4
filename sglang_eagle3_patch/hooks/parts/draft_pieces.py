"""The pieces of a draft's forward that SGLang's classes may lack, and how they are put in.

Each is the smallest submodule that does it, under the name by which checkpoints and the class's
own `load_weights` call its weight, or a torch hook on a submodule. Nothing of a forward is
copied, nothing syncs with the device, and captured graphs hold what the hooks launched.
"""

from __future__ import annotations

import copy
import math
from typing import Any

from sglang_eagle3_patch.checkpoint.rope import stated_rope
from sglang_eagle3_patch.hooks.parts.asked_flags import AskedFlags
from sglang_eagle3_patch.hooks.parts.expected_tensors import fc_input_width, inner_model


def lacking(draft: Any, asked: AskedFlags) -> list[str]:
    """Return the names of the asked flags that the draft in hand does not compute."""
    model = inner_model(draft)
    layer = input_layer(model)
    computed = {
        "norm_before_residual": getattr(layer, "norm_before_residual", False),
        "norm_before_fc": getattr(model, "input_norm", None) is not None,
        "fc_norm": getattr(model, "fc_norm", None) is not None,
        "norm_output": getattr(model, "norm_output", False),
        "qkv_bias": _has_bias(layer.self_attn, "qkv_proj"),
        "qk_norm": hasattr(layer.self_attn, "q_norm"),
        # Nothing puts it in: newer releases fuse the MLP into a kernel that knows no bias.
        "mlp_bias": _has_bias(layer.mlp, "gate_up_proj"),
    }
    return [flag for flag, done in computed.items() if getattr(asked, flag) and not done]


def _has_bias(module: Any, projection: str) -> bool:
    return getattr(getattr(module, projection, None), "bias", None) is not None


def trained_amplitude(draft: Any) -> float | None:
    """Return the factor on cos and sin that the draft was trained with, None where it has it.

    Releases up to 0.5.15 go by yarn's `factor` alone and ignore `mscale` and `mscale_all_dim`;
    none heeds `attention_factor`.
    """
    config = draft.config.to_dict()
    rope = stated_rope(config)
    built = getattr(input_layer(inner_model(draft)).self_attn, "rotary_emb", None)
    # DeepSeek's attention has a rule of its own; `attn_factor` is SGLang's own word for it.
    if config["model_type"] != "llama" or rope.kind != "yarn" or "attn_factor" in rope.scaling:
        return None
    wanted = rope.amplitude(mla=False)
    found = getattr(built, "mscale", None)
    return None if found is None or math.isclose(found, wanted, rel_tol=1e-6) else wanted


def set_amplitude(draft: Any, amplitude: float) -> None:
    """Give every layer a rope of its own with this factor on cos and sin.

    SGLang keeps one module for all models with the same settings; the target's stays as it is.
    """
    for layer in decoder_layers(inner_model(draft)):
        own = copy.deepcopy(layer.self_attn.rotary_emb)
        own.cos_sin_cache.mul_(amplitude / own.mscale)
        own.mscale = amplitude
        layer.self_attn.rotary_emb = own


def input_layer(model: Any) -> Any:
    """Return the decoder layer that takes the embedding beside the hidden state."""
    return decoder_layers(model)[0]


def decoder_layers(model: Any) -> list[Any]:
    """Return all decoder layers of a draft's inner model."""
    return [model.midlayer] if hasattr(model, "midlayer") else list(model.layers)


def norm_before_residual(draft: Any) -> None:
    """Have the input layer's residual be the normed hidden state, as speculators trains it.

    The layer is handed the hidden state normed, and its own norm passes it on as it is; the norm
    keeps its place, and so the name of its weight.
    """
    layer = input_layer(inner_model(draft))
    norm = layer.hidden_norm.forward

    def enter(_layer: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
        positions, embeds, hidden_states, *rest = args
        return (positions, embeds, norm(hidden_states), *rest)

    layer.hidden_norm.forward = lambda hidden_states: hidden_states
    layer.register_forward_pre_hook(enter)
    layer.norm_before_residual = True


def double_input_norm(draft: Any) -> None:
    """Norm the hidden state by the input layer's `input_layernorm` before its `hidden_norm`.

    So ModelOpt's trainer does: its layer keeps its own norm of what comes in, which is the hidden
    state, while a hook norms it again.
    """
    layer = input_layer(inner_model(draft))
    norm = layer.hidden_norm.forward
    layer.hidden_norm.forward = lambda hidden_states: norm(layer.input_layernorm(hidden_states))


def norm_before_fc(draft: Any) -> None:
    """Norm all aux hidden states of a token at once before `fc`, which only they go through."""
    from sglang.srt.layers.layernorm import RMSNorm

    model = inner_model(draft)
    class_applies_it = hasattr(model, "input_norm")
    model.input_norm = RMSNorm(fc_input_width(model.fc), eps=model.config.rms_norm_eps)
    if not class_applies_it:
        model.fc.register_forward_pre_hook(lambda _fc, args: (model.input_norm(args[0]),))


def fc_norm(draft: Any) -> None:
    """Norm each aux hidden state by itself before `fc`."""
    import torch
    from sglang.srt.layers.layernorm import RMSNorm

    model = inner_model(draft)
    class_applies_it = hasattr(model, "fc_norm")
    # Releases up to 0.5.11 know no other number than three.
    number = getattr(model, "num_aux_hidden_states", 3)
    width = fc_input_width(model.fc) // number
    model.fc_norm = torch.nn.ModuleList(
        RMSNorm(width, eps=model.config.rms_norm_eps) for _ in range(number)
    )

    def norm_each(_fc: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
        pairs = zip(model.fc_norm, args[0].chunk(number, dim=-1), strict=True)
        # Norm kernels of older releases want their rows next to one another.
        return (torch.cat([norm(state.contiguous()) for norm, state in pairs], dim=-1),)

    if not class_applies_it:
        model.fc.register_forward_pre_hook(norm_each)


def norm_output(draft: Any) -> None:
    """Have the next draft step be fed the normed hidden state, for as long as the flag is set."""
    model = inner_model(draft)
    class_applies_it = hasattr(model, "norm_output")
    model.norm_output = True
    if not class_applies_it:
        model.register_forward_hook(
            lambda _model, _args, out: (out[0], [out[0]]) if model.norm_output else out
        )


def qkv_bias(draft: Any) -> None:
    """Give q, k and v of every layer the bias that the draft class builds them without."""
    from sglang.srt.layers.linear import QKVParallelLinear

    for layer in decoder_layers(inner_model(draft)):
        built = layer.self_attn.qkv_proj
        # As the class names it itself: a quantisation excludes modules by this.
        layer.self_attn.qkv_proj = QKVParallelLinear(
            built.hidden_size,
            built.head_size,
            built.total_num_heads,
            built.total_num_kv_heads,
            bias=True,
            quant_config=draft.quant_config,
            prefix="model.qkv_proj",
        )


def qk_norm(draft: Any) -> None:
    """Norm each head of q and k before they are rotated, as Qwen3's layer does."""
    import torch
    from sglang.srt.layers.layernorm import RMSNorm

    eps = draft.config.rms_norm_eps

    def put_into(attention: Any) -> None:
        size = attention.head_dim
        attention.q_norm, attention.k_norm = RMSNorm(size, eps=eps), RMSNorm(size, eps=eps)

        def norm_heads(_projection: Any, _args: Any, out: tuple[Any, Any]) -> tuple[Any, Any]:
            qkv, bias = out
            q, k, v = qkv.split([attention.q_size, attention.kv_size, attention.kv_size], dim=-1)
            q = attention.q_norm(q.reshape(-1, size)).view(q.shape)
            k = attention.k_norm(k.reshape(-1, size)).view(k.shape)
            return torch.cat([q, k, v], dim=-1), bias

        attention.qkv_proj.register_forward_hook(norm_heads)

    for layer in decoder_layers(inner_model(draft)):
        put_into(layer.self_attn)


# In the order in which they are put in: a bias replaces the projection that a norm hangs on.
PIECES = {
    piece.__name__: piece
    for piece in (
        norm_before_residual,
        norm_before_fc,
        fc_norm,
        norm_output,
        qkv_bias,
        qk_norm,
    )
}
