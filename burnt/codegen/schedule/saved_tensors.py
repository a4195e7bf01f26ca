"""Select the tensors that a forward saves for its backward; the backward recomputes everything else.

A derived backward begins with a copy of the forward's ops. Nodes that compute the same value in both graphs
are found by value numbering. Two kinds of nodes are saved: small results of reductions, such as the
statistics of a norm, which would otherwise read their large inputs again, and outputs of torch's own calls.
The forward's own results exist anyway: the backward reuses those that torch's backward would also save, such
as softmax's, if it does not read more large tensors that way.

A maximum is not saved if the values that it was found among are recomputed, because the backward compares
them with it for equality, and recomputed sums may be rounded differently
(`burnt.codegen.schedule.rounding_hazards`).

Inputs that the backward does not read are not saved, so that they may be changed in place before it, as in
``x.add_(f(x))``. Those that only second derivatives read are saved, but may be changed as well: without
second derivatives that is not an error.
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

_SMALL_RATIO = 8  # a reduction's result is saved if it is this many times smaller than the largest input
_REDUCTIONS = frozenset((
    "sum", "mean", "amax", "amin", "max", "min", "prod", "any", "all", "argmax", "argmin", "var", "var_mean",
    "std", "std_mean",
))  # fmt: skip
# Ops whose result torch saves for backward: users know that they must not change it in place before that.
_SAVED_BY_TORCH = frozenset(
    getattr(torch.ops.aten, name).default
    for name in (
        "_softmax", "_log_softmax", "exp", "exp2", "expm1", "relu", "tan", "tanh", "sigmoid", "sqrt", "rsqrt",
        "reciprocal",
    )
)  # fmt: skip
_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
_ALIAS_OPS = [torch.ops.aten.alias.default, torch.ops.aten.detach.default]


class SavedTensors(NamedTuple):
    """What a forward saves for its backward."""

    nodes: list[Node]  # nodes of the forward's graph whose values it returns after the function's own results
    # Positions of the function's own results that the backward takes too, after `nodes`.
    reused_results: list[int]
    # Positions of the forward's tensors (captured ones last) that no derivative reads.
    unread: frozenset[int] = frozenset()
    # Positions of those that second derivatives read, but not the backward: it takes results.
    deferred: tuple[int, ...] = ()

    def all_nodes(self, forward: Traced) -> list[Node]:
        """Return the nodes of both kinds, in the order in which the backward takes their values."""
        results = _results(forward)
        return [*self.nodes, *(_skip_aliases(results[i]) for i in self.reused_results)]


def select_saved_tensors(
    forward: Traced, backward: Traced, why_torch_call: Callable[[Node], str | None] = lambda node: None
) -> SavedTensors:
    """Return the values of a forward's graph that are cheaper to save than to recompute in the backward.

    `backward` is the trace of a function of the cotangents, the forward's tensors (captured ones last) and
    its numbers. Nodes for the indices of max pooling may be added to the forward.
    """
    every_input = set(range(_num_tensors(forward)))
    unread = every_input - _read_tensors(forward, backward, {}, set())
    if any(map(is_random, forward.graph.graph.nodes)):
        # Equal random ops in the two graphs do not have equal results.
        return SavedTensors([], [], frozenset(unread))
    pool_indices = _find_pool_indices(forward, backward, why_torch_call)
    counterparts = _match_nodes(forward, backward)
    inputs = [n.meta["val"].numel() for n in forward.graph.graph.nodes if n.op == "placeholder"]
    max_numel = max(inputs, default=0) // _SMALL_RATIO
    results = {_skip_aliases(n) for n in _results(forward) if isinstance(n, Node)}
    reduced: set[Node] = set()
    for node in forward.graph.graph.nodes:
        name = getattr(node.target, "_schema", None) and node.target._schema.name.removeprefix("aten::")
        if name in _REDUCTIONS or any(n in reduced for n in node.all_input_nodes):
            reduced.add(node)

    def is_eager_or_indices(node: Node) -> bool:
        return node in pool_indices or node.target not in LOWERINGS

    def is_saved(node: Node) -> bool:
        value = node.meta.get("val")
        if node.op != "call_function" or not isinstance(value, Tensor) or node in results:
            return False
        if node.target not in LOWERINGS and not _is_dense(value):
            return False
        return is_eager_or_indices(node) or (node in reduced and value.numel() <= max_numel)

    sensitive = find_equality_sensitive_sums(
        backward.graph.graph, lambda node: node in counterparts and is_eager_or_indices(counterparts[node])
    )
    recomputed = {counterparts[node] for node in sensitive.sums | sensitive.derived if node in counterparts}
    selected = {counterpart for counterpart in counterparts.values() if is_saved(counterpart)} - recomputed
    reused = _select_reused_results(forward, backward, counterparts, selected, pool_indices, max_numel)
    available = selected | {_skip_aliases(_results(forward)[i]) for i in reused}
    needed: dict[Node, None] = {}
    for node in _remaining_nodes(backward, counterparts, available):
        needed |= {counterparts[n]: None for n in node.all_input_nodes if counterparts.get(n) in selected}
    order = {node: i for i, node in enumerate(forward.graph.graph.nodes)}
    read = _read_tensors(forward, backward, counterparts, available)
    deferred = tuple(sorted(every_input - unread - read))
    return SavedTensors(sorted(needed, key=order.__getitem__), reused, frozenset(unread), deferred)


def _num_tensors(forward: Traced) -> int:
    return len([n for n in forward.graph.graph.nodes if n.op == "placeholder"]) + len(forward.captured)


def _read_tensors(
    forward: Traced, backward: Traced, counterparts: dict[Node, Node], available: Set[Node]
) -> set[int]:
    """Return the positions of the forward's tensors that the backward reads if it takes `available`."""
    placeholders = [n for n in backward.graph.graph.nodes if n.op == "placeholder"]
    tensors = placeholders[len(placeholders) - _num_tensors(forward) :]
    found = set(_remaining_nodes(backward, counterparts, available, shape_only=True))
    return {i for i, node in enumerate(tensors) if node in found}


def _is_dense(value: Tensor) -> bool:
    last = _CHANNELS_LAST.get(value.dim(), torch.contiguous_format)
    return value.is_contiguous() or value.is_contiguous(memory_format=last)


def _find_pool_indices(
    forward: Traced, backward: Traced, why_torch_call: Callable[[Node], str | None]
) -> set[Node]:
    """Return the forward's nodes for the indices of max pooling that the backward reads; add missing ones.

    If a generated kernel computes the gradient, an added node holds the position within the window instead.
    """
    found: set[Node] = set()
    counterparts = _match_nodes(forward, backward)
    for node in backward.graph.graph.nodes:
        pool = POOLING_OPS.get(node.target)
        if pool is None or not (pool.is_max and pool.is_backward):
            continue
        producers = _skip_aliases(node.args[-1]).all_input_nodes
        counterpart = counterparts.get(producers[0]) if producers else None
        if counterpart is None:
            continue
        known = [user for user in counterpart.users if user.target is operator.getitem and user.args[1] == 1]
        if not known:
            if why_torch_call(node) is None and can_return_taps(counterpart):
                maxima, indices = counterpart.meta["val"]
                counterpart.meta["val"] = maxima, indices.to(TAP_DTYPE)
            with forward.graph.graph.inserting_after(counterpart):
                known = [forward.graph.graph.call_function(operator.getitem, (counterpart, 1))]
            known[0].meta["val"] = counterpart.meta["val"][1]
        counterpart.meta["needs_indices"] = True
        found.update(known)
    return found


def _select_reused_results(
    forward: Traced,
    backward: Traced,
    counterparts: dict[Node, Node],
    saved: set[Node],
    pool_indices: set[Node],
    max_numel: int,
) -> list[int]:
    """Return the positions of results that the backward reuses without reading more large tensors."""
    found: list[int] = []
    (output,) = (n for n in forward.composite_graph.graph.nodes if n.op == "output")
    producing_ops = [n.target if isinstance(n, Node) else None for n in output.args[0]]

    def num_large_reads(available: set[Node]) -> int:
        nodes = _remaining_nodes(backward, counterparts, available)
        large = {n for n in nodes if n.op == "placeholder" and n.meta["val"].numel() > max_numel}
        given = {
            counterparts[i]
            for n in nodes
            for i in n.all_input_nodes
            if counterparts.get(i) in available - saved
        }
        return len(large) + len(given)

    for i, (result, layout) in enumerate(zip(_results(forward), forward.results, strict=False)):
        if layout is None or not isinstance(result, Node):
            continue
        node = _skip_aliases(result)
        if producing_ops[i] not in _SAVED_BY_TORCH and node not in pool_indices:
            continue
        known = {_skip_aliases(_results(forward)[k]) for k in found} | saved
        if node.op != "call_function" or tuple(node.meta["val"].stride()) != layout.strides or node in known:
            continue
        if node in counterparts.values() and num_large_reads(known | {node}) <= num_large_reads(known):
            found.append(i)
    return found


def _remaining_nodes(
    backward: Traced, counterparts: dict[Node, Node], available: Set[Node], *, shape_only: bool = False
) -> list[Node]:
    """Return the nodes that the backward still computes if it takes the values of the `available` nodes.

    With `shape_only`, also those of which it needs only the shape.
    """
    found: dict[Node, None] = {}
    todo = [n for n in _results(backward) if isinstance(n, Node)]
    while todo:
        node = todo.pop()
        if node not in found and counterparts.get(node) not in available:
            found[node] = None
            inputs = node.all_input_nodes
            todo += inputs if shape_only else [n for n in inputs if n is not _shape_only_argument(node)]
    return list(found)


def _shape_only_argument(node: Node) -> Node | None:
    """Return the argument of a pooling gradient of which only the shape matters; None for other nodes."""
    pool = POOLING_OPS.get(node.target)
    return cast("Node", node.args[1]) if pool is not None and pool.is_backward else None


def _results(traced: Traced) -> list[Any]:
    (output,) = (n for n in traced.graph.graph.nodes if n.op == "output")
    return cast("list[Any]", output.args[0])


def with_saved_outputs(forward: Traced, saved: Sequence[Node]) -> Traced:
    """Add nodes to the trace's results, after its own. The trace is changed in place."""
    (output,) = (n for n in forward.graph.graph.nodes if n.op == "output")
    output.args = ([*output.args[0], *saved],)
    forward.graph.recompile()
    return forward


def with_saved_inputs(
    backward: Traced,
    forward: Traced,
    saved: Sequence[Node],
    why_torch_call: Callable[[Node], str | None] = lambda node: None,
) -> Traced:
    """Return the backward with the saved values as inputs, after its other tensors."""
    counterparts = _match_nodes(forward, backward)
    graph = backward.graph.graph
    *_, last = (n for n in graph.nodes if n.op == "placeholder")
    for i, counterpart in enumerate(saved):
        with graph.inserting_after(last):
            last = graph.placeholder(f"saved_{i}")
            last.meta["val"] = counterpart.meta["val"]
        for node, other in counterparts.items():
            if other is counterpart:
                node.replace_all_uses_with(last)
    for node in list(graph.nodes):
        shape_only = _shape_only_argument(node)
        if shape_only is not None and shape_only.op == "call_function" and why_torch_call(node) is not None:
            _pass_uninitialized(node, 1)  # torch's op takes a tensor here but only reads its shape
    graph.eliminate_dead_code()
    backward.graph.recompile()
    left = [str(n.target) for n in graph.nodes if n.op == "get_attr"]
    return dataclasses.replace(backward, captured=tuple(dict.fromkeys(left)))


def forget_dropped_values(backward: Traced) -> Traced:
    """Let a backward that repeats a dropout only for its mask not read the tensor that was dropped out.

    The trace is changed in place.
    """
    graph = backward.graph.graph
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.native_dropout.default):
        if all(user.target is operator.getitem and user.args[1] == 1 for user in node.users):
            _pass_uninitialized(node, 0)
    graph.eliminate_dead_code()
    backward.graph.recompile()
    return backward


def _pass_uninitialized(node: Node, position: int) -> None:
    """Replace an argument by an uninitialized tensor of the same layout."""
    value = cast("Node", node.args[position]).meta["val"]
    layout = list(value.shape), list(value.stride())
    with node.graph.inserting_before(node):
        empty = node.graph.call_function(
            torch.ops.aten.empty_strided.default, layout, {"dtype": value.dtype, "device": value.device}
        )
    empty.meta["val"] = value
    node.update_arg(position, empty)


def _skip_aliases(node: Node) -> Node:
    while node.target in _ALIAS_OPS:
        node = node.all_input_nodes[0]
    return node


def _match_nodes(forward: Traced, backward: Traced) -> dict[Node, Node]:
    """Return, for each backward node with an equal expression in the forward, the forward's node."""
    known: dict[Any, int] = {}
    ours, theirs = forward.graph.graph.nodes, backward.graph.graph.nodes
    held = {id(getattr(forward.graph, name)): i for i, name in enumerate(forward.captured)}
    tensors = sum(n.op == "placeholder" for n in ours)
    given = sum(n.op == "placeholder" for n in theirs)
    first = given - tensors - len(held)
    positions = sorted(forward.stand_in_positions.values())
    numbers = {value: positions.index(p) for value, p in forward.stand_in_positions.items()}
    of_forward = _number_expressions(forward, known, numbers, held, tensors, 0)
    numbers = {value: p - given for value, p in backward.stand_in_positions.items()}
    of_backward = _number_expressions(backward, known, numbers, {}, tensors, first)
    back = {number: node for node, number in reversed(of_forward.items())}
    return {node: back[number] for node, number in of_backward.items() if number in back}


def _number_expressions(
    traced: Traced,
    known: dict[Any, int],
    numbers: dict[float, int],
    held: dict[int, int],
    tensors: int,
    first: int,
) -> dict[Node, int]:
    """Return a value number for each node: equal expressions have equal numbers, which `known` collects.

    `numbers` has the position of the run-time number that a float stands for, `held` the captured tensors, by
    id, that are inputs of the other trace. The forward has `tensors` tensor arguments, from placeholder
    `first` on.
    """
    found: dict[Node, int] = {}
    position = -first

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
            key: Any = ("tensor", position)
            position += 1
        elif node.op == "get_attr":
            tensor = getattr(traced.graph, str(node.target))
            key = ("tensor", tensors + held[id(tensor)]) if id(tensor) in held else ("constant", id(tensor))
        elif node.op != "call_function":
            continue
        elif node.target in _ALIAS_OPS:
            found[node] = found[node.all_input_nodes[0]]
            continue
        else:
            key = (node.target, argument(node.args), argument(node.kwargs))
        found[node] = known.setdefault(key, len(known))
    return found
