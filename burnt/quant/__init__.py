"""Quantization: `burnt.quantize` and `burnt.dequantize`, on any torch module.

`api` has the two functions and calls the steps in order: `sites` (which layers), `calibration` (with
`observers` and `flow`), `fold` (what leaves the float outputs), `conversion` (with `ranges`),
`report`.

The layers are in `burnt.nn.quantized`, the kernels in `burnt.kernels.ops.quantized`, schemes in
`burnt.scheme`.
"""

from burnt.quant.compressed_tensors import save_compressed_tensors
from burnt.quant.report import LayerReport, QuantReport
from burnt.quant.torchao import from_torchao

__all__ = ["LayerReport", "QuantReport", "from_torchao", "save_compressed_tensors"]
