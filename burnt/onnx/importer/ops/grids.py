"""Lookups whose indices are the positions of the table's own axes.

torch's exporters write the lookup of a mask, ``mask[batch[:, None], position[None, :]]`` with the ranges of
both axes, as GatherND with a table of all pairs of indices, and before that as a Gather from the flat mask:
the mask with more axes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from burnt.onnx.importer.build import Build
from burnt.onnx.importer.matching import axes_of, number_of, producer_of, shape_of
from burnt.onnx.importer.node import Node
from burnt.onnx.importer.program import Name
from burnt.onnx.importer.registry import handler

if TYPE_CHECKING:
    import onnx_ir as ir


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
