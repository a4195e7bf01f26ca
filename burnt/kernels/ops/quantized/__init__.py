"""Quantized ops.

- `values`: how quantized values lie in memory.
- `quantize`: `quantize`, `dequantize`, `quantize_rows`, `quantize_tensor`.
- `weight_only`: `quantized_linear`, `quantized_embedding`: quantized weights, floating-point inputs.
- `weight_only_gpu`, `weight_only_config`, `weight_only_triton`: their Triton candidate, its block sizes, its
  kernels; `weight_only_sum`: a few rows as one generated reduction, on Metal.
- `weight_only_c`: a few rows times a packed weight, in C.
- `scaled`: `scaled_linear`, `scaled_conv`: quantized weights and inputs.
- `scaled_cpu`: oneDNN's and float32 products, with one kernel for the epilogue.
- `scaled_gpu`, `scaled_config`, `scaled_triton`: as above; `scaled_library`: cuBLASLt.
- `values_triton`: device functions that the Triton kernels share.
"""
