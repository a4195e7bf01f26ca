"""Casting an op's arguments under autocast, for ops with an autocast rule (`Op`, ``autocast=``).

`Op` casts the arguments once and continues with autocast disabled, so that every candidate can run. While ops
are traced, compiled or transformed, torch casts inside the reference instead.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def autocast_dtype(kind: str) -> torch.dtype | None:
    """Return the dtype that autocast computes in on a device type, or None if it is off.

    >>> with torch.autocast("cpu", torch.bfloat16):
    ...     autocast_dtype("cpu"), autocast_dtype("meta")
    (torch.bfloat16, None)
    """
    if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
        return torch.get_autocast_dtype(kind)
    return None


def cast(value: Any, dtype: torch.dtype) -> Any:
    """Cast a floating-point tensor to a dtype. As in torch, float64 is unchanged; so is anything else."""
    if isinstance(value, Tensor) and value.is_floating_point() and value.dtype != torch.float64:
        return value.to(dtype)
    return value


def cast_all(dtype: torch.dtype, *args: Any) -> tuple[Any, ...]:
    """Cast every floating-point tensor: the autocast rule of most ops."""
    return tuple(cast(arg, dtype) for arg in args)


def cast_none(dtype: torch.dtype, *args: Any) -> tuple[Any, ...]:
    """Cast nothing: the rule of ops that name the dtype of their results, and compute sums exactly."""
    return args
