"""Matching: what a pattern of nodes looks like, and helpers that read and write graphs of onnx_ir."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    import onnx_ir as ir


DOMAIN = "burnt"
"""Of the nodes that stand for what ONNX has no op for, or only in newer versions."""

Pattern: TypeAlias = "str | float | tuple[Any, ...]"
Found: TypeAlias = dict[str, Any]
_COMMUTATIVE = ("Add", "Mul", "Min")


def match(pattern: Pattern, value: ir.Value | None, found: Found) -> bool:
    """Match a pattern with what computes a value, and add the values and nodes of its names to `found`.

    A pattern is a name, which stands for one value; a number; or an op with patterns of its first inputs,
    such as ``("Mul", "x", 0.5)``. ``"Slice:first"`` keeps the node as ``first``.
    """
    if isinstance(pattern, str):
        return value is not None and found.setdefault(pattern, value) is value
    if isinstance(pattern, float):
        number = number_of(value)
        return number is not None and math.isclose(number, pattern, rel_tol=1e-4)
    op, _, name = pattern[0].partition(":")
    node = producer_of(value, op)
    if node is None or len(node.inputs) < len(pattern) - 1:
        return False
    parts = list(pattern[1:])
    for order in (parts, parts[::-1]) if op in _COMMUTATIVE else (parts,):
        trial = dict(found)
        if all(match(part, one, trial) for part, one in zip(order, node.inputs, strict=False)):
            if name and not is_same(trial.setdefault(name, node).outputs[0], node.outputs[0]):
                continue  # a pattern's node in two places: the mean of x over one axis, and over another
            found.update(trial)
            return True
    return False


def array_of(value: ir.Value | None, most: int) -> np.ndarray[Any, Any] | None:
    """Return a constant of few elements."""
    import onnx_ir as ir

    if value is None or (value.const_value is None and producer_of(value, "Constant") is None):
        return None
    tensor = ir.convenience.get_const_tensor(value)
    return tensor.numpy() if tensor is not None and tensor.size <= most else None


def number_of(value: ir.Value | None) -> float | None:
    """Return a constant of one element as a number."""
    array = array_of(value, 1)
    if array is None or array.size != 1 or array.dtype.kind not in "iuf":
        return None
    return float(array.reshape(()))


def integers_of(value: ir.Value | None) -> list[int] | None:
    """Return a constant of few integers as a list."""
    array = array_of(value, 8)
    return [int(v) for v in array.reshape(-1)] if array is not None and array.dtype.kind in "iu" else None


def axes_of(node: ir.Node) -> list[int] | None:
    """Return the axes of a node where they are constant: an attribute, or the second input."""
    given = node.attributes.get("axes")
    if given is not None:
        return list(given.value)
    return integers_of(node.inputs[1]) if len(node.inputs) > 1 else None


def shape_of(value: ir.Value | None) -> list[Any]:
    """Return the sizes of a value: numbers, names, or None for open ones; empty if the rank is unknown."""
    if value is None or value.shape is None:
        return []
    return [size if isinstance(size, int) else size.value for size in value.shape]


def rank_of(value: ir.Value | None) -> int | None:
    """Return the number of axes of a value, where it is known."""
    return None if value is None or value.shape is None else len(value.shape)


def is_internal(value: ir.Value) -> bool:
    """Whether only one node reads a value."""
    return len(value.uses()) == 1 and not value.is_graph_output()


def is_same(one: ir.Value | None, other: ir.Value | None, depth: int = 6) -> bool:
    """Whether two values are equal: one value, equal constants, or results of the same op on equal inputs."""
    if one is other:
        return True
    if one is None or other is None or depth == 0:
        return False
    if (numbers := integers_of(one)) is not None:
        return numbers == integers_of(other)
    first, second = one.producer(), other.producer()
    if first is None or second is None or len(first.outputs) != 1:
        return False
    return (
        first.op_identifier() == second.op_identifier()
        and len(first.inputs) == len(second.inputs)
        and {k: str(v) for k, v in first.attributes.items()}
        == {k: str(v) for k, v in second.attributes.items()}
        and all(is_same(a, b, depth - 1) for a, b in zip(first.inputs, second.inputs, strict=True))
    )


def producer_of(value: ir.Value | None, *ops: str) -> ir.Node | None:
    """Return the node that computes a value, if it is one of some ops of ONNX, or of `DOMAIN`."""
    node = None if value is None else value.producer()
    return (
        node if node is not None and node.op_type in ops and node.domain in ("", "ai.onnx", DOMAIN) else None
    )


def insert(
    before: ir.Node,
    domain: str,
    op: str,
    inputs: list[Any],
    attributes: dict[str, Any],
    output: ir.Value | None = None,
) -> ir.Value:
    """Add a node; its output takes the place of another, if one is given."""
    import onnx_ir as ir

    node = ir.node(op, inputs, attributes, domain=domain, name=before.name)
    node.metadata_props.update(before.metadata_props)
    node.version = before.version if domain == before.domain else 1
    assert before.graph is not None
    before.graph.insert_before(before, node)
    if output is not None:
        node.outputs[0].name, node.outputs[0].type, node.outputs[0].shape = (
            output.name,
            output.type,
            output.shape,
        )
        output.replace_all_uses_with(node.outputs[0], replace_graph_outputs=True)
    return node.outputs[0]
