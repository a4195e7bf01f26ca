"""Quantization: `burnt.quantize` and `burnt.dequantize`, on any torch module.

- `api`: the two functions.
- `ranges`: scales of weights.
- `compressed_tensors`: folders for vLLM and transformers.
- `torchao`: layers from models that torchao has quantized.
- `report`: what was quantized, and what was not.

The layers are in `burnt.nn.quantized`, the kernels in `burnt.kernels.ops.quantized`, schemes in
`burnt.scheme`.
"""

from burnt.quant.compressed_tensors import save_compressed_tensors
from burnt.quant.report import LayerReport, QuantReport
from burnt.quant.torchao import from_torchao

__all__ = ["LayerReport", "QuantReport", "from_torchao", "save_compressed_tensors"]
