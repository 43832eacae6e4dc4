"""The smallest processor that SGLang accepts for a Kimi-K2.5 folder: text only."""

from transformers import ProcessorMixin


class _MediaProcessor:
    media_proc_cfg = {
        "patch_size": 14,
        "merge_kernel_size": 2,
        "in_patch_limit": 64,
        "patch_limit_on_one_side": 32,
        "fixed_output_tokens": None,
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
    }


class TinyKimiProcessor(ProcessorMixin):
    attributes = ["tokenizer"]
    tokenizer_class = "AutoTokenizer"

    def __init__(self, tokenizer=None, **kwargs):
        super().__init__(tokenizer)
        self.media_processor = self.image_processor = _MediaProcessor()
