"""A thin deep-learning framework on torch tensors: Module, Record and Learner.

Every public name is imported when it is first used: `import burnt` loads neither torch nor anything heavy,
so that `burnt runs` and the monitor open at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from burnt import _lazy, errors
from burnt._lazy import attach
from burnt._version import __version__

if TYPE_CHECKING:
    from burnt import data, kernels, memory, models, nn, onnx, optim, quant, record, train
    from burnt.codegen import explain, fuse
    from burnt.config import Config
    from burnt.device import device_info
    from burnt.gradients import Gradients
    from burnt.inspect import CheckReport, Summary, TensorSpec, check, freeze, num_params, summary, unfreeze
    from burnt.module import Module, field
    from burnt.quant.api import dequantize, quantize
    from burnt.record import Record, load_weights
    from burnt.scheme import QuantScheme
    from burnt.swapping import swap, unswap
    from burnt.train.after.loading import load
    from burnt.train.after.prediction import predict
    from burnt.train.logged import log


_HOMES = {
    "CheckReport": "burnt.inspect",
    "Config": "burnt.config",
    "Gradients": "burnt.gradients",
    "Module": "burnt.module",
    "QuantScheme": "burnt.scheme",
    "Record": "burnt.record",
    "Summary": "burnt.inspect",
    "TensorSpec": "burnt.inspect",
    "check": "burnt.inspect",
    "data": "burnt.data",
    "dequantize": "burnt.quant.api",
    "device_info": "burnt.device",
    "explain": "burnt.codegen.explanation",
    "fuse": "burnt.codegen.function",
    "field": "burnt.module",
    "freeze": "burnt.inspect",
    "kernels": "burnt.kernels",
    "load": "burnt.train.after.loading",
    "load_weights": "burnt.record",
    "log": "burnt.train.logged",
    "memory": "burnt.memory",
    "models": "burnt.models",
    "nn": "burnt.nn",
    "num_params": "burnt.inspect",
    "onnx": "burnt.onnx",
    "optim": "burnt.optim",
    "predict": "burnt.train.after.prediction",
    "quant": "burnt.quant",
    "quantize": "burnt.quant.api",
    "record": "burnt.record",
    "summary": "burnt.inspect",
    "swap": "burnt.swapping",
    "train": "burnt.train",
    "unfreeze": "burnt.inspect",
    "unswap": "burnt.swapping",
}
if not TYPE_CHECKING:  # a __getattr__ would make every name known to type checkers, misspelt ones too
    __getattr__, __dir__ = attach(globals(), _HOMES)


def _build_quantized(layer: Any, entry: Mapping[str, Any], shape: tuple[int, ...] | None) -> Any:
    from burnt.nn.quantized import build_quantized

    return build_quantized(layer, entry, shape)


_lazy.build_quantized = _build_quantized

__all__ = [
    "CheckReport",
    "Config",
    "Gradients",
    "Module",
    "QuantScheme",
    "Record",
    "Summary",
    "TensorSpec",
    "__version__",
    "check",
    "data",
    "dequantize",
    "device_info",
    "errors",
    "explain",
    "field",
    "freeze",
    "fuse",
    "kernels",
    "load",
    "load_weights",
    "log",
    "memory",
    "models",
    "nn",
    "num_params",
    "onnx",
    "optim",
    "predict",
    "quant",
    "quantize",
    "record",
    "summary",
    "swap",
    "train",
    "unfreeze",
    "unswap",
]
