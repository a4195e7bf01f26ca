"""What kernels may round differently, and where that would show.

A sum depends on the order of its terms, which is the choice of a kernel: two kernels that compute the same
sum may differ in its last bit. Of what is made of it that is a difference in the last bits, too, with one
exception: an extreme is compared with the values it was found among, in its gradient and in users' code
(``s == s.amax()``), and would equal none of another kernel's. Such values are computed once and read from
memory.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Set
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import Graph, Node

__all__ = ["Roundings", "computed_once", "roundings"]

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
# Ops whose result jumps where two values, or a difference and 0, are equal.
_JUMPING = "eq", "ne", "lt", "le", "gt", "ge", "sign", "sgn", "heaviside", "logical_not", "floor", "ceil"
_JUMPS = frozenset(f"aten::{name}" for name in _JUMPING)


class Roundings(NamedTuple):
    """Nodes of a graph.

    Args:
        values: sums and what is made of them element by element.
        extremes: of such values, and what is made of these element by element.
    """

    values: set[Node]
    extremes: set[Node]


def roundings(
    graph: Graph, is_held: Callable[[Node, Set[Node]], bool] = lambda node, extremes: False
) -> Roundings:
    """The values that depend on an order of terms.

    Args:
        graph: of a trace.
        is_held: whether all kernels read one result of a node, given the extremes found so far.
    """
    found = Roundings(set(), set())
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        exact, inputs = _is_exact(node), node.all_input_nodes
        among = found.values if node.target in _EXTREMES else found.extremes
        if exact and not among.isdisjoint(inputs):
            found.extremes.add(node)
        depends = not found.values.isdisjoint(inputs) if exact else _is_floating(node)
        if depends and not is_held(node, found.extremes):
            found.values.add(node)
    return found


def computed_once(graph: Graph) -> set[Node]:
    """The sums that must not be computed by one kernel for an extreme and by another for its comparison.

    Results of the graph count as compared: whoever has two of them may do so.
    """
    extremes = roundings(graph).extremes
    if not extremes:
        return set()
    found: set[Node] = set()
    results: list[Node] = []
    for node in graph.nodes:
        if node.op == "output":
            results = [n for n in node.args[0] if isinstance(n, Node)]
        elif _jumps(node) and not extremes.isdisjoint(node.all_input_nodes):
            found |= _sums(node.all_input_nodes)
    for result in extremes.intersection(results):
        found |= _sums([result]) & _sums(n for n in results if n is not result)
    return found


def _sums(nodes: Iterable[Node]) -> set[Node]:
    """The sums nearest above some nodes, with nothing but exact ops between."""
    todo, seen, found = list(nodes), set(), set()
    while todo:
        node = todo.pop()
        if node in seen or node.op != "call_function":
            continue
        seen.add(node)
        if _is_exact(node):
            todo += node.all_input_nodes
        elif _is_floating(node):
            found.add(node)
    return found


def _is_exact(node: Node) -> bool:
    """Whether every kernel makes the same bits of the same elements: they are not summed in some order."""
    target: Any = node.target
    if target is operator.getitem:
        (maker,) = node.all_input_nodes
        if maker.target is _ATEN.aminmax.default:
            return True
        return maker.target in _EXTREMES and bool(node.args[1] == 0)  # the other is where they are
    if not isinstance(target, torch._ops.OpOverload):
        return False
    is_view = any(result.alias_info for result in target._schema.returns)
    return is_view or target in _EXTREMES or target in _MOVES or torch.Tag.pointwise in target.tags


def _is_floating(node: Node) -> bool:
    value: Any = node.meta.get("val")
    values = value if isinstance(value, tuple | list) else [value]
    return any(isinstance(v, Tensor) and v.is_floating_point() for v in values)


def _jumps(node: Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.name in _JUMPS
