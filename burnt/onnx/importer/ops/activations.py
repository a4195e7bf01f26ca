"""Activations and the softmax family."""

from __future__ import annotations

import math
from typing import Any

from burnt import nn
from burnt.onnx.importer.build import Build
from burnt.onnx.importer.dtypes import to_tensor
from burnt.onnx.importer.node import Node
from burnt.onnx.importer.registry import handler


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
