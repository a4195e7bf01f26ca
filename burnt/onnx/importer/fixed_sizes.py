"""Sizes that weights fix, such as the features of a linear layer or the channels of a convolution.

Shape arithmetic on them is computed while a model is imported. What the file says of other shapes is not
asked: a batch or a length that an exporter fixed stays open where the nodes leave it so.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import onnx_ir as ir


Sizes: TypeAlias = "tuple[int | None, ...]"

_BROADCAST = {"Add", "Sub", "Mul", "Div", "LayerNormalization", "RMSNormalization"}
"""Ops whose result has a size that one of the inputs has and that is not 1."""
_LIKE_FIRST = {
    *("BatchNormalization", "Cast", "ChannelsLayerNorm", "Clip", "Dropout", "Erf", "Gelu", "GroupNorm"),
    *("HardSwish", "Identity", "InstanceNormalization", "LeakyRelu", "QuickGelu", "Relu", "Relu6", "Sigmoid"),
    *("Silu", "Softmax", "Tanh"),
}
"""Ops whose result has the shape of the first input."""


def fixed_sizes(value: ir.Value | None, known: dict[Any, Sizes]) -> Sizes:
    """Return the size of each axis where weights fix it and it is not 1, else None.

    The sizes of this value, and of those that it is computed from, are added to `known`.
    """
    stack = [value]
    while stack:
        one = stack[-1]
        missing = [source for source, _, _ in _sources(one) if source not in known]
        if one is None or one in known or not missing:
            stack.pop()
            if one is not None and one not in known:
                known[one] = _fixed(one, known)
        else:
            stack += missing
    return () if value is None else known[value]


def _fixed(value: ir.Value, known: dict[Any, Sizes]) -> Sizes:
    sizes: list[Any] = [None] * (0 if value.shape is None else len(value.shape))
    node = value.producer()
    is_weight = value.is_initializer() and not value.is_graph_input()
    if value.shape is not None and (is_weight or (node is not None and node.op_type == "Constant")):
        sizes = [size if isinstance(size, int) and size != 1 else None for size in value.shape]
    for source, axis, its_axis in _sources(value):
        its_sizes = known[source]
        if 0 <= its_axis < len(its_sizes) and sizes[axis] is None:
            sizes[axis] = its_sizes[its_axis]
    features = _features(value)
    if sizes and sizes[-1] is None and features != 1:
        sizes[-1] = features
    return tuple(sizes)


def _features(value: ir.Value) -> int | None:
    """Return the size of the last axis that a product with a weight asks for."""
    for node, position in value.uses():
        is_product = node.op_type == "MatMul" and position == 0 and node.graph is value.graph
        weight = node.inputs[1] if is_product else None
        if weight is not None and weight.is_initializer() and not weight.is_graph_input():
            size = weight.shape[0] if weight.shape is not None and len(weight.shape) == 2 else None
            if isinstance(size, int):
                return size
    return None


def _sources(value: ir.Value | None) -> Iterator[tuple[ir.Value, int, int]]:
    """Yield inputs of the node that computes a value, with an axis of the value and that of the input."""
    node = None if value is None else value.producer()
    if value is None or value.shape is None or node is None:
        return
    rank, inputs = len(value.shape), [*node.inputs, None, None]
    ranks = [-1 if one is None or one.shape is None else len(one.shape) for one in inputs]
    if node.op_type in _BROADCAST and "broadcast" not in node.attributes:  # of versions below 7
        for one, its_rank in zip(inputs, ranks, strict=True):
            for axis in range(its_rank):
                yield from _source(one, rank - its_rank + axis, axis)
    elif node.op_type in _LIKE_FIRST and ranks[0] == rank:
        for axis in range(rank):
            yield from _source(inputs[0], axis, axis)
    elif node.op_type == "Transpose" and ranks[0] == rank:
        perm = node.attributes.get("perm")
        for axis, its_axis in enumerate(reversed(range(rank)) if perm is None else perm.value):
            yield from _source(inputs[0], axis, its_axis)
    elif node.op_type == "Conv" and rank > 1:
        yield from _source(inputs[1], 1, 0)
    elif node.op_type in ("MatMul", "Gemm") and ranks[1] >= 2 and rank:
        flag = node.attributes.get("transB")
        yield from _source(inputs[1], rank - 1, ranks[1] - (2 if flag is not None and flag.value else 1))
    elif node.op_type == "Gather" and ranks[0] == 2 and rank:  # of rows: an embedding
        along = node.attributes.get("axis")
        if along is None or along.value == 0:
            yield from _source(inputs[0], rank - 1, 1)


def _source(value: ir.Value | None, axis: int, its_axis: int) -> Iterator[tuple[ir.Value, int, int]]:
    if value is not None and axis >= 0:
        yield value, axis, its_axis
