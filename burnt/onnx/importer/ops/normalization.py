"""Normalizations, dropout and losses. With constant weights a normalization is a layer."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from burnt import nn
from burnt.onnx.importer.build import Build
from burnt.onnx.importer.node import Node, handler
from burnt.onnx.importer.ops.layers import float_constant, set_weights


@handler("BatchNormalization")
def _batch_norm(build: Build, node: Node) -> Any:
    eps, momentum = node.attr("epsilon", 1e-5), node.attr("momentum", 0.9)
    if node.attr("training_mode", 0):
        return build.calls(
            "ops.batch_norm_training", *build.tensors_of(node), eps, momentum, count=3, hint="norm"
        )
    x, arrays = build.tensor(node, 0), [float_constant(build, node, i) for i in range(1, 5)]
    if all(a is not None and a.ndim == 1 for a in arrays):
        scale, bias, mean, var = arrays
        assert scale is not None
        layer = nn.BatchNorm(scale.shape[0], eps, round(1 - momentum, 9))
        set_weights(layer, weight=scale, bias=bias, running_mean=mean, running_var=var)
        return build.layer(layer, x, hint="norm")
    scale, bias, mean, var = build.tensors_of(node)[1:5]
    return build.call("F.batch_norm", x, mean, var, scale, bias, False, 0.0, eps, hint="norm")


@handler("InstanceNormalization")
def _instance_norm(build: Build, node: Node) -> Any:
    arrays = [float_constant(build, node, index) for index in (1, 2)]
    if all(array is not None and array.ndim == 1 for array in arrays):
        assert arrays[0] is not None
        layer = nn.InstanceNorm(arrays[0].shape[0], node.attr("epsilon", 1e-5), affine=True)
        set_weights(layer, weight=arrays[0], bias=arrays[1])
        return build.layer(layer, build.tensor(node, 0), hint="norm")
    x, scale, bias = build.tensors_of(node)[:3]
    arguments = (x, None, None, scale, bias, True, 0.0, node.attr("epsilon", 1e-5))
    return build.call("F.instance_norm", *arguments, hint="norm")


@handler("LayerNormalization")
def _layer_norm(build: Build, node: Node) -> Any:
    axis, eps = node.attr("axis", -1), node.attr("epsilon", 1e-5)
    scale, bias = float_constant(build, node, 1), float_constant(build, node, 2)
    rank = build.rank(node, 0)
    only_y = not node.uses_output(1) and not node.uses_output(2)
    fits = scale is not None and only_y and rank is not None and not _is_broadcast(node, scale)
    if scale is not None and fits and scale.ndim == (-axis if axis < 0 else (rank or 0) - axis):
        is_plain, has_bias = _is_plain(node, scale, bias), bias is not None
        if is_plain or (bias is None and not node.has(2)) or (bias is not None and bias.shape == scale.shape):
            layer = nn.LayerNorm(scale.shape, eps, elementwise_affine=not is_plain, bias=has_bias or is_plain)
            layer = layer if is_plain else set_weights(layer, weight=scale, bias=bias)
            return build.layer(layer, build.tensor(node, 0), hint="norm")
    arguments = (*build.tensors_of(node, 3), axis, eps)
    if only_y:
        return build.call("ops.layer_norm", *arguments, hint="norm")
    return build.calls("ops.layer_norm_statistics", *arguments, count=3, hint="norm")


def _is_plain(node: Node, scale: np.ndarray[Any, Any], bias: np.ndarray[Any, Any] | None) -> bool:
    """Whether scale and bias are ones and zeros that an exporter wrote, where a layer has no weights."""
    if not (scale == 1).all() or (node.has(2) and (bias is None or (bias != 0).any())):
        return False
    given = [value for value in node.node.inputs[1:3] if value is not None]
    return all(not v.is_initializer() or re.match(r"onnx::|val_\d+$", v.name or "") for v in given)


def _is_broadcast(node: Node, scale: np.ndarray[Any, Any]) -> bool:
    """Whether a scale may be shorter than the axes that are normalized, which a layer's weight may not."""
    x = node.node.inputs[0]
    sizes = None if x is None or x.shape is None else list(x.shape)[-scale.ndim :]
    is_known = sizes and all(isinstance(size, int) for size in sizes)
    return sizes != list(scale.shape) if is_known else 1 in scale.shape


@handler("RMSNormalization", "SimplifiedLayerNormalization")
@handler("SimplifiedLayerNormalization", domain="com.microsoft")
def _rms_norm(build: Build, node: Node) -> Any:
    axis, eps = node.attr("axis", -1), node.attr("epsilon", 1e-5)
    scale, rank = float_constant(build, node, 1), build.rank(node, 0)
    is_last = axis == -1 or (rank is not None and axis == rank - 1)
    if scale is not None and scale.ndim == 1 and is_last and not _is_broadcast(node, scale):
        layer = set_weights(nn.RmsNorm(scale.shape[0], eps), weight=scale)
        return build.layer(layer, build.tensor(node, 0), hint="norm")
    return build.call("ops.rms_norm", build.tensor(node, 0), build.tensor(node, 1), axis, eps, hint="norm")


@handler("GroupNormalization")
def _group_norm(build: Build, node: Node) -> Any:
    groups, eps = node.attr("num_groups"), node.attr("epsilon", 1e-5)
    scale, bias = float_constant(build, node, 1), float_constant(build, node, 2)
    if scale is not None and bias is not None and node.version >= 21:
        layer = set_weights(nn.GroupNorm(groups, scale.shape[0], eps), weight=scale, bias=bias)
        return build.layer(layer, build.tensor(node, 0), hint="norm")
    return build.call("ops.group_norm", *build.tensors_of(node), groups, eps, hint="norm")


@handler("Dropout")
def _dropout(build: Build, node: Node) -> Any:
    ratio = build.constant(node, 1)
    p: Any = float(ratio) if ratio is not None else node.attr("ratio", 0.5)
    if node.has(1) and ratio is None:
        p = build.tensor(node, 1)
    x = build.tensor(node, 0)
    training: Any = False
    if node.has(2):
        constant = build.constant(node, 2)
        training = build.tensor(node, 2) if constant is None else bool(constant)
    if not node.uses_output(1) and training is False:
        return build.layer(nn.Dropout(p), x, hint="dropout") if isinstance(p, float) else x
    return build.calls("ops.dropout", x, p, training, count=2, hint="dropout")


@handler("GridSample")
def _grid_sample(build: Build, node: Node) -> Any:
    mode = node.text("mode", "bilinear")
    mode = {"linear": "bilinear", "cubic": "bicubic"}.get(mode, mode)
    padding, align = node.text("padding_mode", "zeros"), bool(node.attr("align_corners", 0))
    return build.call("F.grid_sample", *build.tensors_of(node), mode, padding, align, hint="sampled")
