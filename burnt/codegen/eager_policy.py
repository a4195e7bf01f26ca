"""Rules for ops that torch's CPU kernels are known to compute faster than generated C.

A function that consists of one such call runs eagerly if its tensor is large enough for the speed to matter
and no gradient is needed. All conditions are in this file. Figures in the comments are the time of torch's
kernel divided by the time of the generated one, with one thread of a Zen 4. Within larger functions these ops
are lowered like all others; with `fuse(single=True)` they always are.

In a larger function, a single node runs as a torch call where `why_torch_is_faster` says so. The gradient of
max pooling is an example. Generated code gathers: each element checks for every pooling window that contains
it whether it is the maximum. torch scatters: it adds one number for each window to zeros. That takes fewer
steps, which are slower only than vectorized ones, and small windows in long rows are vectorized. In rows of
192, 2 x 2 and 3 x 3 windows are 1.1 to 5 times as fast gathered; 5 x 5 windows, or rows of 56, 0.3 to 0.8
times.
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

_MAX_NODES = 40  # the graph of any of these ops, decomposed, is smaller
# Pooling windows whose gradient is gathered: at most this window size and stride, at least this row length.
_MAX_WINDOW, _MAX_STRIDE, _MIN_ROW = 3, 2, 192
_MAX_ADAPTIVE_WINDOW = 16  # with larger adaptive windows, averages are at most as fast as torch's
_MIN_ELEMENTS = 1 << 16  # of fewer elements, torch's call takes less than some tens of microseconds


class EagerCalls(NamedTuple):
    """The torch calls of a function that runs eagerly because they are faster.

    Args:
        calls: the names of torch's ops.
        bytes: bytes of memory read and written, each tensor counted once.
        why: why no kernel is generated.
    """

    calls: tuple[str, ...]
    bytes: int
    why: str


def eager_calls(fn: Callable[..., Any], args: Sequence[Any], traced: Traced) -> EagerCalls | None:
    """Return the torch calls to run on a CPU instead of generated kernels; None to generate kernels.

    Args:
        fn: the function.
        args: its arguments.
        traced: its trace for these arguments.
    """
    inputs = [n.meta["val"] for n in traced.graph.graph.nodes if n.op in ("placeholder", "get_attr")]
    inputs = [t for t in inputs if isinstance(t, Tensor)]
    is_large = any(t.numel() >= _MIN_ELEMENTS for t in inputs)
    if not is_large or len(traced.graph.graph.nodes) > _MAX_NODES or traced.mutated:
        return None
    graph = trace_composite_calls(fn, args, traced).graph
    nodes = [
        n for n in graph.nodes if n.op == "call_function" and isinstance(n.target, torch._ops.OpOverload)
    ]
    names = tuple(str(n.target) for n in nodes)
    rule = _RULES.get(tuple(name.split(".")[1] for name in names))
    x = nodes[0].args[0].meta["val"] if rule is not None else None
    if rule is None or x is None or x.numel() < _MIN_ELEMENTS or not x.is_contiguous():
        return None
    why = rule(nodes[0], x)
    results = [n.meta["val"] for n in graph.find_nodes(op="output")[0].all_input_nodes]
    num_bytes = sum(t.numel() * t.dtype.itemsize for t in (*inputs, *results))
    return None if why is None else EagerCalls(names, num_bytes, why)


def _row_length(node: Node, x: Tensor) -> int:
    """Return the size of the axis that an op reduces if that is the last one; 0 if it is not."""
    axes = node.args[1] if len(node.args) > 1 else None
    axes = axes if isinstance(axes, list | tuple) else [axes]
    return x.shape[-1] if list(axes) in ([-1], [x.dim() - 1]) else 0


def _log_softmax(node: Node, x: Tensor) -> str | None:
    # 0.3 to 0.9 for rows of 32 to 255; 1.1 and more for rows of 10 and of 1000.
    if 16 <= _row_length(node, x) < 256:
        return "it was measured to be faster along short rows"
    return None


def _softmax(node: Node, x: Tensor) -> str | None:
    # 0.8 to 0.95; with float32 1 and more for longer rows.
    row = _row_length(node, x)
    if row >= 64 and (x.dtype.itemsize == 2 or row < 256):
        return "it was measured to be faster for this row length"
    return None


def _layer_norm(node: Node, x: Tensor) -> str | None:
    # 0.7 to 1.1 without weights; 1.6 for rows of 32.
    if x.dtype == torch.float16 and list(node.args[1]) == [x.shape[-1]] and x.shape[-1] >= 64:  # type: ignore[arg-type]
        return "it was measured to be faster for float16"
    return None


def _sum(node: Node, x: Tensor) -> str | None:
    # 0.7 to 0.9; 0.5 for float16.
    row = _row_length(node, x)
    if row < 16:
        return None
    if x.dtype == torch.float16:
        return "it was measured to be faster for float16"
    return "it was measured to be faster along short rows" if row < 512 else None


def _mean(node: Node, x: Tensor) -> str | None:
    # For 16-bit floats torch makes two passes: generated kernels are 1.5 to 2.5 times as fast for rows >= 64.
    return _sum(node, x) if x.dtype.itemsize > 2 or _row_length(node, x) < 64 else None


def _cumulative(node: Node, x: Tensor) -> str | None:
    # 0.5 to 1.1; 1.3 to 2.5 for float16, 4 to 13 along the first axis.
    if _row_length(node, x) and x.dtype != torch.float16:
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
    ("cummax",): _cumulative,
    ("cummin",): _cumulative,
    ("gelu",): _gelu,
}


def why_torch_is_faster(node: torch.fx.Node) -> str | None:
    """Return why a node should run as a torch call on a CPU; None if it should be lowered."""
    pool = POOLING_OPS.get(node.target)
    if pool is None:
        only_gives_shape = node.target is torch.ops.aten.empty_strided.default and all(
            u.target in POOLING_OPS for u in node.users
        )
        return "nothing reads it" if only_gives_shape else None
    windows = pooling_windows(node)
    adaptive = [w for w in windows if isinstance(w, AdaptiveWindows)]
    if pool.is_max and pool.is_backward:
        *_, last = windows
        even = [w for w in windows if isinstance(w, UniformWindows)]
        are_small = all(w.taps <= _MAX_WINDOW and w.stride <= _MAX_STRIDE and w.dilation == 1 for w in even)
        return (
            None
            if are_small and not adaptive and last.size >= _MIN_ROW
            else "it scatters, which is faster than a generated gather here"
        )
    returns_indices = pool.is_max and any(u.target is operator.getitem and u.args[1] == 1 for u in node.users)
    if adaptive and (pool.is_backward or returns_indices):
        return "pooling windows of different sizes are not vectorized"
    if any(w.taps > _MAX_ADAPTIVE_WINDOW for w in adaptive) and not pool.is_max:
        return "pooling windows of different sizes are not vectorized"
    return None
