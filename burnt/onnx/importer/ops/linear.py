"""Matrix products."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from burnt import nn
from burnt.onnx.importer.build import Build
from burnt.onnx.importer.dtypes import to_tensor
from burnt.onnx.importer.node import Node
from burnt.onnx.importer.ops.elementwise import WIDE
from burnt.onnx.importer.quantized import QuantizedWeight, add_quantized, quantized_weight
from burnt.onnx.importer.registry import handler

_FLOATS = ("float16", "bfloat16", "float32", "float64")


def _is_weight(build: Build, node: Node, index: int, rank: int) -> bool:
    """Whether an input is a floating-point constant of a rank, and a weight of this node's layer."""
    array = build.constant(node, index)
    is_float = array is not None and array.dtype.name in _FLOATS
    return is_float and array is not None and array.ndim == rank and build.is_weight(node, index)


def _count(value: Any) -> int:
    return len(list(value.uses())) + int(value.is_graph_output())


def _linear(build: Build, x: Any, weight: np.ndarray[Any, Any], bias: np.ndarray[Any, Any] | None) -> Any:
    """Add a linear layer with a weight ``[out, in]``; of rows, it takes the tensor whose rows they are."""
    tensor = to_tensor(weight)
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    layer.weight = torch.nn.Parameter(tensor)
    if bias is not None:
        layer.bias = torch.nn.Parameter(to_tensor(bias))
    if x not in build.rows:
        return build.layer(layer, x, hint="linear")
    source, sizes = build.rows[x]
    result = build.layer(layer, source, hint="linear")
    rows = build.call("torch.flatten", result, 0, len(sizes) - 2, hint="linear")
    build.rows[rows] = result, [*sizes[:-1], weight.shape[0]]
    build.reshaped[rows] = *build.rows[rows], [None, weight.shape[0]]
    return rows


def _quantized_linear(
    build: Build, node: Node, weight: QuantizedWeight, bias: np.ndarray[Any, Any] | None
) -> Any:
    """Add a quantized linear layer; None if burnt has none with this weight."""
    rows, columns = weight.weight.shape
    layer = nn.Linear(columns, rows, bias=bias is not None, device="meta", dtype=weight.weight.dtype)
    if bias is not None:
        layer.bias = torch.nn.Parameter(to_tensor(bias))
    return add_quantized(build, node, layer, weight, hint="linear")


@handler("MatMul")
def _matmul(build: Build, node: Node) -> Any:
    quantized = quantized_weight(build, node, 1, is_transposed=True)
    if quantized is not None:
        bias, consumer = _bias_after(build, node, quantized.weight.shape[0])
        result = _quantized_linear(build, node, quantized, bias)
        if result is not None:
            if consumer is not None:
                build.absorbed[consumer] = result
            return result
    x = build.tensor(node, 0)
    if build.dtype(node, 0) in WIDE:
        return build.call("ops.unsigned", "matmul", x, build.tensor(node, 1), hint="matmul")
    if not _is_weight(build, node, 1, 2) or build.constant(node, 0) is not None:
        return build.call("torch.matmul", x, build.tensor(node, 1), hint="matmul")
    weight = build.constant(node, 1)
    assert weight is not None
    bias, consumer = _bias_after(build, node, weight.shape[1])
    result = _linear(build, x, weight.T, bias)
    if consumer is not None:
        build.absorbed[consumer] = result
    return result


def _bias_after(build: Build, node: Node, size: int) -> tuple[Any, Any]:
    """Return the constant that the only reader of a product adds to it, and that reader.

    All products with the same weight have to be read in this way, and the constant by nothing else.
    """
    value = node.node.inputs[1]
    assert value is not None
    products = [use.node for use in value.uses()]
    added = [_added(product) for product in products]
    if None in added or len({bias for bias, _ in filter(None, added)}) != 1:
        return None, None
    consumers = [consumer for _, consumer in filter(None, added)]
    consumer = consumers[products.index(node.node)]
    position = 1 if consumer.inputs[0] is node.node.outputs[0] else 0
    value = consumer.inputs[position]
    array = build.constant(Node(consumer, node.version), position)
    if array is None or array.dtype.name not in _FLOATS or value.is_graph_output():
        return None, None
    if {use.node for use in value.uses()} != set(consumers) or consumer.graph is not node.node.graph:
        return None, None
    # A row of a matrix, as scikit-learn writes biases, is added to rows alone.
    is_row = array.shape == (1, size) and (build.rank(node, 0) or 0) >= 2
    return (array.reshape(size), consumer) if is_row or array.shape == (size,) else (None, None)


def _added(product: Any) -> tuple[Any, Any] | None:
    """Return what an Add, the only reader of a product, adds to it, and the Add."""
    output = product.outputs[0]
    if product.op_type != "MatMul" or _count(output) != 1 or not output.uses():
        return None
    (usage,) = output.uses()
    consumer = usage.node
    if consumer.op_type != "Add" or consumer.domain not in ("", "ai.onnx") or consumer.attributes:
        return None  # attributes: axis and broadcast of versions below 7
    left, right = consumer.inputs
    return (right if left is output else left), consumer


@handler("Gemm")
def _gemm(build: Build, node: Node) -> Any:
    alpha, beta = node.attr("alpha", 1.0), node.attr("beta", 1.0)
    node.ignore("broadcast")  # of versions below 7: what is added is broadcast in any case
    quantized = quantized_weight(build, node, 1, is_transposed=not node.attr("transB", 0))
    if quantized is not None and alpha == beta == 1.0 and not node.attr("transA", 0):
        added = build.constant(node, 2)
        if not node.has(2) or (added is not None and added.shape == quantized.weight.shape[:1]):
            result = _quantized_linear(build, node, quantized, added)
            if result is not None:
                return result
    a = build.tensor(node, 0)
    weight, bias = build.constant(node, 1), build.constant(node, 2)
    size = None if weight is None or weight.ndim != 2 else weight.shape[0 if node.attr("transB", 0) else 1]
    is_plain = alpha == beta == 1.0 and not node.attr("transA", 0) and build.constant(node, 0) is None
    has_bias = node.has(2)
    if is_plain and _is_weight(build, node, 1, 2) and weight is not None:
        rows = weight if node.attr("transB", 0) else weight.T
        if not has_bias:
            return _linear(build, a, rows, None)
        if _is_weight(build, node, 2, 1) and bias is not None and bias.shape == (size,):
            return _linear(build, a, rows, bias)
        return build.call("torch.add", _linear(build, a, rows, None), build.tensor(node, 2), hint="linear")
    a = build.call("torch.t", a, hint="a_t") if node.attr("transA", 0) else a
    b = build.tensor(node, 1)
    b = build.call("torch.t", b, hint="b_t") if node.attr("transB", 0) else b
    dtype = build.dtype(node, 0)
    if dtype is not None and not dtype.is_floating_point:
        alpha, beta = int(alpha), int(beta)
    if has_bias:
        return build.call("torch.addmm", build.tensor(node, 2), a, b, beta=beta, alpha=alpha, hint="gemm")
    product = build.call("torch.matmul", a, b, hint="gemm")
    return product if alpha == 1 else build.call("torch.mul", product, alpha, hint="gemm")


@handler("Einsum")
def _einsum(build: Build, node: Node) -> Any:
    equation = str(node.attr("equation")).replace(" ", "")
    return build.call("torch.einsum", equation, *build.tensors_of(node), hint="einsum")
