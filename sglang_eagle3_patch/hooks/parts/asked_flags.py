"""What the config of a draft in hand asks its model to compute beyond the plain EAGLE-3 layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sglang_eagle3_patch.checkpoint.flags import stated_flag


@dataclass(frozen=True)
class AskedFlags:
    """The flags of one config object; None is unstated where producers differ in its meaning."""

    norm_before_residual: bool | None
    norm_before_fc: bool
    fc_norm: bool
    norm_output: bool
    qk_norm: bool
    qkv_bias: bool
    mlp_bias: bool

    @classmethod
    def of(cls, config: Any) -> AskedFlags:
        """Read a config as SGLang hands it to a draft class, `eagle_config` before the top."""
        values = vars(config)

        def asked(*names: str) -> bool:
            return bool(stated_flag(values, *names))

        residual = stated_flag(values, "norm_before_residual")
        if residual is None and "norm_before_residual" not in values:
            residual = False  # no speculators config, whose translation states it
        llama = getattr(config, "model_type", "") == "llama"
        return cls(
            norm_before_residual=residual,
            norm_before_fc=asked("norm_before_fc"),
            fc_norm=asked("fc_norm", "use_aux_norm"),
            norm_output=asked("norm_output", "return_hidden_post_norm"),
            qk_norm=llama and asked("qk_norm"),
            qkv_bias=llama and asked("attention_bias"),
            mlp_bias=llama and asked("mlp_bias"),
        )
