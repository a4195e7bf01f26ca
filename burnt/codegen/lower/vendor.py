"""Where torch's own kernel for a CPU is as fast as what would be generated, or faster.

A gradient of maxima is gathered where it is generated: an element asks every window that it is in whether it
is the largest. torch scatters: it adds one number for each window to zeros. It has the fewer steps, and they
are slower only than those of vectors, which windows of few elements in long rows are made of: 2 x 2 and 3 x 3
in rows of 192 are 1.1 to 5 times as fast gathered, 5 x 5, or rows of 56, 0.3 to 0.8 times.
"""

from __future__ import annotations

import operator

import torch

from burnt.codegen.lower.windows import POOLS, Adaptive, Even, windows_of

__all__ = ["torch_is_best"]

# Of windows whose gradient is gathered: elements of an axis, steps between them, and elements of a row.
_MOST_TAPS, _MOST_STEPS, _ROW = 3, 2, 192
# Elements of an axis of windows of uneven sizes: of more, means are at most as fast as torch's.
_MOST_UNEVEN = 16


def torch_is_best(node: torch.fx.Node) -> str | None:
    """Why a node is better torch's own call on a CPU, or None."""
    pool = POOLS.get(node.target)
    if pool is None:
        for_shape = node.target is torch.ops.aten.empty_strided.default and all(
            u.target in POOLS for u in node.users
        )
        return "nothing reads it" if for_shape else None
    windows = windows_of(node)
    uneven = [w for w in windows if isinstance(w, Adaptive)]
    if pool.maxima and pool.gradient:
        *_, last = windows
        even = [w for w in windows if isinstance(w, Even)]
        few = all(w.taps <= _MOST_TAPS and w.stride <= _MOST_STEPS and w.dilation == 1 for w in even)
        return None if few and not uneven and last.size >= _ROW else "it scatters where we would gather"
    places = pool.maxima and any(u.target is operator.getitem and u.args[1] == 1 for u in node.users)
    if uneven and (pool.gradient or places):
        return "windows of uneven sizes make no vectors"
    if any(w.taps > _MOST_UNEVEN for w in uneven) and not pool.maxima:
        return "windows of uneven sizes make no vectors"
    return None
