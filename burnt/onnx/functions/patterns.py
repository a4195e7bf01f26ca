"""What imported models call for patterns of several nodes."""

from __future__ import annotations

import torch
from torch import Tensor


def rotate(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False) -> Tensor:
    """Return a rotary position embedding: ``x cos + [-x2, x1] sin``, where x1 and x2 are the halves of x.

    Interleaved, x1 are the even features and x2 the odd ones, each pair side by side, as in GPT-J and Cohere.
    `cos` and `sin` broadcast to `x` ``[..., d]``. Su et al., 2021.

    >>> rotate(torch.tensor([1.0, 2.0]), torch.tensor(0.0), torch.tensor(1.0))
    tensor([-2.,  1.])
    >>> rotate(torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor(0.0), torch.tensor(1.0), interleaved=True)
    tensor([-2.,  1., -4.,  3.])
    """
    if interleaved:
        rotated = torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)
    else:
        first, second = x.chunk(2, dim=-1)
        rotated = torch.cat((-second, first), dim=-1)
    return x * cos + rotated * sin
