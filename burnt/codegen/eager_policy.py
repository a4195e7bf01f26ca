"""When a CPU runs torch's own kernel instead of a generated one, as `burnt.torch_speed` has measured.

A function that is one call of an op runs eagerly where torch is faster, if its tensor is large enough for the
speed to matter and no gradient is needed; with `fuse(single=True)` it never does. Within larger functions
these ops are lowered like all others, except for pooling: its gradient is gathered by generated code, where
each element checks for every window that contains it whether it is the maximum, and scattered by torch, which
adds one number for each window to zeros. That takes fewer steps, which are slower only than vectorized ones.
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
from burnt.torch_speed import find_fact

_MAX_NODES = 40  # the graph of any of these ops, decomposed, is smaller
_MIN_ELEMENTS = 1 << 16  # of fewer elements, torch's call takes less than some tens of microseconds


class EagerCalls(NamedTuple):
    """The torch calls of a function that runs eagerly because they are faster."""

    calls: tuple[str, ...]
    bytes: int  # bytes of memory read and written, each tensor counted once
    why: str


def eager_calls(fn: Callable[..., Any], args: Sequence[Any], traced: Traced) -> EagerCalls | None:
    """Return the torch calls to run on a CPU instead of generated kernels; None to generate kernels."""
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
    ops = [name.split(".")[1] for name in names]
    if len(ops) != 1 and ops != ["_log_softmax", "nll_loss_forward"]:
        return None
    x = nodes[0].args[0].meta["val"] if isinstance(nodes[0].args[0], Node) else None
    if not isinstance(x, Tensor) or x.numel() < _MIN_ELEMENTS or not x.is_contiguous():
        return None
    features = {"row": _row_length(nodes[0], x), "approximate": "none"} | nodes[0].kwargs
    fact = find_fact(f"aten::{ops[0]}", True, x.dtype, False, features)
    if fact is None or fact.use == "generated":
        return None
    results = [n.meta["val"] for n in graph.find_nodes(op="output")[0].all_input_nodes]
    num_bytes = sum(t.numel() * t.dtype.itemsize for t in (*inputs, *results))
    return EagerCalls(names, num_bytes, fact.reason)


def _row_length(node: Node, x: Tensor) -> int:
    """Return the size of the axis that an op reduces if that is the last one; 0 if it is not."""
    if node.target is torch.ops.aten.native_layer_norm.default:
        return x.shape[-1] if list(node.args[1]) == [x.shape[-1]] else 0  # type: ignore[arg-type]
    axes = node.args[1] if len(node.args) > 1 else None
    axes = axes if isinstance(axes, list | tuple) else [axes]
    return x.shape[-1] if x.dim() and list(axes) in ([-1], [x.dim() - 1]) else 0


def why_torch_is_faster(node: Node) -> str | None:
    """Return why a node should run as a torch call on a CPU; None if it should be lowered."""
    pool = POOLING_OPS.get(node.target)
    if pool is None:
        only_gives_shape = node.target is torch.ops.aten.empty_strided.default and all(
            u.target in POOLING_OPS for u in node.users
        )
        return "nothing reads it" if only_gives_shape else None
    windows = pooling_windows(node)
    uniform = [w for w in windows if isinstance(w, UniformWindows)]
    adaptive = [w for w in windows if isinstance(w, AdaptiveWindows)]
    returns_indices = pool.is_max and any(u.target is operator.getitem and u.args[1] == 1 for u in node.users)
    part = " gradient" if pool.is_backward else " indices" if returns_indices else ""
    features = {
        "adaptive": bool(adaptive),
        "taps": max(w.taps for w in adaptive or uniform),
        "stride": max((w.stride for w in uniform), default=1),
        "dilation": max((w.dilation for w in uniform), default=1),
        "row": windows[-1].size,
    }
    op = f"aten::{'max' if pool.is_max else 'avg'}_pool{part}"
    fact = find_fact(op, True, None, False, features)
    return fact.reason if fact is not None and fact.use == "torch" else None
