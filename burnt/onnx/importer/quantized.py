"""Quantized layers from quantized weights of ONNX, where a scheme of burnt says the same."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from burnt.nn.quantized import Quantized, quantized_class
from burnt.onnx.functions.quantization import dequantize_linear
from burnt.onnx.importer.build import Build, Dequantized
from burnt.onnx.importer.dtypes import to_tensor
from burnt.onnx.importer.matching import producer_of
from burnt.onnx.importer.node import Node
from burnt.scheme import QuantScheme

# burnt's value and what is subtracted from values and zero points, which are signed in burnt.
_VALUES = {
    "int8": ("int8", 0),
    "uint8": ("int8", 128),
    "int4": ("int4", 0),
    "uint4": ("int4", 8),
    "int2": ("int2", 0),
    "uint2": ("int2", 2),
    "float8_e4m3fn": ("float8_e4m3", 0),
    "float8_e5m2": ("float8_e5m2", 0),
    "float4_e2m1fn": ("float4_e2m1", 0),
}
_SCALES = {"float32": "float32", "float16": "float16", "bfloat16": "bfloat16"}


@dataclasses.dataclass
class QuantizedWeight:
    """A weight ``[rows, ...]`` with what a scheme says of it."""

    scheme: QuantScheme  # without activations
    weight: Tensor  # the values that it stands for, in the dtype of the scales
    scale: Tensor  # in the scheme's shape
    zero_point: Tensor | None  # int8, in the same shape; None for symmetric schemes


def quantized_weight(
    build: Build, node: Node, index: int, *, is_transposed: bool = False
) -> QuantizedWeight | None:
    """Return a dequantized constant input that nothing else reads, where burnt has its scheme; or None."""
    value = build.known(node, index)
    if not isinstance(value, Dequantized) or not _is_own(build, node, index):
        return None
    inner = value.node
    values, scale, zero_point = (value.build.constant(inner, i) for i in range(3))
    if values is None or scale is None or (inner.has(2) and zero_point is None):
        return None
    if values.dtype.name not in _VALUES or scale.dtype.name not in _SCALES or values.ndim < 2:
        return None
    if inner.attr("output_dtype", 0):
        return None
    axis, block = inner.attr("axis", 1), inner.attr("block_size", 0)
    weight = dequantize_linear(
        to_tensor(values),
        to_tensor(scale),
        None if zero_point is None else to_tensor(zero_point),
        axis,
        block,
    )
    parts = [scale, zero_point]
    row_axis = 1 if is_transposed else 0
    if is_transposed:
        weight = weight.t().contiguous()
    level: Literal["tensor", "channel", "block"] = "channel"
    size = None
    if block:
        level, size = "block", block
        if values.ndim != 2 or axis % 2 == row_axis or block % 2:
            return None
        parts = [part.T if is_transposed and part is not None else part for part in parts]
    elif scale.size == 1:
        level = "tensor"
    elif axis % values.ndim != row_axis:
        return None
    kind, offset = _VALUES[values.dtype.name]
    assert parts[0] is not None
    zeros = (np.zeros(parts[0].shape) if parts[1] is None else parts[1]).astype(np.int64) - offset
    # Of unsigned weights quantized by range, some happen to be symmetric: layers of a loop have one scheme.
    is_ranged = offset == 128 and _dynamic_source(node.node) is not None
    is_symmetric = not zeros.any() and not is_ranged
    scheme = QuantScheme(kind, level, size, symmetric=is_symmetric, scale=_SCALES[scale.dtype.name])
    shape = scheme.scale_shape(weight.shape[0], weight[0].numel())
    if scale.size != shape[0] * shape[1]:
        return None
    return QuantizedWeight(
        scheme,
        weight,
        to_tensor(np.ascontiguousarray(parts[0])).reshape(shape),
        torch.from_numpy(np.ascontiguousarray(zeros)).to(torch.int8).reshape(shape)
        if not is_symmetric
        else None,
    )


def _is_own(build: Build, node: Node, index: int) -> bool:
    """Whether one layer has a weight: this node's, or that of several which quantize inputs by range."""
    if node.is_only_use(index):
        return True
    value = node.node.inputs[index]
    assert value is not None
    return build.is_weight(node, index) and all(map(_dynamic_source, (use.node for use in value.uses())))


def _dynamic_source(reader: Any) -> Any:
    """Return what was quantized by its own range, and dequantized as the first input of a node; else None."""
    dequantize = producer_of(reader.inputs[0], "DequantizeLinear")
    dynamic = None if dequantize is None else producer_of(dequantize.inputs[0], "DynamicQuantizeLinear")
    if dynamic is None or dequantize is None:
        return None
    return dynamic.inputs[0] if list(dequantize.inputs) == list(dynamic.outputs) else None


def fill_layer(
    layer: torch.nn.Module, found: QuantizedWeight, activations: Any = None, static: Any = None
) -> Quantized | None:
    """Return the quantized layer for a layer, which has its bias and gets the weight.

    `static` is the scale and zero point of the input, in signed values. None if it would not compute with the
    same weight.
    """
    kind = quantized_class(layer)
    if kind is None:
        return None
    layer.weight = torch.nn.Parameter(found.weight)
    quantized = kind(layer, dataclasses.replace(found.scheme, activations=activations))
    quantized.set_weight(found.weight.flatten(1), found.scale, found.zero_point)
    if static is not None and quantized.input_scale is not None:
        scale, zero_point = static
        quantized.input_scale.fill_(scale)
        if quantized.input_zero_point is not None:
            quantized.input_zero_point.fill_(zero_point)
    return quantized if torch.equal(quantized.weight, found.weight) else None


def add_quantized(
    build: Build, node: Node, layer: torch.nn.Module, weight: QuantizedWeight, *, hint: str, x: Any = None
) -> Any:
    """Add a quantized layer and its call; None if burnt has no layer with this weight.

    `layer` has its bias, and its weight on the meta device. It is called with `x`, or the node's first input.
    """
    activations, source, static = None, None, None
    if x is None and not weight.scheme.type.is_float:
        source = _dynamic_source(node.node)
        if source is not None:
            activations, x = "dynamic_tensor", build.as_tensor(build.find(source))
        elif (found := _static_input(build, node, 0)) is not None:
            activations, x, static = "static", build.as_tensor(found[0]), found[1]
    quantized = fill_layer(layer, weight, activations, static)
    if quantized is None:
        return None
    return build.layer(quantized, build.tensor(node, 0) if x is None else x, hint=hint)


def _static_input(build: Build, node: Node, index: int) -> tuple[Any, Any] | None:
    """Return the tensor before an input's quantization, and (scale, zero point) of it; None if it has none.

    Only 8-bit integers with one scale, next to weights of integers, are what a scheme can say.
    """
    value = build.known(node, index)
    if not isinstance(value, Dequantized) or value.source is None:
        return None
    scale, zero_point = (value.build.constant(value.node, i) for i in (1, 2))
    if scale is None or zero_point is None or zero_point.dtype not in (np.int8, np.uint8):
        return None
    offset = 128 if zero_point.dtype == np.uint8 else 0
    return value.source, (float(scale.item()), int(zero_point.item()) - offset)
