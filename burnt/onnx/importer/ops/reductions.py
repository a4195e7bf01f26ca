"""Reductions, arguments of extremes, cumulative sums."""

from __future__ import annotations

from typing import Any

from burnt.onnx.importer.build import Build
from burnt.onnx.importer.matching import shape_of
from burnt.onnx.importer.node import Node
from burnt.onnx.importer.registry import handler

_KINDS = {
    "ReduceSum": "sum",
    "ReduceMean": "mean",
    "ReduceMax": "max",
    "ReduceMin": "min",
    "ReduceProd": "prod",
    "ReduceL1": "l1",
    "ReduceL2": "l2",
    "ReduceLogSum": "log_sum",
    "ReduceLogSumExp": "log_sum_exp",
    "ReduceSumSquare": "sum_square",
}
_TORCH = {"sum": "torch.sum", "mean": "torch.mean", "max": "torch.amax", "min": "torch.amin"}


@handler(*_KINDS)
def _reduce(build: Build, node: Node) -> Any:
    x, kind = build.tensor(node, 0), _KINDS[node.op]
    keepdim = bool(node.attr("keepdims", 1))
    noop = bool(node.attr("noop_with_empty_axes", 0))
    axes, shape = build.integers(node, 1, "axes"), shape_of(node.node.inputs[0])
    dtype = build.dtype(node, 0)
    # torch's own function, but for sums of integers (int64 in torch) and extremes of nothing (an error).
    is_plain = dtype is not None and dtype.is_floating_point and build.rank(node, 0) is not None
    if kind in _TORCH and is_plain and 0 not in shape and isinstance(axes, list) and axes:
        return build.call(_TORCH[kind], x, axes, keepdim, hint=kind)
    return build.call("ops.reduce", x, kind, axes or None, keepdim, *([True] if noop else []), hint=kind)


@handler("ArgMax", "ArgMin")
def _arg(build: Build, node: Node) -> Any:
    name = node.op.lower()
    x, axis, keepdim = build.tensor(node, 0), node.attr("axis", 0), bool(node.attr("keepdims", 1))
    if node.attr("select_last_index", 0):
        return build.call(f"ops.{name}", x, axis, keepdim, True, hint=name)
    return build.call(f"torch.{name}", x, axis, keepdim, hint=name)


@handler("CumSum", "CumProd")
def _cumulative(build: Build, node: Node) -> Any:
    name = node.op.lower()
    inputs, options = build.tensor(node, 0), node.options(("exclusive", False), ("reverse", False))
    return build.call(f"ops.{name}", inputs, build.integer(node, 1), hint=name, **options)
