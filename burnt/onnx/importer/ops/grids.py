"""GatherND, and what it is where its indices are the positions of the table's own axes.

torch's exporter writes the lookup of a mask, ``mask[batch[:, None], position[None, :]]`` with the ranges of
both axes, as a table of all pairs of indices: the mask with more axes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from burnt.onnx.importer.build import Build, Node
from burnt.onnx.importer.matching import integers_of, number_of, producer_of, shape_of
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


def _place(column: ir.Value | None, size: Any, rank: int) -> int | None:
    """Return the axis along which indices count from 0 to a size, if they are the same along all others."""
    node = producer_of(column, "Unsqueeze")
    if node is None or _axes(node) not in ([-1], [rank]):
        return None
    value = node.inputs[0]
    expand = producer_of(value, "Expand")
    value = value if expand is None else expand.inputs[0]
    shape = shape_of(value)
    places = [axis for axis, length in enumerate(shape) if length != 1]
    while (node := producer_of(value, "Unsqueeze")) is not None:
        value = node.inputs[0]
    numbers = producer_of(value, "Range")
    if numbers is None or len(shape) != rank or len(places) != 1 or size is None:
        return None
    counts = (number_of(numbers.inputs[0]), number_of(numbers.inputs[2])) == (0, 1)
    return places[0] if counts and shape_of(value) == [size] else None


def _axes(node: ir.Node) -> list[int] | None:
    """Return the axes of an Unsqueeze, which are an attribute before version 13."""
    given = node.attributes.get("axes")
    return integers_of(node.inputs[1]) if given is None else list(given.value)
