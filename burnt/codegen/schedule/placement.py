"""Placement: which computed values a plan stores in memory, apart from those that it has to.

Kernels compute elementwise values where they are read, and calls of torch's ops stand between kernels. Each
call ends a segment of the plan: what is read on both sides of it is either stored before, or computed again.
A rule says which nodes' values are stored where they are computed; kernels of later segments load them, and
views of them are free. `RULES` lists the rules; each takes the `Segments` of a graph and yields nodes that
`Segments.may_store` allows.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

import torch
from torch.fx import Graph, Node

from burnt.codegen.frontend.trace import is_random, skip_views
from burnt.codegen.lower import LOWERINGS

RESHAPE_OPS = (
    torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default, torch.ops.aten.unsqueeze.default,
    torch.ops.aten.squeeze.default, torch.ops.aten.squeeze.dim, torch.ops.aten.squeeze.dims,
)  # fmt: skip
PERMUTE_OPS = torch.ops.aten.t.default, torch.ops.aten.transpose.int, torch.ops.aten.permute.default
_SUBVIEW_OPS = torch.ops.aten.select.int, torch.ops.aten.slice.Tensor, torch.ops.aten.expand.default
VIEW_OPS = (*RESHAPE_OPS, *PERMUTE_OPS, *_SUBVIEW_OPS)
ALIAS_OPS = torch.ops.aten.alias.default, torch.ops.aten.detach.default

_EXPENSIVE_OPS = frozenset(
    getattr(torch.ops.aten, name).default
    for name in ("sin", "cos", "tan", "tanh", "exp", "expm1", "log", "log1p", "erf", "sigmoid")
)
_SMALL_RATIO, _MIN_ELEMENTS = 8, 1 << 15  # values that so many more elements read, of so large tensors
_MIN_BYTES = 1 << 14  # loading less again takes no time


class Segments:
    """A graph with the segment that each node is in: the number of calls before it."""

    def __init__(self, graph: Graph, is_call: Callable[[Node], bool]) -> None:
        self.nodes = list(graph.nodes)
        self.results = [skip_reshapes(n) for n in graph.output_node().all_input_nodes]
        self.calls = [n for n in self.nodes if n.op == "call_function" and is_call(n)]
        self.segment: dict[Node, int] = {}
        ends = set(self.calls)
        for node in self.nodes:
            self.segment[node] = len(self.calls) - len(ends)
            ends.discard(node)

    def may_store(self, node: Node) -> bool:
        """Whether a kernel computes a node's value, which then has memory of its own."""
        value = node.meta.get("val")
        return (
            node.op == "call_function"
            and node.target in LOWERINGS
            and node.target not in ALIAS_OPS
            and skip_views(node) is node
            and node not in self.calls
            and not (node.target is operator.getitem and node.args[0] in self.calls)
            and isinstance(value, torch.Tensor)
            and not is_random(node)
            and is_dense(value)
        )


def skip_reshapes(node: Node, views: Collection[Any] = RESHAPE_OPS) -> Node:
    """Return the node that a node is a reshape of, or another of `views`, or an alias."""
    while node.target in ALIAS_OPS or node.target in views:
        node = node.all_input_nodes[0]
    return node


def is_dense(value: torch.Tensor) -> bool:
    """Whether a tensor's elements fill its memory, each once."""
    size = 1
    for extent, stride in sorted(zip(value.shape, value.stride(), strict=True), key=lambda axis: axis[1]):
        if extent > 1 and stride != size:
            return False
        size *= extent
    return size > 0


def operands_of_calls(segments: Segments) -> Iterator[Node]:
    """What calls read, themselves or through views: stored once, in its own layout."""
    read: dict[Node, dict[Node, int]] = {}  # by value, the sizes of the views of it that calls read
    for call in segments.calls:
        for view in call.all_input_nodes:
            node = skip_reshapes(view, VIEW_OPS)
            if segments.may_store(node):
                read.setdefault(node, {})[view] = view.meta["val"].numel()
    for node, views in read.items():
        if sum(views.values()) >= node.meta["val"].numel():  # all of it, not some small part
            yield node


def results_of_segments(segments: Segments) -> Iterator[Node]:
    """Results: stored while what they are computed from is in the caches, and read by later segments."""
    yield from filter(segments.may_store, segments.results)


def recomputed_values(segments: Segments) -> Iterator[Node]:
    """What several segments would compute again from more bytes than storing and loading it moves."""
    stored = {*operands_of_calls(segments), *results_of_segments(segments)}
    sources: dict[Node, dict[Node, int]] = {}  # what a kernel loads to compute a node, with the bytes
    for node in segments.nodes:
        sources[node] = {}
        for read in node.all_input_nodes:
            is_loaded = read in stored or read in segments.calls or read.op in ("placeholder", "get_attr")
            sources[node] |= {read: _num_bytes(read)} if is_loaded else sources[read]
    computed_in: dict[Node, set[int]] = {}
    for node in reversed(segments.nodes):  # from the last one on, as what is stored hides what it reads
        found: set[int] = set()
        for user in node.users:
            is_read = user in stored or user in segments.calls or user.op == "output"
            found |= {segments.segment[user]} if is_read else computed_in[user]
        computed_in[node] = found
        times, num_bytes = max(len(found) - 1, 0), _num_bytes(node)
        num_read = sum(sources[node].values())
        is_less = num_bytes * (1 + times) <= num_read * times and num_read >= _MIN_BYTES
        if is_less and segments.may_store(node) and node not in stored:
            stored.add(node)
            yield node


def broadcast_values(segments: Segments) -> Iterator[Node]:
    """Small values with an expensive op that large ones read, such as a rotation's sines: computed once."""
    expensive: dict[Node, int] = {}  # with their number of elements
    reduced: set[Node] = set()  # what a norm computes of its statistics stays in its kernel
    for node in segments.nodes:
        value = node.meta.get("val")
        if node.op != "call_function" or not isinstance(value, torch.Tensor) or node in segments.calls:
            continue
        read = [known for known in node.all_input_nodes if known in expensive]
        for known in read:
            base = skip_reshapes(known, VIEW_OPS)
            if max(_MIN_ELEMENTS, _SMALL_RATIO * expensive[known]) <= value.numel() and segments.may_store(
                base
            ):
                yield base
                read.remove(known)
        if _reduces(node) or not reduced.isdisjoint(node.all_input_nodes):
            reduced.add(node)
        elif read or node.target in _EXPENSIVE_OPS:
            expensive[node] = value.numel()


def _reduces(node: Node) -> bool:
    values = [n.meta.get("val") for n in (node, *node.all_input_nodes)]
    sizes = [v.numel() for v in values if isinstance(v, torch.Tensor)]
    return max(sizes) > sizes[0]


def _num_bytes(node: Node) -> int:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return 0
    sizes = zip(value.shape, value.stride(), strict=True)
    return math.prod(size for size, stride in sizes if stride) * value.dtype.itemsize


RULES: tuple[Callable[[Segments], Iterable[Node]], ...] = (
    operands_of_calls,
    results_of_segments,
    recomputed_values,
    broadcast_values,
)


def stored_nodes(graph: Graph, is_call: Callable[[Node], bool]) -> set[Node]:
    """Return the nodes whose values are stored where they are computed; none without a call."""
    segments = Segments(graph, is_call)
    last = len(segments.calls)
    found = {node for rule in RULES for node in rule(segments)} if last else set()
    return {node for node in found if segments.segment[node] < last}
