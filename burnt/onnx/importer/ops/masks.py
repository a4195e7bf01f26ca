"""And, where one mask is true everywhere: what is left of it is the shape.

Exporters write the mask of an attention that may see all positions as a comparison that always holds,
``positions >= 0``, and combine it with that of the padding.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from burnt.onnx.importer.build import Build
from burnt.onnx.importer.matching import DOMAIN, array_of, number_of, producer_of, rank_of, shape_of
from burnt.onnx.importer.node import Node, handler
from burnt.onnx.importer.ops.elementwise import binary
from burnt.onnx.importer.ops.shapes import is_never_negative
from burnt.onnx.importer.program import Name

if TYPE_CHECKING:
    import onnx_ir as ir


@handler("And")
def _and(build: Build, node: Node) -> Any:
    if node.attr("axis") is None and node.attr("broadcast") is None:
        for index in (0, 1):
            if _is_true(node.node.inputs[1 - index]) and isinstance(build.value(node, index), Name):
                result = _broadcast(build, node, index)
                if result is not None:
                    return result
    return binary(build, node)


def _is_true(value: ir.Value | None, depth: int = 8) -> bool:
    """Whether all elements of a mask are true."""
    if depth == 0 or value is None:
        return False
    array = array_of(value, 4096)
    if array is not None:
        return array.dtype == bool and bool(array.all())
    node = producer_of(value, "And", "Cast", "Unsqueeze", "Expand", "ConstantOfShape", "GreaterOrEqual")
    if node is None or node.domain == DOMAIN:
        return False
    if node.op_type == "And":
        return all(_is_true(one, depth - 1) for one in node.inputs)
    if node.op_type == "ConstantOfShape":
        fill = node.attributes.get("value")
        return fill is not None and fill.value.numpy().dtype == bool and bool(fill.value.numpy().all())
    if node.op_type == "GreaterOrEqual":
        least = number_of(node.inputs[1])
        return least is not None and least <= 0 and is_never_negative(node.inputs[0], ())
    return _is_true(node.inputs[0], depth - 1)


def _broadcast(build: Build, node: Node, index: int) -> Any:
    """Return an operand in the shape of the result; None if that is not known."""
    sizes, after = shape_of(node.node.inputs[index]), shape_of(node.node.outputs[0])
    if not sizes or len(sizes) > len(after) or None in sizes or None in after:
        return None
    added = len(after) - len(sizes)
    sizes = [1] * added + sizes
    wanted = [-1 if size == other else build.size_of(other) for size, other in zip(sizes, after, strict=True)]
    changed = {axis: after[axis] for axis, size in enumerate(wanted) if size != -1}
    if any(sizes[axis] != 1 for axis in changed):
        return None
    x = build.tensor(node, index)
    if not (changed or added) or _is_broadcast_later(node.node.outputs[0], changed):
        return x
    if None in wanted:
        return None
    wanted[:added] = [1 if size == -1 else size for size in wanted[:added]]
    return build.call("torch.Tensor.expand", x, tuple(wanted), hint="mask")


def _is_broadcast_later(value: ir.Value, sizes: dict[int, Any], depth: int = 4) -> bool:
    """Whether a mask is read by attention alone, whose scores have the sizes of some axes of the mask."""
    if value.is_graph_output() or not depth:
        return False
    for node, index in value.uses():
        if node.domain == DOMAIN and node.op_type == "Attention" and index == 3:
            query, key = shape_of(node.inputs[0]), shape_of(node.inputs[1])
            scores = [query[0], query[1], query[2], key[2]] if len(query) == len(key) == 4 else []
            if rank_of(value) != len(scores) or any(scores[axis] != size for axis, size in sizes.items()):
                return False
            continue
        if node.op_type == "Where" and index == 0:
            is_passed_on = all(number_of(other) is not None for other in node.inputs[1:])
        else:
            is_passed_on = node.op_type == "Expand" and shape_of(node.outputs[0]) == shape_of(value)
        if not is_passed_on:
            return False
        if not _is_broadcast_later(node.outputs[0], sizes, depth - 1):
            return False
    return bool(value.uses())
