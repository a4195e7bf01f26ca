"""What a backward takes from its forward rather than computing it again.

A derived backward begins with the forward's own ops. Those of its values that the forward has too are found
by giving equal numbers to equal expressions in both graphs. Worth saving are the small results of reductions,
such as the statistics of a norm, whose inputs would be read once more, and results of ops that are torch's
own calls. Results of the forward itself are there anyway: a backward is lent those that torch's own keeps, as
that of softmax, where it reads no more for that. Everything else is recomputed where it is needed.

An extreme of sums that are recomputed is recomputed with them: a backward looks for the values that equal it,
and `burnt.codegen.schedule.rounding_hazards` says why none might.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Sequence, Set
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.fx import Node

from burnt.codegen.frontend.trace import Traced, is_random
from burnt.codegen.lower import LOWERINGS
from burnt.codegen.lower.pooling import POOLING_OPS, TAP_DTYPE, can_return_taps
from burnt.codegen.schedule.rounding_hazards import find_equality_sensitive_sums

__all__ = ["Saved", "returning", "taking", "worth_saving"]

_SMALL = 8  # how many times smaller than the largest input a result is for it to be saved
_REDUCTIONS = frozenset(
    ("sum", "mean", "amax", "amin", "max", "min", "prod", "any", "all", "argmax", "argmin", "var", "var_mean")
)
# Ops whose result torch keeps for their own backward, so that nobody expects to change it in between.
_KEPT_BY_TORCH = frozenset(
    getattr(torch.ops.aten, name).default
    for name in ("_softmax", "exp", "exp2", "expm1", "relu", "tanh", "sigmoid", "sqrt", "rsqrt")
)
_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
_NAMES = [torch.ops.aten.alias.default, torch.ops.aten.detach.default]  # of something else


class Saved(NamedTuple):
    """What a forward keeps for its backward.

    Args:
        nodes: of its graph, whose values are returned after the function's own results.
        lent: positions of those of its results that the backward is given, too, after these.
    """

    nodes: list[Node]
    lent: list[int]

    def all(self, forward: Traced) -> list[Node]:
        """The nodes of both kinds, in the order in which a backward is given their values."""
        results = _results(forward)
        return [*self.nodes, *(_named(results[i]) for i in self.lent)]


def worth_saving(
    forward: Traced,
    backward: Traced,
    torch_is_best: Callable[[Node], str | None] = lambda node: None,
) -> Saved:
    """The values of a forward's graph that its backward had better be given.

    Args:
        forward: the trace.
        backward: of a function of cotangents, the forward's tensors (captured ones last) and its numbers.
        torch_is_best: the target's.
    """
    if any(map(is_random, forward.graph.graph.nodes)):
        return Saved([], [])  # two draws look alike and are not the same
    places = _places(forward, backward, torch_is_best)
    twins = _twins(forward, backward)
    inputs = [n.meta["val"].numel() for n in forward.graph.graph.nodes if n.op == "placeholder"]
    most = max(inputs, default=0) // _SMALL
    results = {_named(n) for n in _results(forward) if isinstance(n, Node)}
    reduced: set[Node] = set()
    for node in forward.graph.graph.nodes:
        name = getattr(node.target, "_schema", None) and node.target._schema.name.removeprefix("aten::")
        if name in _REDUCTIONS or any(n in reduced for n in node.all_input_nodes):
            reduced.add(node)

    def is_own(node: Node) -> bool:
        return node in places or node.target not in LOWERINGS

    def is_saved(node: Node) -> bool:
        value = node.meta.get("val")
        if node.op != "call_function" or not isinstance(value, Tensor) or node in results:
            return False
        if node.target not in LOWERINGS and not _is_dense(value):
            return False
        return is_own(node) or (node in reduced and value.numel() <= most)

    found_again = find_equality_sensitive_sums(
        backward.graph.graph, lambda node: node in twins and is_own(twins[node])
    )
    repeated = {twins[node] for node in found_again.sums | found_again.made if node in twins}
    wanted = {twin for twin in twins.values() if is_saved(twin)} - repeated
    lent = _lent(forward, backward, twins, wanted, places, most)
    kept = wanted | {_named(_results(forward)[i]) for i in lent}
    found: dict[Node, None] = {}
    for node in _reached(backward, twins, kept):
        found |= {twins[n]: None for n in node.all_input_nodes if twins.get(n) in wanted}
    order = {node: i for i, node in enumerate(forward.graph.graph.nodes)}
    return Saved(sorted(found, key=order.__getitem__), lent)


def _is_dense(value: Tensor) -> bool:
    last = _CHANNELS_LAST.get(value.dim(), torch.contiguous_format)
    return value.is_contiguous() or value.is_contiguous(memory_format=last)


def _places(forward: Traced, backward: Traced, torch_is_best: Callable[[Node], str | None]) -> set[Node]:
    """The nodes for places of maxima in a forward whose backward needs them, added where there are none.

    Added ones are numbers of taps where the gradient is ours to compute.
    """
    found: set[Node] = set()
    twins = _twins(forward, backward)
    for node in backward.graph.graph.nodes:
        pool = POOLING_OPS.get(node.target)
        if pool is None or not (pool.is_max and pool.is_backward):
            continue
        maker = _named(node.args[-1]).all_input_nodes
        twin = twins.get(maker[0]) if maker else None
        if twin is None:
            continue
        known = [user for user in twin.users if user.target is operator.getitem and user.args[1] == 1]
        if not known:
            if torch_is_best(node) is None and can_return_taps(twin):
                maxima, indices = twin.meta["val"]
                twin.meta["val"] = maxima, indices.to(TAP_DTYPE)
            with forward.graph.graph.inserting_after(twin):
                known = [forward.graph.graph.call_function(operator.getitem, (twin, 1))]
            known[0].meta["val"] = twin.meta["val"][1]
        twin.meta["needs_indices"] = True
        found.update(known)
    return found


def _lent(
    forward: Traced,
    backward: Traced,
    twins: dict[Node, Node],
    saved: set[Node],
    places: set[Node],
    small: int,
) -> list[int]:
    """The positions of results that a backward is given: not more large tensors are read for that."""
    found: list[int] = []
    (output,) = (n for n in forward.composite_graph.graph.nodes if n.op == "output")
    makers = [n.target if isinstance(n, Node) else None for n in output.args[0]]

    def read(kept: set[Node]) -> int:
        nodes = _reached(backward, twins, kept)
        large = {n for n in nodes if n.op == "placeholder" and n.meta["val"].numel() > small}
        given = {twins[i] for n in nodes for i in n.all_input_nodes if twins.get(i) in kept - saved}
        return len(large) + len(given)

    for i, (result, fact) in enumerate(zip(_results(forward), forward.results, strict=False)):
        if fact is None or not isinstance(result, Node):
            continue
        node = _named(result)
        if makers[i] not in _KEPT_BY_TORCH and node not in places:
            continue
        known = {_named(_results(forward)[k]) for k in found} | saved
        if node.op != "call_function" or tuple(node.meta["val"].stride()) != fact[0] or node in known:
            continue
        if node in twins.values() and read(known | {node}) <= read(known):
            found.append(i)
    return found


def _reached(backward: Traced, twins: dict[Node, Node], kept: Set[Node]) -> list[Node]:
    """The nodes that a backward still computes where it is given what some of the forward's nodes hold."""
    found: dict[Node, None] = {}
    todo = [n for n in _results(backward) if isinstance(n, Node)]
    while todo:
        node = todo.pop()
        if node not in found and twins.get(node) not in kept:
            found[node] = None
            todo += [n for n in node.all_input_nodes if n is not _shape_alone(node)]
    return list(found)


def _shape_alone(node: Node) -> Node | None:
    """The argument of a gradient of a pool that tells a shape, and is not read."""
    pool = POOLING_OPS.get(node.target)
    return cast("Node", node.args[1]) if pool is not None and pool.is_backward else None


def _results(traced: Traced) -> list[Any]:
    (output,) = (n for n in traced.graph.graph.nodes if n.op == "output")
    return cast("list[Any]", output.args[0])


def returning(forward: Traced, saved: Sequence[Node]) -> Traced:
    """The trace with further results, after its own."""
    (output,) = (n for n in forward.graph.graph.nodes if n.op == "output")
    output.args = ([*output.args[0], *saved],)
    forward.graph.recompile()
    return forward


def taking(
    backward: Traced,
    forward: Traced,
    saved: Sequence[Node],
    torch_is_best: Callable[[Node], str | None] = lambda node: None,
) -> Traced:
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
    for node in list(graph.nodes):
        shown = _shape_alone(node)
        if shown is not None and shown.op == "call_function" and torch_is_best(node) is not None:
            # torch's own call wants a tensor; it need not be computed.
            value = shown.meta["val"]
            like = {"dtype": value.dtype, "device": value.device}
            with graph.inserting_before(node):
                empty = graph.call_function(
                    torch.ops.aten.empty_strided.default, (list(value.shape), list(value.stride())), like
                )
            empty.meta["val"] = value
            node.update_arg(1, empty)
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
