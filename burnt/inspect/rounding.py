"""How much rounding may change a model's outputs from one batch size to another."""

from __future__ import annotations

import torch
from torch import nn

from burnt._independence import TOLERANCE

__all__ = ["rounding_tolerance"]

_HALF = (torch.float16, torch.bfloat16)
_TF32 = 2.0**-10  # the rounding of matmuls and convolutions of float32 on NVIDIA GPUs, where that is allowed


def rounding_tolerance(model: nn.Module, *dtypes: torch.dtype) -> float:
    """Return the difference between outputs of equal items in different batches that rounding may explain.

    Args:
        model: any module.
        dtypes: those in which it computes beside the dtypes of its parameters, such as that of autocast.

    Returns:
        A number relative to the largest output: 1e-3, or 8 times the rounding of 16-bit numbers or TF32.

    >>> rounding_tolerance(nn.Linear(1, 1)), rounding_tolerance(nn.Linear(1, 1), torch.bfloat16)
    (0.001, 0.0625)
    """
    parameters = list(model.parameters())
    used = {*dtypes, *(parameter.dtype for parameter in parameters)}
    eps = [torch.finfo(dtype).eps for dtype in _HALF if dtype in used]
    eps += [_TF32 for parameter in parameters if parameter.is_cuda]
    return max([TOLERANCE, *(8 * number for number in eps)])
