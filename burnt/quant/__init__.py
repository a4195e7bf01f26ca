"""Quantization: `burnt.quantize` and `burnt.dequantize`, on any torch module.

- `api`: the two functions.
- `sites`: which layers may be quantized, and by what.
- `conversion`: quantized layers in the place of others; `ranges`: scales of weights.
- `compressed_tensors`: folders for vLLM and transformers.
- `torchao`: layers from models that torchao has quantized.
- `calibration`: runs a model over some batches; `observers` and `flow` watch its layers meanwhile.
- `fold`, `smooth`: what changes before quantization and leaves the float outputs: batch norms, outliers;
  `copies` of layers.
- `report`: what was quantized, and what was not.

The layers are in `burnt.nn.quantized`, the kernels in `burnt.kernels.ops.quantized`, schemes in
`burnt.scheme`.
"""

from burnt.quant.compressed_tensors import save_compressed_tensors
from burnt.quant.report import LayerReport, QuantReport
from burnt.quant.torchao import from_torchao

__all__ = ["LayerReport", "QuantReport", "from_torchao", "save_compressed_tensors"]
