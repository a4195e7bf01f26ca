"""Ops and dtypes that eager torch rejects although their lowering would compute them.

`refusals` finds most such calls by running them with small tensors. These ops do not take such tensors. Their
call stays a torch call, which raises torch's error, or computes the result on devices that support it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

# Ops that torch computes for floating-point dtypes only.
_FLOAT_ONLY = frozenset((
    "adaptive_max_pool2d", "adaptive_max_pool3d", "max_pool2d_with_indices_backward",
    "max_pool3d_with_indices_backward",
))  # fmt: skip
# Ops that torch does not compute for bool.
_NO_BOOL = frozenset((
    "max_pool2d_with_indices", "max_pool3d_with_indices", "reflection_pad1d", "reflection_pad2d",
    "reflection_pad3d",
))  # fmt: skip


def is_dtype_unsupported(op: Any, args: Iterable[Any]) -> bool:
    """Whether torch would reject a call because of its dtypes.

    Args:
        op: the op overload.
        args: its arguments; those that are not tensors are ignored.
    """
    name = getattr(op, "_opname", "")
    dtypes = [arg.dtype for arg in args if isinstance(arg, torch.Tensor)]
    if name in _FLOAT_ONLY:
        return not any(dtype.is_floating_point or dtype.is_complex for dtype in dtypes)
    return name in _NO_BOOL and torch.bool in dtypes


def decompose_unless_unsupported(op: Any, decomposition: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a decomposition of a composite op so that calls which torch would reject are not decomposed."""

    def decompose(*args: Any, **kwargs: Any) -> Any:
        if is_dtype_unsupported(op, [*args, *kwargs.values()]):
            return NotImplemented
        return decomposition(*args, **kwargs)

    return decompose
