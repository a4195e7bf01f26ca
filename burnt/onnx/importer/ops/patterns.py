"""Nodes that `burnt.onnx.importer.patterns` writes."""

from __future__ import annotations

import math
from typing import Any

from burnt import nn
from burnt.onnx.importer.build import Build
from burnt.onnx.importer.matching import DOMAIN
from burnt.onnx.importer.node import Node
from burnt.onnx.importer.ops.layers import float_constant, set_weights
from burnt.onnx.importer.registry import handler


@handler("ChannelsLayerNorm", domain=DOMAIN)
def _channels_layer_norm(build: Build, node: Node) -> Any:
    """LayerNorm over the channels of images, as ConvNeXt has it."""
    eps, x = node.attr("epsilon"), build.call("torch.movedim", build.tensor(node, 0), 1, -1, hint="x")
    weights = [float_constant(build, node, i) for i in range(1, node.num_inputs)]
    scale, bias = [*weights, None][:2]
    if scale is not None and (bias is not None or node.num_inputs == 2):
        layer = nn.LayerNorm(scale.size, eps, bias=bias is not None)
        set_weights(layer, weight=scale.reshape(-1), bias=None if bias is None else bias.reshape(-1))
        norm = build.layer(layer, x, hint="norm")
    else:
        norm = build.call("ops.layer_norm", x, *_flat_weights(build, node), eps=eps, hint="norm")
    return build.call("torch.movedim", norm, -1, 1, hint="x")


@handler("GroupNorm", domain=DOMAIN)
def _group_norm(build: Build, node: Node) -> Any:
    x, groups, eps = build.tensor(node, 0), node.attr("groups"), node.attr("epsilon")
    weights = [float_constant(build, node, i) for i in range(1, node.num_inputs)]
    if any(weight is None for weight in weights):
        return build.call("F.group_norm", x, groups, *_flat_weights(build, node), eps=eps, hint="norm")
    layer = nn.GroupNorm(groups, node.attr("channels"), eps, affine=bool(weights))
    arrays = zip(("weight", "bias"), weights, strict=False)
    set_weights(layer, **{name: None if array is None else array.reshape(-1) for name, array in arrays})
    return build.layer(layer, x, hint="norm")


def _flat_weights(build: Build, node: Node) -> list[Any]:
    """Return the weights of channels with one axis."""
    ranks = {index: build.rank(node, index) for index in range(1, node.num_inputs)}
    return [
        build.tensor(node, i)
        if rank == 1
        else build.call("torch.flatten", build.tensor(node, i), hint="flat")
        for i, rank in ranks.items()
    ]


@handler("Roll", domain=DOMAIN)
def _roll(build: Build, node: Node) -> Any:
    x, shifts = build.tensor(node, 0), {node.attr("axis"): node.attr("shift")}
    before = build.maker(x, "torch.roll") if node.is_only_use(0) else None
    if before is not None:
        values, axes = (one if isinstance(one, tuple) else (one,) for one in before.args[1:])
        if node.attr("axis") not in axes:
            x, shifts = before.args[0], dict(zip(axes, values, strict=True)) | shifts
    both = [tuple(shifts[axis] for axis in sorted(shifts)), tuple(sorted(shifts))]
    return build.call("torch.roll", x, *(one if len(one) > 1 else one[0] for one in both), hint="rolled")


@handler("Attention", domain=DOMAIN)
def _attention(build: Build, node: Node) -> Any:
    scale, value = node.attr("scale"), node.node.inputs[0]
    size = value.shape[-1] if value is not None and value.shape is not None else None
    is_default = isinstance(size, int) and scale is not None and math.isclose(scale, size**-0.5, rel_tol=1e-6)
    extra = {} if is_default or scale is None else {"scale": scale}
    query, *both, mask = [*build.tensors_of(node), None][:4]
    if node.attr("grouped", 0):
        extra["enable_gqa"] = True
    inputs = [query, *both] if mask is None else [query, *both, mask]
    return build.call("F.scaled_dot_product_attention", *inputs, hint="attention", **extra)
