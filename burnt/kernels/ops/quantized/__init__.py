"""Quantized ops.

- `values`: how quantized values lie in memory.
- `quantize`: `quantize`, `dequantize`, `quantize_rows`.
- `weight_only`: `quantized_linear`, `quantized_embedding`: quantized weights, floating-point inputs.
- `scaled`: `scaled_linear`, `scaled_conv`: quantized weights and inputs.
"""
