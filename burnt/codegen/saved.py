"""What a backward takes from its forward rather than computing it again.

A derived backward begins with the forward's own ops. Those of its values that the forward has too are found
by giving equal numbers to equal expressions in both graphs. Worth saving are the small results of reductions,
such as the statistics of a norm, whose inputs would be read once more, and results of ops that are torch's
own calls; everything else is recomputed where it is needed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from burnt.codegen.lower import LOWERINGS
from burnt.codegen.trace import Traced, is_random

__all__ = ["returning", "taking", "worth_saving"]

_SMALL = 8  # how many times smaller than the largest input a result is for it to be saved
_REDUCTIONS = frozenset(
    ("sum", "mean", "amax", "amin", "max", "min", "prod", "any", "all", "argmax", "argmin", "var", "var_mean")
)
_NAMES = [torch.ops.aten.alias.default, torch.ops.aten.detach.default]  # of something else


def worth_saving(forward: Traced, backward: Traced) -> list[Node]:
    """The nodes of a forward's graph whose results its backward had better be given.

    Args:
        forward: the trace.
        backward: of a function of cotangents, the forward's tensors (captured ones last) and its numbers.
    """
    if any(map(is_random, forward.graph.graph.nodes)):
        return []  # two draws look alike and are not the same
    twins = _twins(forward, backward)
    inputs = [n.meta["val"].numel() for n in forward.graph.graph.nodes if n.op == "placeholder"]
    most = max(inputs, default=0) // _SMALL
    nodes = list(forward.graph.graph.nodes)
    results = {_named(n) for n in nodes[-1].args[0] if isinstance(n, Node)}
    reduced: set[Node] = set()
    for node in nodes:
        name = getattr(node.target, "_schema", None) and node.target._schema.name.removeprefix("aten::")
        if name in _REDUCTIONS or any(n in reduced for n in node.all_input_nodes):
            reduced.add(node)

    def is_saved(node: Node) -> bool:
        value = node.meta.get("val")
        if node.op != "call_function" or not isinstance(value, Tensor) or node in results:
            return False
        if node.target not in LOWERINGS and not value.is_contiguous():
            return False
        return node.target not in LOWERINGS or (node in reduced and value.numel() <= most)

    wanted = {twin for twin in twins.values() if is_saved(twin)}
    found: dict[Node, None] = {}
    for node in backward.graph.graph.nodes:
        # What only makes other saved values is not needed itself.
        if twins.get(node) not in wanted:
            found |= {twins[n]: None for n in node.all_input_nodes if twins.get(n) in wanted}
    return list(found)


def returning(forward: Traced, saved: Sequence[Node]) -> Traced:
    """The trace with further results, after its own."""
    (output,) = (n for n in forward.graph.graph.nodes if n.op == "output")
    output.args = ([*output.args[0], *saved],)
    forward.graph.recompile()
    return forward


def taking(backward: Traced, forward: Traced, saved: Sequence[Node]) -> Traced:
    """A backward that is given the saved values, after its other tensors."""
    twins = _twins(forward, backward)
    graph = backward.graph.graph
    *_, last = (n for n in graph.nodes if n.op == "placeholder")
    for i, twin in enumerate(saved):
        with graph.inserting_after(last):
            last = graph.placeholder(f"saved_{i}")
            last.meta["val"] = twin.meta["val"]
        for node, other in twins.items():
            if other is twin:
                node.replace_all_uses_with(last)
    graph.eliminate_dead_code()
    backward.graph.recompile()
    left = [str(n.target) for n in graph.nodes if n.op == "get_attr"]
    return dataclasses.replace(backward, captured=tuple(dict.fromkeys(left)))


def _named(node: Node) -> Node:
    while node.target in _NAMES:
        node = node.all_input_nodes[0]
    return node


def _twins(forward: Traced, backward: Traced) -> dict[Node, Node]:
    """Nodes of a backward with those of its forward that compute the same."""
    known: dict[Any, int] = {}
    ours, theirs = forward.graph.graph.nodes, backward.graph.graph.nodes
    held = {id(getattr(forward.graph, name)): i for i, name in enumerate(forward.captured)}
    tensors = sum(n.op == "placeholder" for n in ours)
    given = sum(n.op == "placeholder" for n in theirs)
    first = given - tensors - len(held)
    positions = sorted(forward.numbers.values())
    numbers = {value: positions.index(p) for value, p in forward.numbers.items()}
    of_forward = _numbered(forward, known, numbers, held, tensors, 0)
    numbers = {value: p - given for value, p in backward.numbers.items()}
    of_backward = _numbered(backward, known, numbers, {}, tensors, first)
    back = {number: node for node, number in reversed(of_forward.items())}
    return {node: back[number] for node, number in of_backward.items() if number in back}


def _numbered(
    traced: Traced,
    known: dict[Any, int],
    numbers: dict[float, int],
    held: dict[int, int],
    tensors: int,
    first: int,
) -> dict[Node, int]:
    """A number for each node, the same for the same expression; tensors count from `first` on."""
    found: dict[Node, int] = {}
    place = -first

    def argument(value: Any) -> Any:
        if isinstance(value, Node):
            return ("node", found[value])
        if isinstance(value, float):
            return ("number", numbers[value]) if value in numbers else value.hex()
        if isinstance(value, tuple | list):
            return tuple(map(argument, value))
        if isinstance(value, dict):
            return tuple((k, argument(v)) for k, v in sorted(value.items()))
        return (type(value), value)

    for node in traced.graph.graph.nodes:
        if node.op == "placeholder":
            key: Any = ("tensor", place)
            place += 1
        elif node.op == "get_attr":
            tensor = getattr(traced.graph, str(node.target))
            key = ("tensor", tensors + held[id(tensor)]) if id(tensor) in held else ("constant", id(tensor))
        elif node.op != "call_function":
            continue
        elif node.target in _NAMES:
            found[node] = found[node.all_input_nodes[0]]
            continue
        else:
            key = (node.target, argument(node.args), argument(node.kwargs))
        found[node] = known.setdefault(key, len(known))
    return found
