"""Checks that layers with several inputs share."""

from __future__ import annotations

import torch
from torch import Tensor

from burnt.errors import InputRuntimeError


def check_dtype(where: str, name: str, x: Tensor, dtype: torch.dtype) -> None:
    """Check that an input has the dtype of a layer's parameters, or one that autocast converts to it.

    Raises:
        InputRuntimeError: it has not.
    """
    if x.dtype == dtype or (x.is_floating_point() and torch.float64 not in (x.dtype, dtype)):
        return
    raise InputRuntimeError(
        f"{name} has not the dtype of the parameters",
        where=where,
        expected=f"{name} of {dtype}",
        found=x.dtype,
        hint=f"{name}.float()" if dtype == torch.float32 else f"{name}.to({dtype})",
    )
