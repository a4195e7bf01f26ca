"""Elementwise ops."""

from __future__ import annotations

from typing import Any

from burnt.onnx.importer.build import Build, Ints, Node
from burnt.onnx.importer.program import Arithmetic
from burnt.onnx.importer.registry import handler

_UNARY = {
    "Abs": "torch.abs",
    "Neg": "torch.neg",
    "Sqrt": "torch.sqrt",
    "Exp": "torch.exp",
    "Log": "torch.log",
    "Erf": "torch.erf",
    "Sigmoid": "torch.sigmoid",
    "Tanh": "torch.tanh",
    "Relu": "torch.relu",
    "Not": "torch.logical_not",
    "Reciprocal": "torch.reciprocal",
    "Floor": "torch.floor",
    "Ceil": "torch.ceil",
    "Sin": "torch.sin",
    "Cos": "torch.cos",
}
_BINARY = {
    "Add": ("torch.add", "+"),
    "Sub": ("torch.sub", "-"),
    "Mul": ("torch.mul", "*"),
    "Pow": ("torch.pow", None),
    "Equal": ("torch.eq", None),
    "Less": ("torch.lt", None),
    "Greater": ("torch.gt", None),
    "And": ("torch.logical_and", None),
}


@handler(*_UNARY)
def _unary(build: Build, node: Node) -> Any:
    return build.call(_UNARY[node.op], build.tensor(node, 0), hint=node.op)


@handler(*_BINARY)
def _binary(build: Build, node: Node) -> Any:
    function, symbol = _BINARY[node.op]
    left, right = build.ints(node, 0), build.ints(node, 1)
    if symbol and left is not None and right is not None and len(left) == len(right):
        values = tuple(
            {"+": a + b, "-": a - b, "*": a * b}[symbol]
            if type(a) is int and type(b) is int
            else Arithmetic(symbol, a, b)
            for a, b in zip(left, right, strict=True)
        )
        return Ints(values, node.node.outputs[0].shape is not None and len(node.node.outputs[0].shape) == 0)
    return build.call(function, build.tensor(node, 0), build.tensor(node, 1), hint=node.op)
