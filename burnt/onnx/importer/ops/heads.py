"""Heads of keys and values that are repeated for those of the queries: Unsqueeze, Expand and Reshape.

Attention takes keys and values as they are before that, with ``enable_gqa``.
"""

from __future__ import annotations

from typing import Any

from burnt.onnx.importer.build import Build
from burnt.onnx.importer.heads import Repeated
from burnt.onnx.importer.integers import multiply
from burnt.onnx.importer.matching import shape_of
from burnt.onnx.importer.node import Node
from burnt.onnx.importer.program import Name, Size


def merge_repeated(build: Build, x: Any, sizes: Any, result: Name) -> None:
    """Note that a Reshape merges the axis along which slices are repeated with the one before it.

    Args:
        build: of the program.
        x: the tensor that is reshaped.
        sizes: what it is reshaped to, with 0 for sizes that stay and -1 for one that is open.
        result: the name of the reshaped tensor.
    """
    repeated = build.repeated.get(x)
    if repeated is None or repeated.is_merged or not isinstance(sizes, list):
        return
    if len(sizes) != len(repeated.sizes) or sizes.count(-1) > 1:
        return
    axis, slices = repeated.axis, repeated.sizes[repeated.axis]
    total = [multiply(Size(repeated.source, axis), repeated.count)]
    if isinstance(slices, int):
        total.append(slices * repeated.count)
    for i, size in enumerate(sizes):
        is_same = size in total if i == axis else build.is_size(size, repeated.source, i, repeated.sizes)
        if not (is_same or size == -1 or (size == 0 and i < axis)):
            return
    build.repeated[result] = Repeated(repeated.source, axis, repeated.count, repeated.sizes, is_merged=True)


def grouped_heads(build: Build, node: Node, key: Any, value: Any) -> tuple[Name, Name] | None:
    """Return keys and values before their heads are repeated for the queries of an attention, else None."""
    keys, values = build.repeated.get(key), build.repeated.get(value)
    queries = shape_of(node.node.inputs[0])
    if keys is None or values is None or len(queries) != 4 or keys.count != values.count:
        return None
    for one in (keys, values):
        heads = one.sizes[1]
        if not one.is_merged or one.axis != 1 or type(heads) is not int or queries[1] != heads * one.count:
            return None
    return keys.source, values.source
