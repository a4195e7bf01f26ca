"""Constants, generated tensors, random numbers, selection of elements, and reductions."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from burnt.onnx.importer.build import Build
from burnt.onnx.importer.dtypes import to_tensor, torch_dtype
from burnt.onnx.importer.integers import maximum, minimum
from burnt.onnx.importer.matching import shape_of
from burnt.onnx.importer.node import Node, handler


@handler("Constant")
def _constant(build: Build, node: Node) -> Any:
    (name, attribute), *_ = node.node.attributes.items()
    node.ignore(name)
    if name == "value":
        return node.attr("value")
    kinds = {"value_float": np.float32, "value_int": np.int64, "value_string": object}
    return np.array(attribute.value, dtype=kinds[name.removesuffix("s")])


def _dtype_attr(build: Build, node: Node, default: torch.dtype = torch.float32) -> torch.dtype:
    """Return the dtype that the attribute names, else the first input's, else the default."""
    code = node.attr("dtype")
    found = torch_dtype(int(code)) if code is not None else build.dtype(node, 0) if node.num_inputs else None
    return default if found is None else found


@handler("ConstantOfShape")
def _constant_of_shape(build: Build, node: Node) -> Any:
    array = node.attr("value", np.zeros(1, np.float32))
    value = to_tensor(array)
    shape = build.ints(node, 0)
    if shape is None:
        shape = build.tensor(node, 0)
        device = build.device(shape)
        return build.call("ops.full", shape, value.item(), value.dtype, device=device, hint="full")
    device = build.device(*shape)
    return build.call("torch.full", shape, value.item(), dtype=value.dtype, device=device, hint="full")


@handler("Range")
def _range(build: Build, node: Node) -> Any:
    ends = [build.ints(node, i) for i in range(3)]
    if build.dtype(node, 0) == torch.int64 and all(end is not None and len(end) == 1 for end in ends):
        start, limit, delta = (end[0] for end in ends if end)
        device = build.device(start, limit, delta)
        if type(delta) is int and delta:
            limit = maximum(limit, start) if delta > 0 else minimum(limit, start)  # torch refuses no elements
            bounds = [limit] if start == 0 and delta == 1 else [start, limit, delta][: 2 + (delta != 1)]
            return build.call("torch.arange", *bounds, device=device, hint="range")
    return build.call("ops.arange", *build.tensors_of(node), hint="range")


@handler("EyeLike")
def _eye_like(build: Build, node: Node) -> Any:
    dtype = _dtype_attr(build, node)
    return build.call("ops.eye_like", build.tensor(node, 0), node.attr("k", 0), dtype, hint="eye")


@handler("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")
def _random(build: Build, node: Node) -> Any:
    is_normal = "Normal" in node.op
    names = (("mean", 0.0), ("scale", 1.0)) if is_normal else (("low", 0.0), ("high", 1.0))
    numbers = [node.attr(*name) for name in names]
    shape = (
        build.call("ops.shape", build.tensor(node, 0), hint="shape")
        if node.num_inputs
        else node.attr("shape")
    )
    function = "ops.random_normal" if is_normal else "ops.random_uniform"
    return build.call(
        function, shape, *numbers, _dtype_attr(build, node), device=build.device(shape), hint="random"
    )


@handler("Bernoulli")  # ONNX's own body of it gives 1 with the probability of 0
def _bernoulli(build: Build, node: Node) -> Any:
    return build.call("ops.bernoulli", build.tensor(node, 0), _dtype_attr(build, node), hint="bernoulli")


@handler("Multinomial")
def _multinomial(build: Build, node: Node) -> Any:
    dtype = torch_dtype(int(node.attr("dtype", 6)))
    assert dtype is not None
    return build.call(
        "ops.multinomial", build.tensor(node, 0), node.attr("sample_size", 1), dtype, hint="classes"
    )


@handler("TopK")
def _topk(build: Build, node: Node) -> Any:
    k: Any = node.attr("k")  # version 1
    k = build.integer(node, 1) if k is None else k
    axis, largest = node.attr("axis", -1), bool(node.attr("largest", 1))
    return build.calls("ops.topk", build.tensor(node, 0), k, axis, largest, count=2, hint="top")


@handler("OneHot")
def _one_hot(build: Build, node: Node) -> Any:
    known = build.ints(node, 1)
    depth = known[0] if known else build.tensor_or_number(node, 1)
    arguments = (
        build.tensor(node, 0),
        int(depth) if isinstance(depth, float) else depth,
        build.tensor(node, 2),
    )
    return build.call("ops.one_hot", *arguments, node.attr("axis", -1), hint="one_hot")


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
