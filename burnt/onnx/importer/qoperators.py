"""Ops on quantized values as DequantizeLinear, the op, and QuantizeLinear.

What is written so becomes burnt's quantized layers where the weights are constant, as files in QDQ format do.

- ONNX Runtime's QOperator format. The result is rounded from float32 instead of integers: it may differ by
  one quantization step, at ties. QLinearConv and QLinearMatMul of two inputs stay as they are, and are exact.
- What its `quantize_dynamic` writes: MatMulInteger and ConvInteger after DynamicQuantizeLinear, and Gather of
  a quantized table before DequantizeLinear.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from burnt.onnx.importer.matching import Found, Pattern, array_of, insert, match, producer_of

if TYPE_CHECKING:
    import onnx_ir as ir


MS = "com.microsoft"
_MOST = 2**31  # elements: any constant


def expand_qoperators(model: ir.Model) -> None:
    """Rewrite the ops in a model, in place. Shapes and dtypes need not be known."""
    nodes = list(model.graph.all_nodes())
    for node in nodes:
        rule = _RULES.get((node.domain, node.op_type))
        if rule is not None and rule(node):
            assert node.graph is not None
            node.graph.remove(node, safe=True)
    for node in nodes:
        if node.graph is not None and node.op_type in _COMMUTING and node.domain in ("", "ai.onnx"):
            _quantize_later(node)


def _inputs(node: ir.Node, count: int) -> list[ir.Value | None]:
    return [*node.inputs, *[None] * count][:count]


def _dequantized(node: ir.Node, index: int, axis: int | None = None) -> ir.Value:
    """Insert the dequantization of an input, which scale and zero point follow."""
    parts = list(node.inputs[index : index + 3])
    attributes = {} if axis is None else {"axis": axis}
    return insert(node, "", "DequantizeLinear", parts, attributes)


def _quantize(node: ir.Node, value: ir.Value, index: int) -> bool:
    """Insert the quantization of a result by scale and zero point at an index: the output of a node."""
    parts = [value, *_inputs(node, index + 2)[index:]]
    insert(node, "", "QuantizeLinear", parts, {}, node.outputs[0])
    return True


def _attributes(node: ir.Node, *names: str) -> dict[str, Any]:
    return {name: node.attributes[name] for name in names if name in node.attributes}


def _size(value: ir.Value | None) -> int:
    """Return the number of elements of a constant; 0 if it is none."""
    array = array_of(value, _MOST)
    return 0 if array is None else int(array.size)


def _bias(node: ir.Node, index: int, factor: float = 1.0) -> tuple[bool, ir.Value | None]:
    """Return whether a bias of integers, in units of both scales, is known, and the bias in float32."""
    import onnx_ir as ir

    value = _inputs(node, index + 1)[index]
    if value is None:
        return True, None
    bias, x_scale, weight_scale = (array_of(v, _MOST) for v in (value, node.inputs[1], node.inputs[4]))
    if bias is None or x_scale is None or weight_scale is None or node.graph is None:
        return False, None
    if bias.ndim != 1 or x_scale.size != 1 or weight_scale.size not in (1, bias.size):
        return False, None
    array = (
        bias.astype(np.float64) * (x_scale.astype(np.float64) * weight_scale.reshape(-1) * factor)
    ).astype(np.float32)
    name = f"{value.name}_dequantized"
    new = ir.Value(name=name, type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(array.shape))
    new.const_value = ir.tensor(array, name=name)
    node.graph.initializers[name] = new
    return True, new


def _conv(node: ir.Node) -> bool:
    is_known, bias = _bias(node, 8) if _size(node.inputs[3]) and _size(node.inputs[1]) else (False, None)
    if not is_known:
        return False
    x, weight = _dequantized(node, 0), _dequantized(node, 3, 0 if _size(node.inputs[4]) > 1 else None)
    names = "auto_pad", "dilations", "group", "kernel_shape", "pads", "strides"
    y = insert(node, "", "Conv", [x, weight, *([] if bias is None else [bias])], _attributes(node, *names))
    return _quantize(node, y, 6)


def _matmul(node: ir.Node) -> bool:
    weight = array_of(node.inputs[3], _MOST)
    if weight is None or weight.ndim != 2 or array_of(node.inputs[0], _MOST) is not None:
        return False
    if _size(node.inputs[1]) != 1:  # a scale for each row of the input
        return False
    a, b = _dequantized(node, 0), _dequantized(node, 3, 1 if _size(node.inputs[4]) > 1 else None)
    return _quantize(node, insert(node, "", "MatMul", [a, b], {}), 6)


def _gemm(node: ir.Node) -> bool:
    alpha, transposed = node.attributes.get("alpha"), node.attributes.get("transB")
    is_known, bias = _bias(node, 6, 1.0 if alpha is None else alpha.value)
    if not is_known:
        return False
    axis = 0 if transposed is not None and transposed.value else 1
    a, b = _dequantized(node, 0), _dequantized(node, 3, axis if _size(node.inputs[4]) > 1 else None)
    attributes = _attributes(node, "alpha", "transA", "transB")
    if _inputs(node, 8)[7] is not None:
        y = insert(node, "", "Gemm", [a, b, *([] if bias is None else [bias])], attributes)
        return _quantize(node, y, 7)
    insert(node, "", "Gemm", [a, b, *([] if bias is None else [bias])], attributes, node.outputs[0])
    return True


def _elementwise(op: str, arity: int, *names: str) -> Callable[[ir.Node], bool]:
    """Return the rule of an op with inputs that scales and zero points follow, then those of the result."""

    def rule(node: ir.Node) -> bool:
        last = node.attributes.get("channels_last")
        if last is not None and last.value:
            return False
        inputs = [_dequantized(node, 3 * i) for i in range(arity)]
        return _quantize(node, insert(node, "", op, inputs, _attributes(node, *names)), 3 * arity)

    return rule


def _softmax(node: ir.Node) -> bool:
    opset, axis = node.attributes.get("opset"), node.attributes.get("axis")
    if opset is not None and opset.value < 13 and (axis is None or axis.value != -1):
        return False  # of all axes from this one
    y = insert(node, "", "Softmax", [_dequantized(node, 0)], {"axis": -1 if axis is None else axis.value})
    return _quantize(node, y, 3)


def _concat(node: ir.Node) -> bool:
    inputs = [_dequantized(node, i) for i in range(2, len(node.inputs), 3)]
    return _quantize(node, insert(node, "", "Concat", inputs, _attributes(node, "axis")), 0)


def _where(node: ir.Node) -> bool:
    inputs = [node.inputs[0], _dequantized(node, 1), _dequantized(node, 4)]
    return _quantize(node, insert(node, "", "Where", inputs, {}), 7)


_INTEGERS: list[Pattern] = [
    ("Mul", ("Cast", (f"{op}:integers", "x", "weight")), ("Mul:scales", "one", "other"))
    for op in ("MatMulInteger", "ConvInteger")
]


def _product_of_integers(node: ir.Node) -> bool:
    """Match the product of an input that DynamicQuantizeLinear quantized with a weight, times both scales."""
    found: Found = {}
    if not any(match(pattern, node.outputs[0], found) for pattern in _INTEGERS):
        return False
    integers, weight, scales = found["integers"], found["weight"], list(found["scales"].inputs)
    x_zero, zero = _inputs(integers, 4)[2:]
    dynamic = producer_of(found["x"], "DynamicQuantizeLinear")
    if dynamic is None or dynamic.outputs[1] not in scales or x_zero is not dynamic.outputs[2]:
        return False
    scales.remove(dynamic.outputs[1])
    (scale,) = scales
    is_conv, sizes = integers.op_type == "ConvInteger", (_size(scale), _size(zero))
    if not _size(weight) or not sizes[0] or (zero is not None and sizes[0] != sizes[1]):
        return False
    if is_conv and sizes[0] > 1:  # the axis along which the product is scaled depends on its rank
        return False
    x = insert(node, "", "DequantizeLinear", [found["x"], dynamic.outputs[1], x_zero], {})
    op, axis = ("Conv", 0) if is_conv else ("MatMul", 1)
    inputs = [x, _shared_weight(integers, scale, axis)]
    insert(node, "", op, inputs, dict(integers.attributes), node.outputs[0])
    return True


def _shared_weight(integers: ir.Node, scale: ir.Value, axis: int) -> ir.Value:
    """Return a dequantized weight: one for all that multiply by it, as they call one layer."""
    weight, zero = integers.inputs[1], _inputs(integers, 4)[3]
    assert weight is not None
    parts = [weight, scale, *([] if zero is None else [zero])]
    for use in weight.uses():
        if use.node.op_type == "DequantizeLinear" and list(use.node.inputs) == parts:
            return use.node.outputs[0]
    return insert(integers, "", "DequantizeLinear", parts, {"axis": axis})


def _dequantize_first(node: ir.Node) -> bool:
    """Dequantize a table before rows are gathered, instead of the rows."""
    gather, parts = producer_of(node.inputs[0], "Gather"), list(node.inputs[1:])
    table = None if gather is None else gather.inputs[0]
    if gather is None or not _size(table) or any(_size(part) != 1 for part in parts):
        return False
    whole = insert(gather, "", "DequantizeLinear", [table, *parts], {})
    insert(node, "", "Gather", [whole, gather.inputs[1]], dict(gather.attributes), node.outputs[0])
    return True


_WINDOW = "auto_pad", "ceil_mode", "count_include_pad", "kernel_shape", "pads", "strides"
_RULES: dict[tuple[str, str], Callable[[ir.Node], bool]] = {
    ("", "Mul"): _product_of_integers,
    ("", "DequantizeLinear"): _dequantize_first,
    ("", "QLinearConv"): _conv,
    ("", "QLinearMatMul"): _matmul,
    (MS, "QGemm"): _gemm,
    (MS, "QLinearAdd"): _elementwise("Add", 2),
    (MS, "QLinearMul"): _elementwise("Mul", 2),
    (MS, "QLinearSigmoid"): _elementwise("Sigmoid", 1),
    (MS, "QLinearLeakyRelu"): _elementwise("LeakyRelu", 1, "alpha"),
    (MS, "QLinearGlobalAveragePool"): _elementwise("GlobalAveragePool", 1),
    (MS, "QLinearAveragePool"): _elementwise("AveragePool", 1, *_WINDOW),
    (MS, "QLinearSoftmax"): _softmax,
    (MS, "QLinearConcat"): _concat,
    (MS, "QLinearWhere"): _where,
}
OPS = [op for domain, op in _RULES if domain == MS]
"""The ops of ONNX Runtime that are always rewritten."""

_COMMUTING = ("MaxPool", "Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "Slice")
"""Ops that select elements, which may be quantized afterwards as well, since rounding keeps their order."""


def _quantize_later(node: ir.Node) -> None:
    """Let an op select from what was quantized, and quantize the result: the next layer then reads both."""
    import onnx_ir as ir

    quantize, output = producer_of(node.inputs[0], "QuantizeLinear"), node.outputs[0]
    if quantize is None or output.is_graph_output() or len(node.outputs) != 1 or node.graph is None:
        return
    source, parts = quantize.inputs[0], list(quantize.inputs[1:])
    if source is None or quantize.attributes or any(_size(part) != 1 for part in parts):
        return
    uses = list(output.uses())
    again = ir.node("QuantizeLinear", [output, *parts], name=quantize.name)
    again.outputs[0].type, again.outputs[0].shape = output.type, output.shape
    node.graph.insert_after(node, again)
    for use in uses:
        use.node.replace_input_with(use.idx, again.outputs[0])
    node.replace_input_with(0, source)
    output.type = source.type
