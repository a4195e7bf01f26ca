"""Elementwise ops: arithmetic, comparisons, logic, bits, activations, casts; and the softmax family."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from burnt import nn
from burnt.onnx.importer.build import Build
from burnt.onnx.importer.dtypes import to_tensor, torch_dtype
from burnt.onnx.importer.integers import Ints
from burnt.onnx.importer.matching import DOMAIN, array_of, number_of, producer_of, rank_of, shape_of
from burnt.onnx.importer.node import Node, handler, shortest_decimal
from burnt.onnx.importer.ops.shapes import is_never_negative
from burnt.onnx.importer.program import Name

if TYPE_CHECKING:
    import onnx_ir as ir

WIDE = (torch.uint16, torch.uint32, torch.uint64)
"""Dtypes that torch has hardly any kernels for; `ops.unsigned` computes with them."""

_UNARY = {
    "Abs": "torch.abs",
    "Acos": "torch.acos",
    "Acosh": "torch.acosh",
    "Asin": "torch.asin",
    "Asinh": "torch.asinh",
    "Atan": "torch.atan",
    "Atanh": "torch.atanh",
    "BitwiseNot": "torch.bitwise_not",
    "Ceil": "torch.ceil",
    "Cos": "torch.cos",
    "Cosh": "torch.cosh",
    "Det": "torch.linalg.det",
    "Erf": "torch.erf",
    "Exp": "torch.exp",
    "Floor": "torch.floor",
    "IsNaN": "torch.isnan",
    "Log": "torch.log",
    "Neg": "torch.neg",
    "Not": "torch.logical_not",
    "Reciprocal": "torch.reciprocal",
    "Round": "torch.round",
    "Sigmoid": "torch.sigmoid",
    "Sign": "ops.sign",
    "Sin": "torch.sin",
    "Sinh": "torch.sinh",
    "Sqrt": "torch.sqrt",
    "Tan": "torch.tan",
    "Tanh": "torch.tanh",
    "Relu": "torch.relu",
    "HardSwish": "F.hardswish",
    "Softplus": "F.softplus",
    "Softsign": "F.softsign",
    "Mish": "F.mish",
}
_WIDE_UNARY = {"Abs": "abs", "Sign": "sign", "BitwiseNot": "not"}
# torch's function, and that of wide unsigned integers.
_BINARY = {
    "Add": ("torch.add", "add"),
    "Sub": ("torch.sub", "sub"),
    "Mul": ("torch.mul", "mul"),
    "Div": ("torch.div", "div"),
    "Equal": ("torch.eq", "eq"),
    "Less": ("torch.lt", "lt"),
    "LessOrEqual": ("torch.le", "le"),
    "Greater": ("torch.gt", "gt"),
    "GreaterOrEqual": ("torch.ge", "ge"),
    "And": ("torch.logical_and", None),
    "Or": ("torch.logical_or", None),
    "Xor": ("torch.logical_xor", None),
    "BitwiseAnd": ("torch.bitwise_and", "and"),
    "BitwiseOr": ("torch.bitwise_or", "or"),
    "BitwiseXor": ("torch.bitwise_xor", "xor"),
}
_MIRRORED = {
    "torch.eq": "torch.eq",
    "torch.lt": "torch.gt",
    "torch.le": "torch.ge",
    "torch.gt": "torch.lt",
    "torch.ge": "torch.le",
}
"""Comparisons, which take no number on the left, with the operands swapped."""
_NEUTRAL = {"Mul": 1, "Div": 1, "And": True, "Or": False, "Equal": True}
"""The operand on the right that makes the result that on the left."""


@handler(*_UNARY)
def _unary(build: Build, node: Node) -> Any:
    if node.op in _WIDE_UNARY and build.dtype(node, 0) in WIDE:
        return build.call("ops.unsigned", _WIDE_UNARY[node.op], build.tensor(node, 0), hint=node.op)
    return build.call(_UNARY[node.op], build.tensor(node, 0), hint=node.op)


@handler(*(op for op in _BINARY if op != "And"))
def binary(build: Build, node: Node) -> Any:
    """Add an op of two operands."""
    function, wide = _BINARY[node.op]
    same = _unchanged(build, node)
    if same is not None:
        return build.tensor(node, same)
    dtype = build.dtype(node, 0)
    left, right = operands(build, node, left=node.op in _TAKES_NUMBERS, right=node.op not in _LOGICAL)
    if wide and dtype in WIDE:
        return build.call("ops.unsigned", wide, left, right, hint=node.op)
    if node.op == "Equal" and node.is_text(0):
        return build.call("ops.equal", left, right, device=build.device(), hint="equal")
    if function in _MIRRORED and not isinstance(left, Name):
        function, left, right = _MIRRORED[function], right, left
    if node.op == "Div" and dtype is None:
        return build.call("ops.divide", left, right, hint="div")
    if node.op == "Div" and dtype is not None and not dtype.is_floating_point:
        return build.call(function, left, right, rounding_mode="trunc", hint="div")
    return build.call(function, left, right, hint=node.op)


_LOGICAL = {"And", "Or", "Xor"}
"""Ops that torch computes only for tensors."""
_TAKES_NUMBERS = {"Add", "Sub", "Mul", "Div", "Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"}
"""Ops whose first operand may be a number."""


def _unchanged(build: Build, node: Node) -> int | None:
    """Return which input is the result, as the other one is neutral; None if neither is."""
    if node.op not in _NEUTRAL:
        return None
    neutral = _NEUTRAL[node.op]
    for index in (0, 1) if node.op != "Div" else (0,):
        found = literal(build, node, 1 - index)
        if found == neutral and isinstance(found, bool) == isinstance(neutral, bool):
            return index
    return None


def operands(build: Build, node: Node, *, left: bool = False, right: bool = True) -> tuple[Any, Any]:
    """Return two inputs that are broadcast; `left` and `right` say whether each may be a number."""
    axis, broadcast = node.attr("axis"), node.attr("broadcast", 0)  # of versions below 7
    axis = axis if broadcast else None
    second = literal(build, node, 1) if right else None
    first = literal(build, node, 0) if left and second is None and axis is None else None
    if first is None:
        first = build.tensor(node, 0)
    if second is None:
        second = build.tensor(node, 1)
        if axis is not None:
            second = build.call("ops.align", second, first, axis, hint="aligned")
    return first, second


_LITERALS = (
    *("float32", "float64", "float16", "bfloat16"),
    *("int64", "int32", "int16", "int8", "uint8", "bool"),
)


def literal(build: Build, node: Node, index: int) -> Any:
    """Return an input of one element as a number, or as an expression of sizes.

    None if it is none, or may be trained, or if the result of torch had other axes or another dtype than with
    a tensor.
    """
    ranks = [build.rank(node, i) for i in range(node.num_inputs) if i != index]
    rank = max((rank for rank in ranks if rank is not None), default=-1)
    array = build.constant(node, index)
    if array is None:
        known = build.known(node, index)
        values = known.values if isinstance(known, Ints) else None
        return values.item() if values is not None and values.size == 1 and values.ndim <= rank else None
    is_number = array.dtype.name in _LITERALS and array.size == 1 and array.ndim <= rank
    if not is_number:
        return None
    if array.ndim and array.dtype.name.startswith(("float", "bfloat")) and build.may_be_trained(node, index):
        return None
    if array.dtype.kind in "iub":
        return array.item()
    number = float(array.item())
    return shortest_decimal(number) if array.dtype == np.float32 else number


@handler("Pow")
def _pow(build: Build, node: Node) -> Any:
    dtypes = build.dtype(node, 0), build.dtype(node, 1)
    left, right = operands(build, node)
    if any(dtype in WIDE for dtype in dtypes):
        return build.call("ops.power_unsigned", left, build.tensor(node, 1), hint="pow")
    same = dtypes[0] is not None and dtypes[0] == dtypes[1]
    return build.call("torch.pow" if same else "ops.power", left, right, hint="pow")


@handler("Mod")
def _mod(build: Build, node: Node) -> Any:
    is_c = bool(node.attr("fmod", 0))
    left, right = operands(build, node)
    if build.dtype(node, 0) in WIDE:
        return build.call("ops.unsigned", "fmod" if is_c else "mod", left, right, hint="mod")
    return build.call("torch.fmod" if is_c else "torch.remainder", left, right, hint="mod")


@handler("BitShift")
def _bit_shift(build: Build, node: Node) -> Any:
    side = str(node.attr("direction")).lower()
    left, right = build.tensor(node, 0), build.tensor(node, 1)
    if build.dtype(node, 0) in WIDE:
        return build.call("ops.unsigned", f"{side}_shift", left, right, hint="shifted")
    return build.call(f"torch.bitwise_{side}_shift", left, right, hint="shifted")


@handler("IsInf")
def _is_inf(build: Build, node: Node) -> Any:
    x = build.tensor(node, 0)
    signs = bool(node.attr("detect_negative", 1)), bool(node.attr("detect_positive", 1))
    function = {
        (True, True): "torch.isinf",
        (True, False): "torch.isneginf",
        (False, True): "torch.isposinf",
    }.get(signs)
    if function is None:
        return build.call("torch.zeros_like", x, dtype=torch.bool, hint="isinf")
    return build.call(function, x, hint="isinf")


@handler("Max", "Min", "Sum", "Mean")
def _variadic(build: Build, node: Node) -> Any:
    if node.op in ("Max", "Min") and node.num_inputs == 2 and build.dtype(node, 0) not in WIDE:
        for index in (0, 1):
            bound = literal(build, node, index)
            if bound is not None:
                side = "torch.clamp_min" if node.op == "Max" else "torch.clamp_max"
                return build.call(side, build.tensor(node, 1 - index), bound, hint=node.op)
    function = {"Max": "torch.maximum", "Min": "torch.minimum"}.get(node.op, "torch.add")
    result, *rest = build.tensors_of(node)
    for other in rest:
        if build.dtype(node, 0) in WIDE:
            name = {"Max": "max", "Min": "min"}.get(node.op, "add")
            result = build.call("ops.unsigned", name, result, other, hint=node.op)
        else:
            result = build.call(function, result, other, hint=node.op)
    if node.op == "Mean":
        result = build.call("torch.div", result, node.num_inputs, hint="mean")
    return result


_PYTHON_DTYPES = (torch.float32, torch.int64, torch.bool)
"""Dtypes that torch gives to Python's numbers."""


@handler("Where")
def _where(build: Build, node: Node) -> Any:
    if node.is_text(1):
        return build.call("ops.where", *build.tensors_of(node), hint="where")
    condition, x, y = build.tensor(node, 0), literal(build, node, 1), literal(build, node, 2)
    if x is not None and y is not None and build.dtype(node, 1) not in _PYTHON_DTYPES:
        x = None  # torch would return float32 or int64
    choices = [build.tensor(node, i) if one is None else one for i, one in ((1, x), (2, y))]
    return build.call("torch.where", condition, *choices, hint="where")


@handler("Clip")
def _clip(build: Build, node: Node) -> Any:
    x = build.tensor(node, 0)
    low, high = node.attr("min"), node.attr("max")  # versions below 11
    if node.version >= 11:
        low, high = (build.tensor_or_number(node, i) for i in (1, 2))
    if build.dtype(node, 0) in WIDE:
        return build.call("ops.unsigned", "clip", x, *(build.tensor(node, i) for i in (1, 2)), hint="clip")
    if low is None and high is None:
        return x
    if type(low) is type(high) is float and (low, high) == (0, 6):
        return build.call("F.relu6", x, hint="relu6")
    if isinstance(low, int | float | None) is not isinstance(high, int | float | None):
        low, high = (build.tensor(node, i) for i in (1, 2))
    return build.call("torch.clamp", x, low, high, hint="clip")


@handler("Selu")
def _selu(build: Build, node: Node) -> Any:
    old = node.version < 6  # whose defaults are rounded
    alpha = node.attr("alpha", 1.6732 if old else 1.67326319217681884765625)
    gamma = node.attr("gamma", 1.0507 if old else 1.05070102214813232421875)
    return build.call("ops.selu", build.tensor(node, 0), alpha, gamma, hint="selu")


@handler("HardSigmoid")
def _hard_sigmoid(build: Build, node: Node) -> Any:
    alpha, beta = node.attr("alpha", 0.2), node.attr("beta", 0.5)
    if math.isclose(alpha, 1 / 6, rel_tol=1e-6) and beta == 0.5:
        return build.call("F.hardsigmoid", build.tensor(node, 0), hint="hard_sigmoid")
    return build.call("ops.hard_sigmoid", build.tensor(node, 0), alpha, beta, hint="hard_sigmoid")


@handler("ThresholdedRelu")
def _thresholded_relu(build: Build, node: Node) -> Any:
    return build.call("F.threshold", build.tensor(node, 0), node.attr("alpha", 1.0), 0.0, hint="relu")


@handler("Swish")
def _swish(build: Build, node: Node) -> Any:
    alpha = node.attr("alpha", 1.0)
    if alpha == 1.0:
        return build.call("F.silu", build.tensor(node, 0), hint="silu")
    return build.call("ops.swish", build.tensor(node, 0), alpha, hint="swish")


@handler("PRelu")
def _prelu(build: Build, node: Node) -> Any:
    x, slope, rank = build.tensor(node, 0), build.constant(node, 1), build.rank(node, 0)
    is_slope = slope is not None and slope.dtype.name == "float32" and build.is_weight(node, 1)
    if slope is not None and is_slope and rank is not None and rank >= 2:
        per_channel = slope.ndim == rank - 1 and slope.size == slope.shape[0]
        if slope.size == 1 or per_channel or (node.version < 7 and slope.ndim == 1):
            layer = nn.Prelu(slope.size)
            (parameter,) = layer.parameters()
            parameter.data = to_tensor(slope.reshape(-1))
            return build.layer(layer, x, hint="prelu")
    slope_ = build.tensor(node, 1)
    if node.version < 7:
        slope_ = build.call("ops.align", slope_, x, 1, hint="slope")
    return build.call("ops.prelu", x, slope_, hint="prelu")


@handler("Softmax", "LogSoftmax", "Hardmax", since=1)
def _softmax_2d(build: Build, node: Node) -> Any:
    x, axis, rank = build.tensor(node, 0), node.attr("axis", 1), build.rank(node, 0)
    name = {"Softmax": "softmax", "LogSoftmax": "log_softmax"}.get(node.op)
    if name is None:
        return build.call("ops.hardmax", x, axis, True, hint="hardmax")
    if rank is not None and axis in (rank - 1, -1):
        return build.call(f"torch.{name}", x, -1, hint=name)
    return build.call(f"ops.{name}_2d", x, axis, hint=name)


@handler("Softmax", "LogSoftmax", "Hardmax", since=13)
def _softmax(build: Build, node: Node) -> Any:
    x, axis = build.tensor(node, 0), node.attr("axis", -1)
    name = {"Softmax": "torch.softmax", "LogSoftmax": "torch.log_softmax"}.get(node.op, "ops.hardmax")
    return build.call(name, x, axis, hint=node.op)


_NAMES = {8: "string", 21: "uint4", 22: "int4", 23: "float4", 25: "uint2", 26: "int2"}
_PLAIN = (
    *(torch.bool, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
)
"""Dtypes between which torch's conversion is ONNX's."""


def _cast(build: Build, node: Node, to: int) -> Any:
    options: dict[str, Any] = {}
    node.ignore("saturate", "round_mode")  # only of float8
    if 17 <= to <= 20 or to == 24:
        options["saturate"] = bool(node.attr("saturate", 1))
    if to == 24:
        options["round_mode"] = node.attr("round_mode", "up")
    if node.is_text(0):
        options["device"] = build.device()
    dtype, before = _NAMES.get(to) or torch_dtype(to), build.dtype(node, 0)
    if before in _PLAIN and dtype in _PLAIN:
        return build.call("torch.Tensor.to", build.tensor(node, 0), dtype, hint="cast")
    return build.call("ops.cast", build.tensor(node, 0), dtype, hint="cast", **options)


@handler("Cast")
def _cast_to(build: Build, node: Node) -> Any:
    to = node.attr("to")
    if isinstance(to, str):  # version 1 names the type
        import onnx

        to = onnx.TensorProto.DataType.Value(to)
    return _cast(build, node, int(to))


@handler("CastLike")
def _cast_like(build: Build, node: Node) -> Any:
    value = node.node.inputs[1]
    if value is not None and value.dtype is not None:
        return _cast(build, node, value.dtype.value)
    saturate = bool(node.attr("saturate", 1))
    return build.call("ops.cast_like", build.tensor(node, 0), build.tensor(node, 1), saturate, hint="cast")


@handler("BitCast")
def _bit_cast(build: Build, node: Node) -> Any:
    dtype = torch_dtype(int(node.attr("to")))
    assert isinstance(dtype, torch.dtype)
    return build.call("ops.bitcast", build.tensor(node, 0), dtype, hint="bits")


# And, where one mask is true everywhere: what is left of it is the shape. Exporters write the mask of an
# attention that may see all positions as a comparison that always holds, `positions >= 0`, and combine it
# with that of the padding.


@handler("And")
def _and(build: Build, node: Node) -> Any:
    if node.attr("axis") is None and node.attr("broadcast") is None:
        for index in (0, 1):
            if _is_true(node.node.inputs[1 - index]) and isinstance(build.value(node, index), Name):
                result = _broadcast(build, node, index)
                if result is not None:
                    return result
    return binary(build, node)


def _is_true(value: ir.Value | None, depth: int = 8) -> bool:
    """Whether all elements of a mask are true."""
    if depth == 0 or value is None:
        return False
    array = array_of(value, 4096)
    if array is not None:
        return array.dtype == bool and bool(array.all())
    node = producer_of(value, "And", "Cast", "Unsqueeze", "Expand", "ConstantOfShape", "GreaterOrEqual")
    if node is None or node.domain == DOMAIN:
        return False
    if node.op_type == "And":
        return all(_is_true(one, depth - 1) for one in node.inputs)
    if node.op_type == "ConstantOfShape":
        fill = node.attributes.get("value")
        return fill is not None and fill.value.numpy().dtype == bool and bool(fill.value.numpy().all())
    if node.op_type == "GreaterOrEqual":
        least = number_of(node.inputs[1])
        return least is not None and least <= 0 and is_never_negative(node.inputs[0], ())
    return _is_true(node.inputs[0], depth - 1)


def _broadcast(build: Build, node: Node, index: int) -> Any:
    """Return an operand in the shape of the result; None if that is not known."""
    sizes, after = shape_of(node.node.inputs[index]), shape_of(node.node.outputs[0])
    if not sizes or len(sizes) > len(after) or None in sizes or None in after:
        return None
    added = len(after) - len(sizes)
    sizes = [1] * added + sizes
    wanted = [-1 if size == other else build.size_of(other) for size, other in zip(sizes, after, strict=True)]
    changed = {axis: after[axis] for axis, size in enumerate(wanted) if size != -1}
    if any(sizes[axis] != 1 for axis in changed):
        return None
    x = build.tensor(node, index)
    if not (changed or added) or _is_broadcast_later(node.node.outputs[0], changed):
        return x
    if None in wanted:
        return None
    wanted[:added] = [1 if size == -1 else size for size in wanted[:added]]
    return build.call("torch.Tensor.expand", x, tuple(wanted), hint="mask")


def _is_broadcast_later(value: ir.Value, sizes: dict[int, Any], depth: int = 4) -> bool:
    """Whether a mask is read only by attention, whose scores have the sizes of some axes of the mask."""
    if value.is_graph_output() or not depth:
        return False
    for node, index in value.uses():
        if node.domain == DOMAIN and node.op_type == "Attention" and index == 3:
            query, key = shape_of(node.inputs[0]), shape_of(node.inputs[1])
            scores = [query[0], query[1], query[2], key[2]] if len(query) == len(key) == 4 else []
            if rank_of(value) != len(scores) or any(scores[axis] != size for axis, size in sizes.items()):
                return False
            continue
        if node.op_type == "Where" and index == 0:
            is_passed_on = all(number_of(other) is not None for other in node.inputs[1:])
        else:
            is_passed_on = node.op_type == "Expand" and shape_of(node.outputs[0]) == shape_of(value)
        if not is_passed_on:
            return False
        if not _is_broadcast_later(node.outputs[0], sizes, depth - 1):
            return False
    return bool(value.uses())
