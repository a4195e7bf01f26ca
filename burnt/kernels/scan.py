"""Cumulative sums and products."""

from __future__ import annotations

import torch
from torch import Tensor

from burnt.kernels.op import op

__all__ = ["cumprod", "cumsum"]


# Scans are not generated yet: what is generated calls torch's.


def _examples(device: torch.device) -> list[tuple[object, ...]]:
    shapes = [((4096, 1024), 0), ((4096, 1024), -1), ((37, 53), 0)]
    return [(torch.randn(shape, device=device), dim, None) for shape, dim in shapes]


@op(examples=_examples, vendor_best=lambda *_: True)
def cumsum(x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """The sums of an axis up to each element.

    Args:
        x: ``[*]``.
        dim: the axis.
        dtype: what is summed in and returned; None is that of `x`, int64 for integers and booleans.

    Returns:
        ``[*]``.

    Raises:
        InputIndexError: `x` has no axis `dim`.

    As `torch.cumsum`.

    >>> cumsum(torch.tensor([1.0, 2.0, 3.0]), 0)
    tensor([1., 3., 6.])
    """
    return torch.cumsum(x, dim, dtype=dtype)


@op(examples=_examples, vendor_best=lambda *_: True)
def cumprod(x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """The products of an axis up to each element.

    Args:
        x: ``[*]``.
        dim: the axis.
        dtype: what is multiplied in and returned; None is that of `x`, int64 for integers and booleans.

    Returns:
        ``[*]``.

    Raises:
        InputIndexError: `x` has no axis `dim`.

    As `torch.cumprod`.

    >>> cumprod(torch.tensor([1.0, 2.0, 3.0]), 0)
    tensor([1., 2., 6.])
    """
    return torch.cumprod(x, dim, dtype=dtype)
