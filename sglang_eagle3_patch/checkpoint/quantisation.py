"""By what a checkpoint tells whether it is quantised."""

from __future__ import annotations

# In config.json, or in a file beside it.
QUANTISATION_KEYS = ("quantization_config", "compression_config")
QUANTISATION_FILES = ("hf_quant_config.json", "quant_config.json", "quantize_config.json")
# Dtypes of plain weights, and the tensors that are integers or booleans by nature.
FLOATS = ("F64", "F32", "F16", "BF16")
MAPS = ("d2t", "t2d")
