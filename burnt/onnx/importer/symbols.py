"""Symbols of sizes: equal axes get one name, where ONNX's shape inference gives each a new one.

Inference names sizes that it does not know ``unk__0``, ``unk__1``, and so on: those of a range, of a slice,
of a reshape to computed sizes, and of two shapes that are broadcast. Here shapes are computed with the names
of sizes as values, and such names replaced: ``[unk__0, unk__1, 16]`` is ``[batch, sequence, 16]`` again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from burnt.onnx.importer.integers import Ints, compute
from burnt.onnx.importer.matching import array_of, shape_of
from burnt.onnx.importer.node import Node
from burnt.onnx.importer.program import Name, Size

if TYPE_CHECKING:
    import onnx_ir as ir

from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import onnx_ir as ir

_INFERRED = "unk__"
_MOST_ELEMENTS = 16  # of a shape
_BROADCAST = {
    *("Add", "Sub", "Mul", "Div", "Pow", "And", "Or", "Xor", "Equal", "Less", "Greater", "LessOrEqual"),
    *("GreaterOrEqual", "Where", "Min", "Max", "Sum", "Mean", "Mod"),
}


def name_symbols(model: ir.Model) -> None:
    """Give sizes that are equal one name, in place. Shapes have been inferred before."""
    import onnx_ir as ir

    found = _Sizes()
    for node in model.graph:
        if node.domain in ("", "ai.onnx"):
            found.add(node)
    for value in (value for node in model.graph for value in node.outputs):
        sizes = shape_of(value)
        if any(size in found.names for size in sizes):
            value.shape = ir.Shape([found.resolved(size) for size in sizes])


class _Sizes:
    """What is known of sizes: other names for those of inference, and the elements of shapes."""

    def __init__(self) -> None:
        self.names: dict[Any, Any] = {}
        self.elements: dict[Any, Ints] = {}

    def resolved(self, size: Any) -> Any:
        """Return a number or the name that stands for a size."""
        while size in self.names:
            size = self.names[size]
        return size

    def shape(self, value: ir.Value | None) -> list[Any]:
        """Return the sizes of a value; empty if their number is not known."""
        return [self.resolved(size) for size in shape_of(value)]

    def known(self, value: ir.Value | None) -> Ints | None:
        """Return a tensor whose elements are numbers and sizes."""
        if value in self.elements:
            return self.elements[value]
        array = array_of(value, _MOST_ELEMENTS)
        return None if array is None else Ints.constant(array)

    def add(self, node: ir.Node) -> None:
        """Add a node's results to what is known."""
        sizes = self._sizes(node)
        output = node.outputs[0]
        old = self.shape(output)
        if sizes is not None and len(sizes) == len(old):
            for before, size in zip(old, sizes, strict=True):
                is_inferred = isinstance(before, str) and before.startswith(_INFERRED)
                if is_inferred and size is not None and self.resolved(size) != self.resolved(before):
                    self.names[self.resolved(before)] = self.resolved(size)
        if node.op_type == "Shape":
            shape = self.shape(node.inputs[0])
            start, end = (node.attributes.get(name) for name in ("start", "end"))
            span = slice(0 if start is None else start.value, None if end is None else end.value)
            if shape and None not in shape:
                self.elements[output] = Ints.of([_expr(size) for size in shape][span])
        elif any(value in self.elements for value in node.inputs):
            inputs = [self.known(value) for value in node.inputs]
            known = [value for value in inputs if value is not None]
            results = compute(Node(node, node.version or 1), known) if len(known) == len(inputs) else None
            for value, result in zip(node.outputs, results or (), strict=False):
                ints = result if isinstance(result, Ints) else Ints.constant(result)
                if ints is not None:
                    self.elements[value] = ints

    def _sizes(self, node: ir.Node) -> list[Any] | None:
        """Return the sizes of a node's first output by its inputs: None for those that are not known."""
        shapes = [self.shape(value) for value in node.inputs]
        is_known = [value is not None and value.shape is not None for value in node.inputs]
        if node.op_type in _BROADCAST:
            is_old = "broadcast" in node.attributes  # versions below 7 name the axes that meet
            return _broadcast(shapes) if is_known and all(is_known) and not is_old else None
        if node.op_type == "MatMul" and all(len(shape) > 1 for shape in shapes):
            left, right = shapes
            return [*_broadcast([left[:-2], right[:-2]]), left[-2], right[-1]]
        if node.op_type == "Range":
            limits = [self.known(value) for value in node.inputs]
            first, last, step = (None if v is None else _size(v.values.reshape(-1)[0]) for v in limits)
            return [last] if (first, step) == (0, 1) and isinstance(last, str) else None
        if node.op_type == "Slice" and len(node.inputs) > 3:
            axes = self.known(node.inputs[3])
            cut = None if axes is None else axes.fixed()
            rank = len(shapes[0])
            if cut is None or not rank:
                return None
            cut = [axis % rank for axis in cut]
            return [None if axis in cut else size for axis, size in enumerate(shapes[0])]
        if len(node.inputs) == {"Expand": 2, "Reshape": 2, "ConstantOfShape": 1}.get(node.op_type):
            wanted = self.known(node.inputs[-1])
            if wanted is None or wanted.values.ndim != 1:
                return None
            sizes = [_size(value) for value in wanted.values]
            if node.op_type == "Expand":
                return _broadcast([shapes[0], sizes]) if is_known[0] and None not in sizes else None
            return sizes if node.op_type == "ConstantOfShape" else _reshaped(shapes[0], sizes, node)
        return None


def _expr(size: int | str) -> Any:
    """Return a size as an element of `Ints`: a name is a size of a tensor of that name."""
    return size if isinstance(size, int) else Size(Name(size), 0)


def _size(expr: Any) -> int | str | None:
    """Return an element of `Ints` as a size; None for arithmetic."""
    if type(expr) is int:
        return expr
    return expr.tensor.name if isinstance(expr, Size) else None


def _reshaped(shape: list[Any], sizes: list[Any], node: ir.Node) -> list[Any]:
    """Return the sizes that a Reshape makes; the open one is what the others leave of the elements."""
    allow_zero = node.attributes.get("allowzero")
    if allow_zero is None or not allow_zero.value:
        kept = [*shape, *[None] * len(sizes)]
        sizes = [size if size != 0 else kept[axis] for axis, size in enumerate(sizes)]
    if sizes.count(-1) == 1:
        left, right = list(shape), [size for size in sizes if size != -1]
        for size in [size for size in right if isinstance(size, str)]:
            if size in left:  # once for each axis of that size
                left.remove(size)
                right.remove(size)
        names = [size for size in left if not isinstance(size, int)]
        numbers = [size for size in left if isinstance(size, int)]
        is_known = bool(shape) and all(type(size) is int and size > 0 for size in (*numbers, *right))
        whole, rest = (math.prod(numbers), math.prod(right)) if is_known else (0, 1)
        if whole and not names and whole % rest == 0:
            return [whole // rest if size == -1 else size for size in sizes]
        if whole == rest and len(names) == 1:
            return [names[0] if size == -1 else size for size in sizes]
    return [None if size == -1 else size for size in sizes]


def _broadcast(shapes: Sequence[list[Any]]) -> list[Any]:
    """Return the sizes that shapes are broadcast to."""
    rank = max(map(len, shapes))
    columns = zip(*([1] * (rank - len(shape)) + shape for shape in shapes), strict=True)
    result: list[Any] = []
    for column in columns:
        others = {size for size in column if size != 1}
        numbers = [size for size in others if isinstance(size, int)]
        # A number wins: the others are equal to it, or 1.
        one = numbers[0] if numbers else others.pop() if len(others) == 1 else None if others else 1
        result.append(one)
    return result


# Sizes that weights fix, such as the features of a linear layer or the channels of a convolution. Shape
# arithmetic on them is computed while a model is imported. What the file says of other shapes is not
# asked: a batch or a length that an exporter fixed stays open where the nodes leave it so.

Sizes: TypeAlias = "tuple[int | None, ...]"

_MAY_BROADCAST = {"Add", "Sub", "Mul", "Div", "LayerNormalization", "RMSNormalization"}
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
    if node.op_type in _MAY_BROADCAST and "broadcast" not in node.attributes:  # of versions below 7
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
