"""Quantization: `burnt.quantize` and `burnt.dequantize`, on any torch module.

`api` has the two functions, calls the steps in order and replaces the layers: `sites` (which layers),
`calibration` (with `observers`), `fold` (what leaves the float outputs), `ranges`, `report`.

The layers are in `burnt.nn.quantized`, the kernels in `burnt.kernels.ops.quantized`, schemes in
`burnt.scheme`.
"""

from burnt.quant.compressed_tensors import save_compressed_tensors
from burnt.quant.report import LayerReport, QuantReport
from burnt.quant.torchao import from_torchao

__all__ = ["LayerReport", "QuantReport", "from_torchao", "save_compressed_tensors"]
