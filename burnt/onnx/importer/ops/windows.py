"""Convolutions and poolings. With constant weights a convolution is a layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from burnt import nn
from burnt.onnx.importer.build import Build
from burnt.onnx.importer.expand import version_of
from burnt.onnx.importer.node import Node, handler
from burnt.onnx.importer.ops.layers import FLOATS, float_constant, set_weights
from burnt.onnx.importer.quantized import add_quantized, quantized_weight

WINDOW: tuple[tuple[str, Any], ...] = (
    *((name, None) for name in ("strides", "pads", "dilations")),
    ("ceil_mode", False),
    ("auto_pad", "NOTSET"),
)
_CONV: dict[int, Any] = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
_CONV_TRANSPOSE: dict[int, Any] = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}


@handler("Conv")
def _conv(build: Build, node: Node) -> Any:
    quantized, weight = quantized_weight(build, node, 1), float_constant(build, node, 1)
    bias = float_constant(build, node, 2)
    auto_pad, groups = node.text("auto_pad", "NOTSET"), node.attr("group", 1)
    strides, dilations, pads = node.attr("strides"), node.attr("dilations"), node.attr("pads")
    pads_of_layer = pads is None or (min(pads) >= 0 and pads[: len(pads) // 2] == pads[len(pads) // 2 :])
    has_own_bias = bias is not None or not node.has(2)
    if quantized is not None and auto_pad == "NOTSET" and pads_of_layer and has_own_bias:
        shape, add = quantized.weight.shape, None
        rank = len(shape) - 2
        if bias is None and node.is_only_use(1):
            bias, add = _constant_after(build, node.node, "Add", shape[0], len(shape))
        window = strides or [1] * rank, (pads or [0] * rank)[:rank], dilations or [1] * rank
        layer = _conv_layer(shape, *window, groups, bias, dtype=quantized.weight.dtype)
        result = add_quantized(build, node, layer, quantized, hint="conv")
        if result is not None:
            if add is not None:
                build.absorbed[add] = result
            return result
    x = build.tensor(node, 0)
    if weight is not None and weight.ndim - 2 in _CONV:
        rank, kernel = weight.ndim - 2, weight.shape[2:]
        strides, dilations, pads = strides or [1] * rank, dilations or [1] * rank, pads or [0] * 2 * rank
        if auto_pad.startswith("SAME"):
            upper = auto_pad == "SAME_UPPER"
            spans = [d * (k - 1) for d, k in zip(dilations, kernel, strict=True)]
            if strides == [1] * rank:
                pads = _halves(spans, upper)
            else:
                x = build.call("ops.pad_same", x, list(kernel), strides, dilations, upper, hint="padded")
                pads = [0] * 2 * rank
        elif auto_pad == "VALID":
            pads = [0] * 2 * rank
        x, pads = _with_pads_before(build, x, pads)
        if pads[:rank] != pads[rank:] or min(pads) < 0:
            numbers = tuple(n for i in range(rank - 1, -1, -1) for n in (pads[i], pads[rank + i]))
            x, pads = build.call("F.pad", x, numbers, hint="padded"), [0] * 2 * rank
        weight, bias, last = _with_affine(build, node, weight, bias, 0)
        layer = _conv_layer(weight.shape, strides, pads[:rank], dilations, groups, bias)
        y = build.layer(set_weights(layer, weight=weight), x, hint="conv")
        return _finish(build, node, y, bias, last)
    arguments = (x, build.tensor(node, 1), build.tensor(node, 2), strides, pads, dilations, groups, auto_pad)
    return build.call("ops.conv", *arguments, hint="conv")


def _halves(numbers: list[int], upper: bool) -> list[int]:
    """Return pads that divide numbers between both sides, the larger part at the end with `upper`."""
    less, more = [n // 2 for n in numbers], [n - n // 2 for n in numbers]
    return [*less, *more] if upper else [*more, *less]


def _conv_layer(
    shape: Sequence[int], strides: Any, pads: Any, dilations: Any, groups: int, bias: Any, dtype: Any = None
) -> Any:
    """Return a convolution with a weight ``[out, in / groups, ...]``, which is to be set, and a bias."""
    window = tuple(shape[2:]), tuple(strides), tuple(pads), tuple(dilations)
    has_bias = bias is not None
    cls = _CONV[len(shape) - 2]
    layer = cls(shape[1] * groups, shape[0], *window, groups, has_bias, device="meta", dtype=dtype)
    return set_weights(layer, bias=bias)


def _with_pads_before(build: Build, x: Any, pads: list[int]) -> tuple[Any, list[int]]:
    """Return what a convolution reads without the zeros that a Pad puts around it, and the pads of both."""
    call, rank = build.maker(x, "F.pad"), len(pads) // 2
    if call is None or call.kwargs or min(pads) < 0:
        return x, pads
    source: Any = call.args[0]
    numbers: Any = call.args[1]
    if not all(isinstance(n, int) for n in numbers):
        return x, pads
    if len(numbers) > 2 * rank or min(numbers) < 0:  # the batch or the channels too, or elements are cut off
        return x, pads
    low, high = ([*reversed(numbers[side::2])] for side in (0, 1))  # F.pad begins with the last axis
    before = [0] * (rank - len(low))
    both = [a + b for a, b in zip(pads, [*before, *low, *before, *high], strict=True)]
    return (source, both) if both[:rank] == both[rank:] else (x, pads)


def _finish(build: Build, node: Node, y: Any, bias: Any, last: Any) -> Any:
    """Add a bias that is not the layer's own; `last` has been computed by the layer too."""
    if last is not None:
        build.absorbed[last] = y
    if bias is None and node.has(2):
        aligned = build.call("ops.align", build.tensor(node, 2), y, 1, hint="bias")
        y = build.call("torch.add", y, aligned, hint="conv")
    return y


def _with_affine(
    build: Build, node: Node, weight: Any, bias: Any, axis: int
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any] | None, Any]:
    """Fold a product and a sum with constants per channel into the convolution before them.

    This is how some exporters write a batch norm. `axis` is the output channels' in the weight. The
    third result is the node whose result the layer then computes; None if nothing follows.
    """
    is_own = node.is_only_use(1) and (bias is not None or not node.has(2))
    if not is_own or node.op not in ("Conv", "ConvTranspose"):  # FusedConv has an activation before the rest
        return weight, bias, None
    channels, rank = weight.shape[axis], weight.ndim
    scale, multiply = _constant_after(build, node.node, "Mul", channels, rank)
    shift, add = _constant_after(build, node.node if multiply is None else multiply, "Add", channels, rank)
    if shift is None or add is None:
        return weight, bias, None
    total = shift.astype(np.float64)
    if bias is not None:
        total = total + bias.astype(np.float64) * (1 if scale is None else scale)
    if scale is not None:
        factor = scale.astype(np.float64).reshape([-1 if i == axis else 1 for i in range(rank)])
        weight = (weight.astype(np.float64) * factor).astype(weight.dtype)
    return weight, total.astype(weight.dtype), add


def _constant_after(build: Build, node: Any, op: str, channels: int, rank: int) -> tuple[Any, Any]:
    """Return the constant per channel that a node's only reader combines with its result, and that reader."""
    output = node.outputs[0]
    if len(output.uses()) != 1 or output.is_graph_output():
        return None, None
    reader = output.uses()[0].node
    if reader.op_type != op or reader.domain not in ("", "ai.onnx") or reader.graph is not node.graph:
        return None, None
    wrapped = Node(reader, version_of(reader))
    index = 1 if reader.inputs[0] is output else 0
    array = None if reader.attributes else build.constant(wrapped, index)
    if array is None or array.dtype.name not in FLOATS or not wrapped.is_only_use(index):
        return None, None
    sizes = array.shape[1:] if array.ndim == rank and array.shape[0] == 1 else array.shape
    return (array.reshape(-1), reader) if sizes == (channels, *[1] * (rank - 2)) else (None, None)


@handler("ConvTranspose")
def _conv_transpose(build: Build, node: Node) -> Any:
    x, weight = build.tensor(node, 0), float_constant(build, node, 1)
    bias = float_constant(build, node, 2)
    auto_pad, groups = node.text("auto_pad", "NOTSET"), node.attr("group", 1)
    strides, dilations, pads = node.attr("strides"), node.attr("dilations"), node.attr("pads")
    extra, shape = node.attr("output_padding"), node.attr("output_shape")
    if weight is not None and not shape and weight.ndim - 2 in _CONV_TRANSPOSE:
        rank = weight.ndim - 2
        strides, dilations = strides or [1] * rank, dilations or [1] * rank
        extra = extra or [0] * rank
        spans = [d * (k - 1) + 1 for d, k in zip(dilations, weight.shape[2:], strict=True)]
        ends = [span - s + e for span, s, e in zip(spans, strides, extra, strict=True)]
        if auto_pad.startswith("SAME"):  # the result has stride times the elements of the input
            pads = _halves(ends, auto_pad == "SAME_UPPER")
        elif auto_pad == "VALID" or not pads:
            pads = [0] * 2 * rank
        # What one side has more is cut off; torch has no output padding without a stride above it.
        crop = [n for i in range(rank - 1, -1, -1) for n in (-pads[i], extra[i] - pads[rank + i])]
        is_plain = pads[:rank] == pads[rank:] and min(pads) >= 0
        is_plain = is_plain and all(e < max(s, d) for e, s, d in zip(extra, strides, dilations, strict=True))
        if is_plain or max(crop) <= 0:
            last = None
            if groups == 1:
                weight, bias, last = _with_affine(build, node, weight, bias, 1)
            layer = _CONV_TRANSPOSE[rank](
                weight.shape[0],
                weight.shape[1] * groups,
                tuple(weight.shape[2:]),
                tuple(strides),
                tuple(pads[:rank]) if is_plain else (0,) * rank,
                tuple(extra) if is_plain else (0,) * rank,
                groups,
                bias is not None,
                tuple(dilations),
            )
            y = build.layer(set_weights(layer, weight=weight, bias=bias), x, hint="conv_transpose")
            y = y if is_plain else build.call("F.pad", y, tuple(crop), hint="cut")
            return _finish(build, node, y, bias, last)
    inputs = x, build.tensor(node, 1), build.tensor(node, 2)
    window = strides, pads, dilations, groups, auto_pad, extra, shape
    return build.call("ops.conv_transpose", *inputs, *window, hint="conv")


def _as_torch(node: Node) -> tuple[int, Any] | None:
    """Return kernel rank and torch's arguments of a window that torch can pool, or None."""
    kernel = node.attr("kernel_shape")
    rank = len(kernel)
    pads, strides = node.attr("pads") or [0] * 2 * rank, node.attr("strides") or [1] * rank
    auto_pad = node.text("auto_pad", "NOTSET")
    if auto_pad == "VALID":
        pads = [0] * 2 * rank
    fits = all(2 * p <= k for p, k in zip(pads[:rank], kernel, strict=True)) and pads[:rank] == pads[rank:]
    if rank > 3 or auto_pad.startswith("SAME") or not fits or node.attr("ceil_mode", 0):
        return None
    return rank, (tuple(kernel), tuple(strides), tuple(pads[:rank]))


@handler("MaxPool")
def _max_pool(build: Build, node: Node) -> Any:
    x, kernel = build.tensor(node, 0), node.attr("kernel_shape")
    same, dtype, order = _as_torch(node), build.dtype(node, 0), node.attr("storage_order", 0)
    if same and not node.uses_output(1) and dtype is not None and dtype.is_floating_point:
        dilations = node.attr("dilations") or [1]
        extra = {"dilation": tuple(dilations)} if set(dilations) != {1} else {}
        return build.call(f"F.max_pool{same[0]}d", x, *same[1], hint="pooled", **extra)
    extra = node.options(*WINDOW) | ({"column_major": True} if order else {})
    return build.calls("ops.max_pool", x, kernel, count=2, hint="pooled", **extra)


@handler("AveragePool")
def _average_pool(build: Build, node: Node) -> Any:
    x, kernel, same = build.tensor(node, 0), node.attr("kernel_shape"), _as_torch(node)
    include = bool(node.attr("count_include_pad", 0))
    if same and set(node.attr("dilations") or [1]) == {1}:
        arguments = (*same[1], False, include)
        return build.call(f"F.avg_pool{same[0]}d", x, *arguments, hint="pooled")
    extra = node.options(*WINDOW, ("count_include_pad", False))
    return build.call("ops.average_pool", x, kernel, hint="pooled", **extra)


@handler("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def _global_pool(build: Build, node: Node) -> Any:
    x = build.tensor(node, 0)
    rank = build.rank(node, 0)
    kind = {"GlobalAveragePool": "avg", "GlobalMaxPool": "max"}.get(node.op, "lp")
    if kind != "lp" and rank in (3, 4, 5):
        return build.call(f"F.adaptive_{kind}_pool{rank - 2}d", x, 1, hint="pooled")
    extra = (node.attr("p", 2),) if kind == "lp" else ()
    return build.call("ops.global_pool", x, kind, *extra, hint="pooled")


@handler("MaxUnpool")
def _max_unpool(build: Build, node: Node) -> Any:
    window = [node.attr(name) for name in ("kernel_shape", "strides", "pads")]
    return build.call(
        "ops.max_unpool", *build.tensors_of(node, 2), *window, build.integers(node, 2), hint="x"
    )


@handler("RoiAlign")
def _roi_align(build: Build, node: Node) -> Any:
    default = "half_pixel" if node.version >= 16 else "output_half_pixel"
    half_pixel = node.text("coordinate_transformation_mode", default) == "half_pixel"
    size = node.attr("output_height", 1), node.attr("output_width", 1)
    numbers = node.attr("spatial_scale", 1.0), node.attr("sampling_ratio", 0), node.text("mode", "avg")
    return build.call("ops.roi_align", *build.tensors_of(node), size, *numbers, half_pixel, hint="pooled")


@handler("NonMaxSuppression")
def _non_max_suppression(build: Build, node: Node) -> Any:
    numbers: list[Any] = []
    for i in range(2, 5):
        constant = build.constant(node, i)
        given = build.tensor(node, i) if constant is None else constant.reshape(()).item()
        numbers.append(given if node.has(i) else (0, 0.0, None)[i - 2])
    arguments = *build.tensors_of(node, 2), *numbers, bool(node.attr("center_point_box", 0))
    return build.call("ops.non_max_suppression", *arguments, hint="boxes")
