"""What autocast makes of an op's arguments: each op that computes in its dtype has a rule (`Op`, `autocast`).

The op's front casts once and goes on with autocast switched off, so that any candidate may serve. Where calls
are recorded instead of run, it is torch that casts, in the reference.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["autocast_dtype", "cast", "cast_all"]


def autocast_dtype(kind: str) -> torch.dtype | None:
    """What autocast computes in on a kind of device, or None where it is off.

    >>> with torch.autocast("cpu", torch.bfloat16):
    ...     autocast_dtype("cpu"), autocast_dtype("meta")
    (torch.bfloat16, None)
    """
    if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
        return torch.get_autocast_dtype(kind)
    return None


def cast(value: Any, dtype: torch.dtype) -> Any:
    """A floating tensor in a dtype; float64, as torch has it, and everything else as it is."""
    if isinstance(value, Tensor) and value.is_floating_point() and value.dtype != torch.float64:
        return value.to(dtype)
    return value


def cast_all(dtype: torch.dtype, *args: Any) -> tuple[Any, ...]:
    """The rule of most: every floating tensor is cast."""
    return tuple(cast(arg, dtype) for arg in args)
