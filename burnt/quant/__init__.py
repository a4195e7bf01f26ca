"""Quantization: `burnt.quantize` and `burnt.dequantize`, on any torch module.

- `api`: the two functions.
- `ranges`: scales of weights.
- `report`: what was quantized, and what was not.

The layers are in `burnt.nn.quantized`, the kernels in `burnt.kernels.ops.quantized`, schemes in
`burnt.scheme`.
"""

from burnt.quant.report import LayerReport, QuantReport

__all__ = ["LayerReport", "QuantReport"]
