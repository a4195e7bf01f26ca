"""Constant inputs as weights of layers."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from burnt.onnx.importer.build import Build
from burnt.onnx.importer.dtypes import to_tensor
from burnt.onnx.importer.node import Node

FLOATS = ("float16", "float32", "float64", "bfloat16")


def float_constant(
    build: Build, node: Node, index: int, rank: int | None = None
) -> np.ndarray[Any, Any] | None:
    """Return a constant input of floating-point type that is a weight of this node's layer, else None."""
    constant = build.constant(node, index)
    if constant is None or constant.dtype.name not in FLOATS or rank not in (None, constant.ndim):
        return None
    return constant if build.is_weight(node, index) else None


def set_weights(layer: Any, **arrays: np.ndarray[Any, Any] | None) -> Any:
    """Put arrays into the parameters and buffers of a layer, in their dtype; return the layer."""
    for name, array in arrays.items():
        if array is not None:
            is_parameter = isinstance(getattr(layer, name), torch.nn.Parameter)
            setattr(layer, name, torch.nn.Parameter(to_tensor(array)) if is_parameter else to_tensor(array))
    return layer
