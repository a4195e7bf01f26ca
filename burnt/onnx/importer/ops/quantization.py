"""Quantized values."""

from __future__ import annotations

from typing import Any

import numpy as np

from burnt.onnx.functions.quantization import dequantize_linear
from burnt.onnx.importer.build import Build, Dequantized
from burnt.onnx.importer.dtypes import to_array, to_tensor, torch_dtype, type_name
from burnt.onnx.importer.node import Node, handler
from burnt.onnx.importer.program import Name


def _kind(node: Node, index: int) -> int:
    """Return the TensorProto.DataType of an input; 0 if it is not known."""
    value = node.node.inputs[index] if node.has(index) else None
    return 0 if value is None or value.dtype is None else int(value.dtype.value)


@handler("QuantizeLinear")
@handler("QuantizeLinear", domain="com.microsoft")
def _quantize(build: Build, node: Node) -> Any:
    kind = node.attr("output_dtype", 0) or _kind(node, 2) or 2
    options: dict[str, Any] = {"axis": node.attr("axis", 1), "block": node.attr("block_size", 0)}
    if node.attr("precision", 0):
        options["dtype"] = torch_dtype(node.attr("precision"))
    if not node.attr("saturate", 1):
        options["saturate"] = False
    inputs = [build.tensor(node, i) for i in range(3)]
    name = type_name(kind)
    if name.startswith("float"):
        inputs[2] = None
    return build.call("ops.quantize_linear", *inputs, name, hint="quantized", **options)


@handler("DequantizeLinear")
@handler("DequantizeLinear", domain="com.microsoft")
def _dequantize(build: Build, node: Node) -> Any:
    options: dict[str, Any] = {"axis": node.attr("axis", 1), "block": node.attr("block_size", 0)}
    if node.attr("output_dtype", 0):
        options["dtype"] = torch_dtype(node.attr("output_dtype"))

    def emit(build: Build) -> Name:
        inputs = [build.tensor(node, i) for i in range(3)]
        return build.call("ops.dequantize_linear", *inputs, hint="dequantized", **options)

    arrays = [build.constant(node, i) for i in range(3)]
    if arrays[0] is not None and arrays[0].dtype == np.int32 and arrays[1] is not None:  # a bias
        zero_point = None if arrays[2] is None else to_tensor(arrays[2])
        return to_array(dequantize_linear(to_tensor(arrays[0]), to_tensor(arrays[1]), zero_point, **options))
    return Dequantized(node, build, emit, _quantized_just_before(build, node))


def _quantized_just_before(build: Build, node: Node) -> Any:
    """Return what a QuantizeLinear before a DequantizeLinear takes, if both have one scale and zero point."""
    value = node.node.inputs[0]
    before = None if value is None else value.producer()
    if before is None or before.op_type != "QuantizeLinear" or before.graph is not node.node.graph:
        return None
    quantize = Node(before, node.version)
    for index in (1, 2):
        one, other = build.constant(quantize, index), build.constant(node, index)
        if (
            one is None
            or other is None
            or one.size != 1
            or one.dtype != other.dtype
            or one.item() != other.item()
        ):
            return None
    return None if build.constant(quantize, 0) is not None else build.value(quantize, 0)
