"""Ops on shapes and the arrangement of elements. Integers that are known, such as sizes, stay expressions."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from burnt import nn
from burnt.onnx.importer.build import Build
from burnt.onnx.importer.dtypes import to_tensor
from burnt.onnx.importer.integers import Ints, product
from burnt.onnx.importer.matching import axes_of, number_of, producer_of, shape_of
from burnt.onnx.importer.node import Node, handler
from burnt.onnx.importer.program import Name, Size, names_in
from burnt.onnx.importer.quantized import add_quantized, quantized_weight
from burnt.onnx.importer.symbols import fixed_sizes

if TYPE_CHECKING:
    import onnx_ir as ir


@handler("Shape")
def _shape(build: Build, node: Node) -> Any:
    start, end = node.attr("start", 0), node.attr("end")
    constant = build.constant(node, 0)
    if constant is not None:
        return np.array(constant.shape, dtype=np.int64)[start:end]
    x = build.tensor(node, 0)
    rank = build.rank(node, 0)
    if rank is None or not isinstance(x, Name):
        return build.call("ops.shape", x, start, end, hint="shape")
    known = shape_of(node.node.inputs[0])
    build.root.shapes[x] = known
    fixed = fixed_sizes(node.node.inputs[0], build.root.fixed)
    sizes = [Size(x, axis) if size is None else size for axis, size in enumerate(fixed)]
    if node.node.inputs[0] in build.root.model_inputs:
        found = [build.size_of(size) if isinstance(size, str) else None for size in known]
        sizes = [one or size for one, size in zip(found, sizes, strict=True)]
    return Ints.of(sizes[start:end])


@handler("Size")
def _size(build: Build, node: Node) -> Any:
    constant = build.constant(node, 0)
    if constant is not None:
        return np.array(constant.size, dtype=np.int64)
    x = build.tensor(node, 0)
    rank = build.rank(node, 0)
    if not rank or not isinstance(x, Name):
        return build.call("ops.numel", x, hint="size")
    return Ints(Ints.of([product([Size(x, axis) for axis in range(rank)])]).values.reshape(()))


@handler("Identity")
def _identity(build: Build, node: Node) -> Any:
    return build.value(node, 0)  # a weight that is an output too stays one parameter


@handler("Transpose")
def _transpose(build: Build, node: Node) -> Any:
    axes, rank = node.attr("perm"), build.rank(node, 0)
    if axes is None and rank is None:
        return build.call("ops.permute", build.tensor(node, 0), hint="transposed")
    axes = list(range(rank or 0))[::-1] if axes is None else axes
    return build.permute(build.tensor(node, 0), axes, is_only_use=node.is_only_use(0))


@handler("Flatten")
def _flatten(build: Build, node: Node) -> Any:
    axis = node.attr("axis", 1)
    if axis == 1 and (build.rank(node, 0) or 0) >= 2 and not node.is_text(0):
        return build.call("torch.flatten", build.tensor(node, 0), 1, hint="flat")
    return build.call("ops.flatten", build.tensor(node, 0), axis, hint="flat")


@handler("Squeeze")
def _squeeze(build: Build, node: Node) -> Any:
    axes = build.integers(node, 1, "axes")
    x = build.tensor(node, 0)
    if isinstance(axes, list):
        return build.call("torch.squeeze", x, axes[0] if len(axes) == 1 else tuple(axes), hint="squeezed")
    return build.call("ops.squeeze", x, *([] if axes is None else [axes]), hint="squeezed")


@handler("Unsqueeze")
def _unsqueeze(build: Build, node: Node) -> Any:
    axes = build.integers(node, 1, "axes")
    x, rank = build.tensor(node, 0), build.rank(node, 0)
    if rank is None or not isinstance(axes, list) or not all(type(axis) is int for axis in axes):
        return build.call("ops.unsqueeze", x, axes, hint="x")
    total = rank + len(axes)
    return build.unsqueeze(x, sorted(axis % total for axis in axes), total, is_only_use=node.is_only_use(0))


@handler("Concat")
def _concat(build: Build, node: Node) -> Any:
    axis, tensors = node.attr("axis", 1), build.tensors_of(node)
    if len(tensors) == 1:
        return tensors[0]
    if build.dtype(node, 0) is None:
        return build.call("ops.concat", tensors, axis, hint="concat")
    return build.call("torch.cat", tensors, axis, hint="concat")


@handler("Split")
def _split(build: Build, node: Node) -> Any:
    x, axis = build.tensor(node, 0), node.attr("axis", 0)
    if node.num_outputs == 1:
        return x
    sizes = build.integers(node, 1, "split")
    if isinstance(sizes, list):
        return build.calls("torch.split", x, sizes, axis, count=node.num_outputs, hint="part")
    sizes = node.num_outputs if sizes is None else sizes
    length = shape_of(node.node.inputs[0])[axis] if build.rank(node, 0) else None
    if sizes == node.num_outputs and isinstance(length, int) and length % sizes == 0 and length:
        return build.calls("torch.chunk", x, sizes, axis, count=sizes, hint="part")
    return build.calls("ops.split", x, sizes, axis, count=node.num_outputs, hint="part")


@handler("Slice")
def _slice(build: Build, node: Node) -> Any:
    starts, ends = build.integers(node, 1, "starts"), build.integers(node, 2, "ends")
    axes, steps = build.integers(node, 3, "axes"), build.integers(node, 4)
    bounds = [starts, ends, [1] if steps is None else steps]
    extra = {} if axes is None else {"axes": axes}
    if steps is not None and not (isinstance(steps, list) and all(step == 1 for step in steps)):
        extra["steps"] = steps
    if build.constant(node, 0) is not None and all(
        b is None or (isinstance(b, list) and all(type(v) is int for v in b)) for b in (*bounds, axes)
    ):
        array = build.constant(node, 0)
        assert array is not None
        where = [slice(None)] * array.ndim
        step_list = steps or [1] * len(starts)
        for i, axis in enumerate(axes or range(len(starts))):
            where[axis] = slice(starts[i], ends[i], step_list[i])
        if array.size <= 4096 and min(step_list) > 0:
            return np.ascontiguousarray(array[tuple(where)])
    x = build.tensor(node, 0)
    found = _named_slices(build, node, starts, ends, axes, steps)
    if found is None:
        return build.call("ops.slice_", x, starts, ends, hint="sliced", **extra)
    value = node.node.inputs[0]
    known = build.slices(x, build.rank(node, 0) or 0)
    if known is not None and value is not None and not value.is_graph_output():
        source, before = known
        is_read_by_slices = all(use.node.op_type == "Slice" for use in value.uses())
        is_apart = not before.keys() & found.keys() and x.name not in names_in(list(found.values()))
        if is_read_by_slices and is_apart:
            x, found = source, before | found
    named = sorted(found)
    starts, ends, steps = ([found[axis][i] for axis in named] for i in range(3))
    extra = {} if steps == [1] * len(steps) else {"steps": steps}
    if len(named) == 1 and named[0] == (build.rank(node, 0) or 0) - 1 > 1:
        named = [-1]  # x[..., :4]
    return build.call("ops.slice_", x, starts, ends, hint="sliced", axes=named, **extra)


def _named_slices(
    build: Build, node: Node, starts: Any, ends: Any, axes: Any, steps: Any
) -> dict[int, tuple[Any, Any, Any]] | None:
    """Return start, end and step by axis; None where they are not known, or an axis is named twice."""
    rank = build.rank(node, 0)
    axes = list(range(len(starts))) if axes is None and isinstance(starts, list) else axes
    steps = [1] * len(axes) if steps is None and isinstance(axes, list) else steps
    known = [starts, ends, axes, steps]
    if not rank or not all(isinstance(one, list) and len(one) == len(starts) for one in known):
        return None
    if not all(type(axis) is int and -rank <= axis < rank for axis in axes):
        return None
    found = {axis % rank: bounds for axis, *bounds in zip(axes, starts, ends, steps, strict=True)}
    return {axis: (a, b, c) for axis, (a, b, c) in found.items()} if len(found) == len(axes) else None


@handler("Gather")
def _gather(build: Build, node: Node) -> Any:
    axis = node.attr("axis", 0)
    indices = build.constant(node, 1)
    is_row = indices is not None and not indices.ndim
    added = grid_axes(build, node) if axis == 0 and indices is None else None
    if added is not None:
        flat = producer_of(node.node.inputs[0], "Flatten")
        assert flat is not None
        return build.unsqueeze(build.tensor(Node(flat, node.version), 0), added, len(added) + 2)
    quantized = quantized_weight(build, node, 0) if axis == 0 and not is_row else None
    if quantized is not None and quantized.weight.dim() == 2:
        size, features = quantized.weight.shape
        table = nn.Embedding(size, features, device="meta", dtype=quantized.weight.dtype)
        ids = embedding_indices(build, node, size)
        result = add_quantized(build, node, table, quantized, hint="embedding", x=ids)
        if result is not None:
            return result
    x = build.constant(node, 0)
    if x is not None and indices is not None and x.size <= 4096:
        return np.asarray(np.take(x, indices, axis=axis))  # numpy returns a single element as a number
    is_table = x is not None and axis == 0 and x.ndim == 2 and x.dtype.kind == "f"
    if x is not None and is_table and indices is None and node.is_only_use(0):
        layer = nn.Embedding(x.shape[0], x.shape[1], device="meta")
        layer.weight = torch.nn.Parameter(to_tensor(x))
        return build.layer(layer, embedding_indices(build, node, x.shape[0]), hint="embedding")
    if indices is not None and indices.ndim == 0 and build.dtype(node, 0) is not None:
        return build.call("torch.select", build.tensor(node, 0), axis, int(indices), hint="x")
    return build.call("ops.gather", build.tensor(node, 0), build.tensor(node, 1), axis, hint="gathered")


def embedding_indices(build: Build, node: Node, size: int) -> Any:
    """Return the indices of a Gather for an embedding layer, which takes none that count from the end.

    Those of the model's input are taken as they are: ids below zero are mistakes there.
    """
    indices = build.tensor(node, 1)
    if is_never_negative(node.node.inputs[1], build.root.model_inputs):
        return indices
    return build.call("ops.wrap_indices", indices, size, hint="indices")


_REARRANGING = {
    *("Cast", "Expand", "Flatten", "Gather", "GatherElements", "GatherND", "Identity", "Reshape", "Slice"),
    *("Squeeze", "Tile", "Transpose", "Unsqueeze"),
}
"""Ops whose elements are elements of their first input."""


def is_never_negative(value: Any, ids: Collection[Any]) -> bool:
    """Whether integers of the graph cannot be negative, by the ops that compute them, or are `ids`."""
    for _ in range(32):
        if value in ids:
            return True
        if value is None:
            return False
        if value.const_value is not None and value.producer() is None and not value.is_graph_input():
            return bool((value.const_value.numpy() >= 0).all())
        if value.dtype is not None and value.dtype.name.startswith("UINT"):
            return True
        node = value.producer()
        if node is None or node.domain not in ("", "ai.onnx"):
            return False
        if node.op_type in ("ArgMax", "ArgMin", "NonZero", "Shape", "Size", "Abs"):
            return True
        if node.op_type == "TopK":
            return value is node.outputs[1]
        if node.op_type == "Constant":
            attribute = node.attributes.get("value")
            return attribute is not None and bool((attribute.value.numpy() >= 0).all())
        if node.op_type == "Range":
            return all(is_never_negative(node.inputs[i], ids) for i in (0, 2))
        if node.op_type == "Concat":
            return all(is_never_negative(part, ids) for part in node.inputs)
        if node.op_type not in _REARRANGING:
            return False
        value = node.inputs[0]
    return False


@handler("Pad")
def _pad(build: Build, node: Node) -> Any:
    pads = node.attr("paddings") or build.integers(node, 1, "pads")
    axes, mode = build.integers(node, 3), node.attr("mode", "constant")
    value = node.attr("value")
    if node.has(2):
        constant = build.constant(node, 2)
        value = build.tensor(node, 2) if constant is None else constant.reshape(()).item()
    if isinstance(pads, list) and pads and all(type(size) is int and size == 0 for size in pads):
        return build.tensor(node, 0)
    rank = build.rank(node, 0)
    has_axes = axes is None or (isinstance(axes, list) and all(type(a) is int for a in axes))
    is_constant = mode == "constant" and not isinstance(value, Name)
    if is_constant and has_axes and rank is not None and isinstance(pads, list):
        named = list(range(rank)) if axes is None else [axis % rank for axis in axes]
        both = {axis: (pads[i], pads[len(named) + i]) for i, axis in enumerate(named)}
        numbers = [n for axis in range(rank - 1, -1, -1) for n in both.get(axis, (0, 0))]
        while len(numbers) > 2 and numbers[-2:] == [0, 0]:
            del numbers[-2:]
        x = build.tensor(node, 0)
        if numbers == [0, 0]:
            return x
        extra = {"value": value} if value else {}
        return build.call("F.pad", x, tuple(numbers), hint="padded", **extra)
    extra = {} if axes is None else {"axes": axes}
    return build.call("ops.pad", build.tensor(node, 0), pads, mode, value, hint="padded", **extra)


@handler("Trilu")
def _trilu(build: Build, node: Node) -> Any:
    k = build.ints(node, 1) if node.has(1) else [0]
    upper = bool(node.attr("upper", 1))
    if k is not None:
        return build.call(
            "torch.triu" if upper else "torch.tril", build.tensor(node, 0), k[0], hint="triangle"
        )
    return build.call("ops.trilu", build.tensor(node, 0), build.tensor(node, 1), upper, hint="triangle")


@handler("Col2Im")
def _col2im(build: Build, node: Node) -> Any:
    image, block = build.integers(node, 1), build.integers(node, 2)
    rank = len(image) if isinstance(image, list) else (build.rank(node, 0) or 0)
    if isinstance(image, Name):
        given = node.node.inputs[1]
        size = given.shape[0] if given is not None and given.shape is not None else 2
        rank = size if isinstance(size, int) else 2
    defaults = {"dilations": [1] * rank, "pads": [0] * 2 * rank, "strides": [1] * rank}
    window = [node.attr(name, default) for name, default in defaults.items()]
    return build.call("ops.col2im", build.tensor(node, 0), image, block, *window, hint="image")


# Lookups whose indices are the positions of the table's own axes. torch's exporters write the lookup of a
# mask, `mask[batch[:, None], position[None, :]]` with the ranges of both axes, as GatherND with a table
# of all pairs of indices, and before that as a Gather from the flat mask: the mask with more axes.


@handler("GatherND")
def _gather_nd(build: Build, node: Node) -> Any:
    axes = None if node.attr("batch_dims", 0) else _added_axes(node)
    if axes is not None:
        return build.call("ops.unsqueeze", build.tensor(node, 0), axes, hint="x")
    return build.call("ops.gather_nd", *build.tensors_of(node), node.attr("batch_dims", 0), hint="gathered")


def _added_axes(node: Node) -> list[int] | None:
    """Return the axes of size 1 that a lookup adds to its table; None if it does more than that."""
    table, indices = node.node.inputs
    sizes, result = shape_of(table), shape_of(node.node.outputs[0])
    columns = producer_of(indices, "Concat")
    if columns is None or not sizes or len(columns.inputs) != len(sizes):
        return None
    if columns.attributes["axis"].value not in (-1, len(result)):
        return None
    places = [_place(column, size, len(result)) for column, size in zip(columns.inputs, sizes, strict=True)]
    known = [place for place in places if place is not None]
    others = [axis for axis in range(len(result)) if axis not in known]
    in_order = len(known) == len(sizes) and known == sorted(set(known))
    return others if in_order and all(result[axis] == 1 for axis in others) else None


def grid_axes(build: Build, node: Node) -> list[int] | None:
    """Return the axes of size 1 that a Gather from a flat matrix adds to it; None if it does more than that.

    The flat matrix has one column, which is the last axis of the result. The indices are ``row * width +
    column`` for all rows and columns.
    """
    flat, total = producer_of(node.node.inputs[0], "Flatten"), producer_of(node.node.inputs[1], "Add")
    axis = None if flat is None else flat.attributes.get("axis")
    sizes, result = shape_of(flat.inputs[0]) if flat is not None else [], shape_of(node.node.outputs[0])
    if flat is None or total is None or len(sizes) != 2 or axis is None or axis.value != 2:
        return None
    for column, row in (total.inputs, reversed(total.inputs)):
        product = producer_of(row, "Mul")
        if product is None:
            continue
        for i in (0, 1):
            width = build.known_ints(Node(product, node.version), 1 - i)
            matrix = build.tensor(Node(flat, node.version), 0)
            if width is None or width.values.size != 1 or not isinstance(matrix, Name):
                continue
            if not build.is_size(width.values.reshape(-1)[0], matrix, 1, sizes):
                continue
            first, second = _positions(product.inputs[i], sizes[0]), _positions(column, sizes[1])
            others = [axis for axis in range(len(result)) if axis not in (first, second)]
            is_ordered = first is not None and second is not None and first < second
            if is_ordered and all(result[axis] == 1 for axis in others):
                return others
    return None


def _positions(value: ir.Value | None, size: Any) -> int | None:
    """Return the axis along which a tensor counts from 0 to a size, if all others have the size 1."""
    shape = shape_of(value)
    places = [axis for axis, length in enumerate(shape) if length != 1]
    while (node := producer_of(value, "Unsqueeze")) is not None:
        value = node.inputs[0]
    numbers = producer_of(value, "Range")
    if numbers is None or len(places) != 1 or size is None:
        return None
    counts = (number_of(numbers.inputs[0]), number_of(numbers.inputs[2])) == (0, 1)
    return places[0] if counts and shape_of(value) == [size] else None


def _place(column: ir.Value | None, size: Any, rank: int) -> int | None:
    """Return the axis along which indices count from 0 to a size, if they are the same along all others."""
    node = producer_of(column, "Unsqueeze")
    if node is None or axes_of(node) not in ([-1], [rank]):
        return None
    value = node.inputs[0]
    expand = producer_of(value, "Expand")
    value = value if expand is None else expand.inputs[0]
    return _positions(value, size) if len(shape_of(value)) == rank else None
