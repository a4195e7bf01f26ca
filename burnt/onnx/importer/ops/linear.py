"""Matrix products."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from burnt import nn
from burnt.onnx.importer.build import Build
from burnt.onnx.importer.node import Node, handler
from burnt.onnx.importer.ops.elementwise import WIDE
from burnt.onnx.importer.ops.layers import FLOATS, float_constant, set_weights
from burnt.onnx.importer.program import Name
from burnt.onnx.importer.quantized import QuantizedWeight, add_quantized, quantized_weight


def _linear(build: Build, x: Any, weight: np.ndarray[Any, Any], bias: np.ndarray[Any, Any] | None) -> Any:
    """Add a linear layer with a weight ``[out, in]``; of rows, it takes the tensor whose rows they are."""
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    set_weights(layer, weight=weight, bias=bias)
    found = _tensor_of_rows(build, x)
    if found is None:
        return build.layer(layer, x, hint="linear")
    source, sizes = found
    result = build.layer(layer, source, hint="linear")
    rows = build.call("torch.flatten", result, 0, len(sizes) - 2, hint="linear")
    build.reshaped[rows] = result, [*sizes[:-1], weight.shape[0]], [None, weight.shape[0]]
    return rows


def _tensor_of_rows(build: Build, x: Any) -> tuple[Name, list[Any]] | None:
    """Return the tensor whose rows a reshaped matrix has, and its sizes; its last axes may be one of it."""
    source, before, after = build.reshaped.get(x, (x, [], []))
    for first in range(len(before) - 1, 1, -1) if len(after) == 2 else ():
        last = before[first:]
        if all(type(size) is int for size in last) and math.prod(last) == after[-1] and after[-1]:
            if len(last) > 1:
                source = build.call("torch.flatten", source, first, hint="reshaped")
            return source, [*before[:first], after[-1]]
    return None


def _quantized_linear(
    build: Build, node: Node, weight: QuantizedWeight, bias: np.ndarray[Any, Any] | None
) -> Any:
    """Add a quantized linear layer; None if burnt has none with this weight."""
    rows, columns = weight.weight.shape
    layer = nn.Linear(columns, rows, bias=bias is not None, device="meta", dtype=weight.weight.dtype)
    return add_quantized(build, node, set_weights(layer, bias=bias), weight, hint="linear")


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
    weight = float_constant(build, node, 1, rank=2)
    if weight is None or build.constant(node, 0) is not None:
        return build.call("torch.matmul", x, build.tensor(node, 1), hint="matmul")
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
    readers = [_reader(product) for product in products]
    added = {_other_input(reader, product) for reader, product in zip(readers, products, strict=True)}
    consumer = readers[products.index(node.node)]
    if None in readers or len(added) != 1 or consumer is None:
        return None, None
    (bias,) = added
    position = list(consumer.inputs).index(bias)
    array = build.constant(Node(consumer, node.version), position)
    if array is None or array.dtype.name not in FLOATS or bias.is_graph_output():
        return None, None
    if {use.node for use in bias.uses()} != set(readers) or consumer.graph is not node.node.graph:
        return None, None
    # A row of a matrix, as scikit-learn writes biases, is added only to rows.
    is_row = array.shape == (1, size) and (build.rank(node, 0) or 0) >= 2
    return (array.reshape(size), consumer) if is_row or array.shape == (size,) else (None, None)


def _reader(product: Any) -> Any:
    """Return the Add that is the only reader of a product; None if there is none."""
    output = product.outputs[0]
    if product.op_type != "MatMul" or len(output.uses()) != 1 or output.is_graph_output():
        return None
    reader = output.uses()[0].node
    is_add = reader.op_type == "Add" and reader.domain in ("", "ai.onnx")
    return reader if is_add and not reader.attributes else None  # axis and broadcast of versions below 7


def _other_input(reader: Any, product: Any) -> Any:
    """Return what an Add adds to a product."""
    if reader is None:
        return None
    left, right = reader.inputs
    return right if left is product.outputs[0] else left


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
    weight, has_bias = float_constant(build, node, 1, rank=2), node.has(2)
    is_plain = alpha == beta == 1.0 and not node.attr("transA", 0) and build.constant(node, 0) is None
    if is_plain and weight is not None:
        weight = weight if node.attr("transB", 0) else weight.T
        bias = float_constant(build, node, 2, rank=1)
        if bias is not None and bias.shape == weight.shape[:1]:
            return _linear(build, a, weight, bias)
        result = _linear(build, a, weight, None)
        return build.call("torch.add", result, build.tensor(node, 2), hint="linear") if has_bias else result
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
