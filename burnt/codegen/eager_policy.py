"""Where torch's own kernel serves alone: single calls for which it is known to be faster than generated C.

A function that is nothing but such a call, of a tensor large enough for its speed to matter, and of which no
gradient is wanted, runs as it is. What it takes for that is here and nowhere else; figures are ratios of the
times of torch's kernel and of ours with one thread of a Zen 4. Within larger functions these ops are
lowered like all others, and by `fuse(single=True)` they are always.

Single nodes of a larger function run as torch's call where `why_eager_is_faster` says so. A gradient of
maxima is gathered where it is generated: an element asks every window that it is in whether it is the
largest. torch scatters: it adds one number for each window to zeros. It has the fewer steps, and they are
slower only than those of vectors, which windows of few elements in long rows are made of: 2 x 2 and 3 x 3 in
rows of 192 are 1.1 to 5 times as fast gathered, 5 x 5, or rows of 56, 0.3 to 0.8 times.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import Node

from burnt.codegen.frontend.trace import Traced, trace_composite_calls
from burnt.codegen.lower.pooling import POOLING_OPS, AdaptiveWindows, UniformWindows, pooling_windows

__all__ = ["EagerCalls", "eager_calls", "why_eager_is_faster"]

_MOST_NODES = 40  # of a graph in which any of these ops is taken apart
# Of windows whose gradient is gathered: elements of an axis, steps between them, and elements of a row.
_MOST_TAPS, _MOST_STEPS, _ROW = 3, 2, 192
# Elements of an axis of windows of uneven sizes: of more, means are at most as fast as torch's.
_MOST_UNEVEN = 16
_LARGE = 1 << 16  # elements: of fewer, torch's call takes less than some tens of microseconds


class EagerCalls(NamedTuple):
    """A function that torch's own kernels serve.

    Args:
        calls: the names of torch's ops.
        bytes: of memory that goes in and out, each tensor counted once.
        why: no generated kernel does.
    """

    calls: tuple[str, ...]
    bytes: int
    why: str


def eager_calls(fn: Callable[..., Any], args: Sequence[Any], traced: Traced) -> EagerCalls | None:
    """What serves a function on a CPU in place of kernels, or None.

    Args:
        fn: the function.
        args: its arguments.
        traced: its trace for these.
    """
    given = [n.meta["val"] for n in traced.graph.graph.nodes if n.op in ("placeholder", "get_attr")]
    given = [t for t in given if isinstance(t, Tensor)]
    large = any(t.numel() >= _LARGE for t in given)
    if not large or len(traced.graph.graph.nodes) > _MOST_NODES or traced.mutated:
        return None
    graph = trace_composite_calls(fn, args, traced).graph
    nodes = [
        n for n in graph.nodes if n.op == "call_function" and isinstance(n.target, torch._ops.OpOverload)
    ]
    names = tuple(str(n.target) for n in nodes)
    rule = _RULES.get(tuple(name.split(".")[1] for name in names))
    x = nodes[0].args[0].meta["val"] if rule is not None else None
    if rule is None or x is None or x.numel() < _LARGE or not x.is_contiguous():
        return None
    why = rule(nodes[0], x)
    made = [n.meta["val"] for n in graph.find_nodes(op="output")[0].all_input_nodes]
    moved = sum(t.numel() * t.dtype.itemsize for t in (*given, *made))
    return None if why is None else EagerCalls(names, moved, why)


def _row(node: Node, x: Tensor) -> int:
    """The length of the rows that an op goes along where these are the last axis; 0 where they are not."""
    axes = node.args[1] if len(node.args) > 1 else None
    axes = axes if isinstance(axes, list | tuple) else [axes]
    return x.shape[-1] if list(axes) in ([-1], [x.dim() - 1]) else 0


def _log_softmax(node: Node, x: Tensor) -> str | None:
    # 0.3 to 0.9 for rows of 32 to 255; 1.1 and more for rows of 10 and of 1000.
    if 16 <= _row(node, x) < 256:
        return "it was measured to be faster along short rows"
    return None


def _softmax(node: Node, x: Tensor) -> str | None:
    # 0.8 to 0.95; with float32 1 and more for longer rows.
    row = _row(node, x)
    if row >= 64 and (x.dtype.itemsize == 2 or row < 256):
        return "it was measured to be faster along such rows"
    return None


def _layer_norm(node: Node, x: Tensor) -> str | None:
    # 0.7 to 1.1 without weights; 1.6 for rows of 32.
    if x.dtype == torch.float16 and list(node.args[1]) == [x.shape[-1]] and x.shape[-1] >= 64:  # type: ignore[arg-type]
        return "it was measured to be faster for float16"
    return None


def _sum(node: Node, x: Tensor) -> str | None:
    # 0.7 to 0.9; 0.5 for float16.
    row = _row(node, x)
    if row < 16:
        return None
    if x.dtype == torch.float16:
        return "it was measured to be faster for float16"
    return "it was measured to be faster along short rows" if row < 512 else None


def _mean(node: Node, x: Tensor) -> str | None:
    # Of 16-bit floats it takes torch two passes: ours are 1.5 to 2.5 times as fast from rows of 64 on.
    return _sum(node, x) if x.dtype.itemsize > 2 or _row(node, x) < 64 else None


def _running(node: Node, x: Tensor) -> str | None:
    # 0.5 to 1.1; 1.3 to 2.5 for float16, 4 to 13 along the first axis.
    if _row(node, x) and x.dtype != torch.float16:
        return "it was measured to be faster along rows"
    return None


def _gelu(node: Node, x: Tensor) -> str | None:
    # 0.6 to 0.7.
    approximate = node.kwargs.get("approximate", "none")
    if x.dtype == torch.bfloat16 and approximate == "none":
        return "it was measured to be faster for bfloat16"
    return None


_Rule = Callable[[Node, Tensor], str | None]
_RULES: dict[tuple[str, ...], _Rule] = {
    ("_log_softmax",): _log_softmax,
    ("_log_softmax", "nll_loss_forward"): _log_softmax,
    ("_softmax",): _softmax,
    ("native_layer_norm",): _layer_norm,
    ("sum",): _sum,
    ("mean",): _mean,
    ("cummax",): _running,
    ("cummin",): _running,
    ("gelu",): _gelu,
}


def why_eager_is_faster(node: torch.fx.Node) -> str | None:
    """Why a node is better torch's own call on a CPU, or None."""
    pool = POOLING_OPS.get(node.target)
    if pool is None:
        for_shape = node.target is torch.ops.aten.empty_strided.default and all(
            u.target in POOLING_OPS for u in node.users
        )
        return "nothing reads it" if for_shape else None
    windows = pooling_windows(node)
    uneven = [w for w in windows if isinstance(w, AdaptiveWindows)]
    if pool.is_max and pool.is_backward:
        *_, last = windows
        even = [w for w in windows if isinstance(w, UniformWindows)]
        few = all(w.taps <= _MOST_TAPS and w.stride <= _MOST_STEPS and w.dilation == 1 for w in even)
        return None if few and not uneven and last.size >= _ROW else "it scatters where we would gather"
    places = pool.is_max and any(u.target is operator.getitem and u.args[1] == 1 for u in node.users)
    if uneven and (pool.is_backward or places):
        return "windows of uneven sizes make no vectors"
    if any(w.taps > _MOST_UNEVEN for w in uneven) and not pool.is_max:
        return "windows of uneven sizes make no vectors"
    return None
