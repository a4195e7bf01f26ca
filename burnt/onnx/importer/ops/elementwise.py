"""Elementwise ops: arithmetic, comparisons, logic, bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from burnt.onnx.importer.build import Build, Ints, Node
from burnt.onnx.importer.program import Arithmetic
from burnt.onnx.importer.registry import handler

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
    "Sign": "torch.sign",
    "Sin": "torch.sin",
    "Sinh": "torch.sinh",
    "Sqrt": "torch.sqrt",
    "Tan": "torch.tan",
    "Tanh": "torch.tanh",
}
_WIDE_UNARY = {"Abs": "abs", "Sign": "sign", "BitwiseNot": "not"}
# torch's function, arithmetic on sizes, the function of wide unsigned integers.
_BINARY = {
    "Add": ("torch.add", "+", "add"),
    "Sub": ("torch.sub", "-", "sub"),
    "Mul": ("torch.mul", "*", "mul"),
    "Div": ("torch.div", "//", "div"),
    "Equal": ("torch.eq", None, "eq"),
    "Less": ("torch.lt", None, "lt"),
    "LessOrEqual": ("torch.le", None, "le"),
    "Greater": ("torch.gt", None, "gt"),
    "GreaterOrEqual": ("torch.ge", None, "ge"),
    "And": ("torch.logical_and", None, None),
    "Or": ("torch.logical_or", None, None),
    "Xor": ("torch.logical_xor", None, None),
    "BitwiseAnd": ("torch.bitwise_and", None, "and"),
    "BitwiseOr": ("torch.bitwise_or", None, "or"),
    "BitwiseXor": ("torch.bitwise_xor", None, "xor"),
}
_ARITHMETIC: dict[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "//": lambda a, b: a // b if a >= 0 else -(-a // b),
}


@handler(*_UNARY)
def _unary(build: Build, node: Node) -> Any:
    if node.op in _WIDE_UNARY and build.dtype(node, 0) in WIDE:
        return build.call("ops.unsigned", _WIDE_UNARY[node.op], build.tensor(node, 0), hint=node.op)
    return build.call(_UNARY[node.op], build.tensor(node, 0), hint=node.op)


@handler(*_BINARY)
def _binary(build: Build, node: Node) -> Any:
    function, symbol, wide = _BINARY[node.op]
    sizes = _on_sizes(build, node, symbol)
    if sizes is not None:
        return sizes
    dtype = build.dtype(node, 0)
    left, right = operands(build, node)
    if wide and dtype in WIDE:
        return build.call("ops.unsigned", wide, left, right, hint=node.op)
    if node.op == "Equal" and is_strings(node, 0):
        return build.call("ops.equal", left, right, device=build.device(), hint="equal")
    if node.op == "Div" and dtype is not None and not dtype.is_floating_point:
        return build.call(function, left, right, rounding_mode="trunc", hint="div")
    return build.call(function, left, right, hint=node.op)


def _on_sizes(build: Build, node: Node, symbol: str | None) -> Ints | None:
    """Return the result of integer arithmetic on sizes, if this is that."""
    if symbol is None or build.dtype(node, 0) not in (torch.int64, None):
        return None
    if not any(isinstance(build.known(node, i), Ints) for i in (0, 1)):
        return None
    constants = [build.constant(node, i) for i in (0, 1)]
    if any(array is not None and array.dtype != np.int64 for array in constants):
        return None
    left, right = build.ints(node, 0), build.ints(node, 1)
    if left is None or right is None or not (len(left) == len(right) or 1 in (len(left), len(right))):
        return None
    if symbol == "//" and not (all(map(_is_positive, right)) and not any(map(_may_be_negative, left))):
        return None  # ONNX rounds towards zero
    count = max(len(left), len(right))
    left, right = (part * count if len(part) == 1 else part for part in (left, right))
    values = tuple(
        _ARITHMETIC[symbol](a, b) if type(a) is int and type(b) is int else Arithmetic(symbol, a, b)
        for a, b in zip(left, right, strict=True)
    )
    return Ints(values, all(is_scalar(build, node, i) for i in (0, 1)))


def _is_positive(size: Any) -> bool:
    return type(size) is not int or size > 0


def _may_be_negative(size: Any) -> bool:
    """Whether arithmetic on sizes can have a negative result."""
    if isinstance(size, Arithmetic):
        return size.symbol == "-" or _may_be_negative(size.left) or _may_be_negative(size.right)
    return type(size) is int and size < 0


def is_scalar(build: Build, node: Node, index: int) -> bool:
    """Whether an input is known to have no axes."""
    known = build.known(node, index)
    if isinstance(known, Ints):
        return known.is_scalar
    constant = build.constant(node, index)
    return constant.ndim == 0 if constant is not None else build.rank(node, index) == 0


def is_strings(node: Node, index: int) -> bool:
    """Whether an input is an array of strings."""
    value = node.node.inputs[index]
    return value is not None and value.dtype is not None and value.dtype.name == "STRING"


def operands(build: Build, node: Node) -> tuple[Any, Any]:
    """Return two inputs that are broadcast; a constant number on the right is a literal."""
    left = build.tensor(node, 0)
    number = literal(build, node, 1)
    right = build.tensor(node, 1) if number is None else number
    axis = node.attr("axis")
    if axis is not None and node.attr("broadcast", 0) and number is None:  # versions below 7
        right = build.call("ops.align", right, left, axis, hint="aligned")
    return left, right


def literal(build: Build, node: Node, index: int) -> int | float | bool | None:
    """Return a constant input without axes as a number; None if it is none, or torch's dtype would differ."""
    array = build.constant(node, index)
    if array is None or array.ndim or build.rank(node, 1 - index) in (0, None):
        return None
    if array.dtype not in (np.float32, np.int64, np.int32, np.bool_):
        return None
    return array.item()  # type: ignore[no-any-return]


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


@handler("Where")
def _where(build: Build, node: Node) -> Any:
    condition, x, y = build.tensors_of(node)
    if is_strings(node, 1):
        return build.call("ops.where", condition, x, y, hint="where")
    return build.call("torch.where", condition, x, y, hint="where")


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
