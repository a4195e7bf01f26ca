"""What imported models call for patterns of several nodes."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["rotate"]


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return a rotary position embedding: ``x cos + [-x2, x1] sin``, where x1 and x2 are the halves of x.

    Args:
        x: ``[..., d]``.
        cos: broadcasts to x.
        sin: broadcasts to x.

    Su et al., 2021, in the order of halves that GPT-NeoX and Llama use.

    >>> rotate(torch.tensor([1.0, 2.0]), torch.tensor(0.0), torch.tensor(1.0))
    tensor([-2.,  1.])
    """
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin
