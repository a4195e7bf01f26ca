"""Find sums that are later compared for equality; they must be computed only once.

The result of a sum depends on the order of its terms, which each kernel chooses: two kernels that compute the
same sum may differ in its last bit. That is harmless, with one exception: a maximum or minimum is compared
with the values that it was found among, by its gradient and by users' code (``s == s.amax()``). If these
values were recomputed by another kernel, none might be equal. Such sums are stored in memory.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Set
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import Graph, Node

_ATEN = torch.ops.aten
_EXTREME_OPS = frozenset(
    (
        _ATEN.amax.default, _ATEN.amin.default, _ATEN.max.default, _ATEN.min.default,
        _ATEN.max.dim, _ATEN.min.dim,
    )
)  # fmt: skip
# Ops that copy elements elsewhere without changing them.
_MOVE_OPS = frozenset(
    (
        _ATEN._to_copy.default, _ATEN.cat.default, _ATEN.constant_pad_nd.default, _ATEN.flip.default,
        _ATEN.roll.default, _ATEN.gather.default, _ATEN.index_select.default, _ATEN.index.Tensor,
    )
)  # fmt: skip
# Ops whose result may be compared in place of a maximum: its negation, or its difference to a value.
_EXTREME_PRESERVING_OPS = frozenset(
    (_ATEN.neg.default, _ATEN.abs.default, _ATEN.sub.Tensor, _ATEN.rsub.Scalar, _ATEN.clone.default)
)
# Ops whose result is discontinuous where two values are equal, or where a difference is 0.
_DISCONTINUOUS_NAMES = "eq", "ne", "lt", "le", "gt", "ge", "sign", "sgn", "heaviside", "logical_not"
_DISCONTINUOUS_OPS = frozenset(f"aten::{name}" for name in _DISCONTINUOUS_NAMES)


class EqualitySensitiveSums(NamedTuple):
    """Nodes of a graph."""

    sums: set[Node]  # sums that are compared with their own maximum or minimum
    derived: set[Node]  # nodes between these sums and the comparison: elementwise ops, the maxima and minima


def find_equality_sensitive_sums(
    graph: Graph, is_in_memory: Callable[[Node], bool] = lambda node: False
) -> EqualitySensitiveSums:
    """Return the sums that must be bitwise equal wherever they are read, and what is computed from them."""
    found = EqualitySensitiveSums(set(), set())
    order_sensitive: set[Node] = set()  # sums, and elementwise results of sums
    extremes: set[Node] = set()
    for node in graph.nodes:
        if node.op != "call_function" or is_in_memory(node):
            continue
        inputs = node.all_input_nodes
        if _is_order_sensitive(node) or (_is_exact(node) and not order_sensitive.isdisjoint(inputs)):
            order_sensitive.add(node)
        sources = order_sensitive if _is_extreme(node) else extremes if _preserves_extreme(node) else set()
        if not sources.isdisjoint(inputs):
            extremes.add(node)
        if _is_discontinuous(node) and not extremes.isdisjoint(inputs):
            _collect_sums(inputs, order_sensitive, found)
    return found


def _collect_sums(nodes: list[Node], order_sensitive: Set[Node], found: EqualitySensitiveSums) -> None:
    """Add the nearest sums that some nodes are computed from, and the nodes between."""
    todo = list(nodes)
    while todo:
        node = todo.pop()
        if node not in order_sensitive or node in found.derived:
            continue
        if _is_order_sensitive(node):
            found.sums.add(node)
        else:
            found.derived.add(node)
            todo += node.all_input_nodes


def _is_order_sensitive(node: Node) -> bool:
    """Whether two kernels may compute different bits: floats, unless the op is exact."""
    value: Any = node.meta.get("val")
    values = value if isinstance(value, tuple | list) else [value]
    floating = any(isinstance(v, Tensor) and v.is_floating_point() for v in values)
    return floating and not _is_exact(node)


def _is_exact(node: Node) -> bool:
    """Whether all kernels compute the same bits from the same inputs."""
    target: Any = node.target
    if _is_extreme(node) or _preserves_extreme(node):
        return True
    return isinstance(target, torch._ops.OpOverload) and torch.Tag.pointwise in target.tags


def _is_extreme(node: Node) -> bool:
    return node.target in _EXTREME_OPS


def _preserves_extreme(node: Node) -> bool:
    """Whether a node passes on a maximum of its input: moved, negated, or subtracted from something."""
    target: Any = node.target
    if target is operator.getitem:
        (producer,) = node.all_input_nodes
        return _is_extreme(producer) and bool(node.args[1] == 0)  # 1 is the indices
    if not isinstance(target, torch._ops.OpOverload):
        return False
    return (
        target in _EXTREME_PRESERVING_OPS
        or target in _MOVE_OPS
        or any(result.alias_info for result in target._schema.returns)
    )


def _is_discontinuous(node: Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.name in _DISCONTINUOUS_OPS
