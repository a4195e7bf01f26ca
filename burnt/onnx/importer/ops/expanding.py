"""Expand: torch's where it means the same."""

from __future__ import annotations

from typing import Any

from burnt.onnx.importer.build import Build
from burnt.onnx.importer.matching import shape_of
from burnt.onnx.importer.node import Node
from burnt.onnx.importer.ops.shapes import sizes_of
from burnt.onnx.importer.program import Name, Size
from burnt.onnx.importer.registry import handler


@handler("Expand")
def _expand(build: Build, node: Node) -> Any:
    x, sizes = build.tensor(node, 0), sizes_of(build, node, 1)
    wanted = _sizes_for_torch(build, node, x, sizes)
    if wanted is None:
        return build.call("ops.expand", x, sizes, hint="expanded")
    changed = [axis for axis, size in enumerate(wanted) if size != -1]
    if not changed:
        return x
    return build.call("torch.Tensor.expand", x, tuple(wanted), hint="expanded")


def _sizes_for_torch(build: Build, node: Node, x: Any, sizes: Any) -> list[Any] | None:
    """Return sizes for torch's expand, -1 for axes that stay; None if it may not mean the same.

    In ONNX a size of 1 leaves an axis as it is, while torch refuses it for an axis of another size.
    """
    if build.rank(node, 0) is None or not isinstance(sizes, list) or not isinstance(x, Name):
        return None
    if any(type(size) is int and size < 0 for size in sizes):
        return None
    known = shape_of(node.node.inputs[0])
    source, inserted = build.unsqueezed(x) or (None, [])
    sizes = [1] * (len(known) - len(sizes)) + sizes
    new = len(sizes) - len(known)
    wanted: list[Any] = list(sizes[:new])
    for axis, size in enumerate(sizes[new:]):
        is_same = size == 1 or build.is_size(size, x, axis, known)
        if source is not None and axis not in inserted:
            is_same = is_same or size == Size(source, axis - sum(one < axis for one in inserted))
        if not (is_same or known[axis] == 1 or type(size) is int):
            return None
        wanted.append(-1 if is_same else size)
    return wanted
