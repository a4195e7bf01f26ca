"""Ops on shapes."""

from __future__ import annotations

from typing import Any

from burnt.onnx.importer.build import Build, Ints, Node
from burnt.onnx.importer.program import Name, Size
from burnt.onnx.importer.registry import handler


@handler("Shape")
def _shape(build: Build, node: Node) -> Any:
    x = build.tensor(node, 0)
    rank = build.rank(node, 0)
    if rank is None or not isinstance(x, Name):
        return build.call("ops.shape", x, hint="shape")
    axes = list(range(rank))[slice(node.attr("start", 0), node.attr("end", rank))]
    return Ints(tuple(Size(x, axis) for axis in axes))


@handler("Reshape", since=1)
def _reshape(build: Build, node: Node) -> Any:
    shape = node.attr("shape") or build.ints(node, 1)
    allow_zero = bool(node.attr("allowzero", 0))
    if shape is None:
        shape = build.tensor(node, 1)
    return build.call(
        "ops.reshape", build.tensor(node, 0), shape, *([True] if allow_zero else []), hint="reshaped"
    )


@handler("If")
def _if(build: Build, node: Node) -> Any:
    condition = build.tensor(node, 0)
    then = build.body(node.attr("then_branch"), "then_branch")
    otherwise = build.body(node.attr("else_branch"), "else_branch")
    results = build.call("ops.if_", condition, then, otherwise, hint="branch")
    return tuple(build.call("ops.item", results, i, hint="x") for i in range(node.num_outputs))
