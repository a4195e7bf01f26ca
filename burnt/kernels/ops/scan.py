"""Cumulative sums and products: `cumsum` and `cumprod`."""

from __future__ import annotations

import torch
from torch import Tensor

from burnt.kernels.dispatch.op import op


def _examples(device: torch.device) -> list[tuple[object, ...]]:
    shapes = [((4096, 1024), 0), ((4096, 1024), -1), ((37, 53), 0)]
    return [(torch.randn(shape, device=device), dim, None) for shape, dim in shapes]


@op(examples=_examples)
def cumsum(x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """Compute the cumulative sums along an axis.

    Args:
        x: ``[*]``.
        dim: the axis.
        dtype: dtype of the sums and the result; None is that of `x`, or int64 for integers and booleans.

    Returns:
        ``[*]``, the shape of `x`.

    Raises:
        InputIndexError: `x` has no axis `dim`.

    Like `torch.cumsum`.

    >>> cumsum(torch.tensor([1.0, 2.0, 3.0]), 0)
    tensor([1., 3., 6.])
    """
    return torch.cumsum(x, dim, dtype=dtype)


@op(examples=_examples)
def cumprod(x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """Compute the cumulative products along an axis, like `torch.cumprod`.

    Arguments, result and errors are those of `cumsum`.

    >>> cumprod(torch.tensor([1.0, 2.0, 3.0]), 0)
    tensor([1., 2., 6.])
    """
    return torch.cumprod(x, dim, dtype=dtype)
