"""What kernels may round differently, and where that would show.

A sum depends on the order of its terms, which is the choice of a kernel: two kernels that compute the same
sum may differ in its last bit. Of what is made of it that is a difference in the last bits, too, with one
exception: an extreme is compared with the values it was found among, by its gradient and by users' code
(``s == s.amax()``), and would equal none of another kernel's. Such sums are computed once and are read from
memory.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Set
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import Graph, Node

__all__ = ["EqualitySensitiveSums", "find_equality_sensitive_sums"]

_ATEN = torch.ops.aten
_EXTREMES = frozenset(
    (
        _ATEN.amax.default, _ATEN.amin.default, _ATEN.max.default, _ATEN.min.default,
        _ATEN.max.dim, _ATEN.min.dim, _ATEN.aminmax.default,
    )
)  # fmt: skip
# Ops that move elements, and are no views.
_MOVES = frozenset(
    (
        _ATEN._to_copy.default, _ATEN.cat.default, _ATEN.constant_pad_nd.default, _ATEN.flip.default,
        _ATEN.roll.default, _ATEN.gather.default, _ATEN.index_select.default, _ATEN.index.Tensor,
    )
)  # fmt: skip
# Ops of an extreme, or of its difference to a value, that may be compared in its place.
_KEEP = frozenset(
    (_ATEN.neg.default, _ATEN.abs.default, _ATEN.sub.Tensor, _ATEN.rsub.Scalar, _ATEN.clone.default)
)
# Ops whose result jumps where two values, or a difference and 0, are equal.
_JUMPING = "eq", "ne", "lt", "le", "gt", "ge", "sign", "sgn", "heaviside", "logical_not"
_JUMPS = frozenset(f"aten::{name}" for name in _JUMPING)


class EqualitySensitiveSums(NamedTuple):
    """Nodes of a graph.

    Args:
        sums: that are compared with an extreme that was found among them.
        made: of these for the comparison, element by element; the extremes are among them.
    """

    sums: set[Node]
    made: set[Node]


def find_equality_sensitive_sums(
    graph: Graph, is_held: Callable[[Node], bool] = lambda node: False
) -> EqualitySensitiveSums:
    """The sums that must be the same to the bit wherever they are needed, and what is made of them.

    Args:
        graph: of a trace.
        is_held: whether a node's result is in memory anyway.
    """
    found = EqualitySensitiveSums(set(), set())
    rounded: set[Node] = set()  # sums, and what is made of them element by element
    extremes: set[Node] = set()
    for node in graph.nodes:
        if node.op != "call_function" or is_held(node):
            continue
        inputs = node.all_input_nodes
        if _is_sum(node) or (_is_exact(node) and not rounded.isdisjoint(inputs)):
            rounded.add(node)
        among = rounded if _is_extreme(node) else extremes if _keeps(node) else set()
        if not among.isdisjoint(inputs):
            extremes.add(node)
        if _jumps(node) and not extremes.isdisjoint(inputs):
            _follow(inputs, rounded, found)
    return found


def _follow(nodes: list[Node], rounded: Set[Node], found: EqualitySensitiveSums) -> None:
    """Add the sums nearest above some nodes, and what lies between."""
    todo = list(nodes)
    while todo:
        node = todo.pop()
        if node not in rounded or node in found.made:
            continue
        if _is_sum(node):
            found.sums.add(node)
        else:
            found.made.add(node)
            todo += node.all_input_nodes


def _is_sum(node: Node) -> bool:
    """Whether kernels may differ in it: floats that are not made element by element."""
    value: Any = node.meta.get("val")
    values = value if isinstance(value, tuple | list) else [value]
    floating = any(isinstance(v, Tensor) and v.is_floating_point() for v in values)
    return floating and not _is_exact(node)


def _is_exact(node: Node) -> bool:
    """Whether all kernels make the same bits of the same elements."""
    target: Any = node.target
    if _is_extreme(node) or _keeps(node):
        return True
    return isinstance(target, torch._ops.OpOverload) and torch.Tag.pointwise in target.tags


def _is_extreme(node: Node) -> bool:
    return node.target in _EXTREMES


def _keeps(node: Node) -> bool:
    """Whether a node has an extreme of its input, moved, or its difference to something."""
    target: Any = node.target
    if target is operator.getitem:
        (maker,) = node.all_input_nodes
        both = maker.target is _ATEN.aminmax.default
        return both or (_is_extreme(maker) and bool(node.args[1] == 0))  # the other is where they are
    if not isinstance(target, torch._ops.OpOverload):
        return False
    return target in _KEEP or target in _MOVES or any(result.alias_info for result in target._schema.returns)


def _jumps(node: Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.name in _JUMPS
