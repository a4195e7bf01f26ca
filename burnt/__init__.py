"""A thin deep-learning framework on torch tensors: Module, Record and Learner.

Every public name is imported when it is first used: `import burnt` loads neither torch nor anything heavy,
so that `burnt runs` and the monitor open at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from burnt import _lazy
from burnt import errors as errors
from burnt._lazy import attach
from burnt._version import __version__ as __version__

if TYPE_CHECKING:
    from burnt import data as data
    from burnt import kernels as kernels
    from burnt import memory as memory
    from burnt import models as models
    from burnt import nn as nn
    from burnt import onnx as onnx
    from burnt import optim as optim
    from burnt import quant as quant
    from burnt import record as record
    from burnt import train as train
    from burnt.codegen import fuse as fuse
    from burnt.config import Config as Config
    from burnt.device import device_info as device_info
    from burnt.fusion.backend import compile as compile
    from burnt.fusion.explanation import explain as explain
    from burnt.fusion.inductor import inductor_pass as inductor_pass
    from burnt.gradients import Gradients as Gradients
    from burnt.inspect import CheckReport as CheckReport
    from burnt.inspect import Summary as Summary
    from burnt.inspect import TensorSpec as TensorSpec
    from burnt.inspect import check as check
    from burnt.inspect import freeze as freeze
    from burnt.inspect import num_params as num_params
    from burnt.inspect import summary as summary
    from burnt.inspect import unfreeze as unfreeze
    from burnt.module import Module as Module
    from burnt.module import field as field
    from burnt.quant.api import dequantize as dequantize
    from burnt.quant.api import quantize as quantize
    from burnt.record import Record as Record
    from burnt.record import load_weights as load_weights
    from burnt.scheme import QuantScheme as QuantScheme
    from burnt.swapping import swap as swap
    from burnt.swapping import unswap as unswap
    from burnt.train.after.loading import load as load
    from burnt.train.after.prediction import predict as predict
    from burnt.train.logged import log as log
    from burnt.train.placement import place as place


_NAMES = {
    "burnt": "data kernels memory models nn onnx optim quant record train",
    "burnt.codegen.function": "fuse",
    "burnt.config": "Config",
    "burnt.device": "device_info",
    "burnt.fusion.backend": "compile",
    "burnt.fusion.explanation": "explain",
    "burnt.fusion.inductor": "inductor_pass",
    "burnt.gradients": "Gradients",
    "burnt.inspect": "CheckReport Summary TensorSpec check freeze num_params summary unfreeze",
    "burnt.module": "Module field",
    "burnt.quant.api": "dequantize quantize",
    "burnt.record": "Record load_weights",
    "burnt.scheme": "QuantScheme",
    "burnt.swapping": "swap unswap",
    "burnt.train.after.loading": "load",
    "burnt.train.after.prediction": "predict",
    "burnt.train.logged": "log",
    "burnt.train.placement": "place",
}
if not TYPE_CHECKING:  # a __getattr__ would make every name known to type checkers, misspelt ones too
    __getattr__, __dir__, __all__ = attach(globals(), _NAMES)
    __all__ += ["__version__", "errors"]


def _build_quantized(layer: Any, entry: Mapping[str, Any], shape: tuple[int, ...] | None) -> Any:
    from burnt.nn.quantized import build_quantized

    return build_quantized(layer, entry, shape)


_lazy.build_quantized = _build_quantized
