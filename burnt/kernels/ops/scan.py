"""Cumulative sums and products."""

from __future__ import annotations

import torch
from torch import Tensor

from burnt.kernels.dispatch.op import op
from burnt.kernels.interface.tuning_key import wants_gradient

__all__ = ["cumprod", "cumsum"]


def _examples(device: torch.device) -> list[tuple[object, ...]]:
    shapes = [((4096, 1024), 0), ((4096, 1024), -1), ((37, 53), 0)]
    return [(torch.randn(shape, device=device), dim, None) for shape, dim in shapes]


@op(examples=_examples)
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


# torch's gradient looks for zeros, and takes a way of its own around them: no kernel says it.
@op(examples=_examples, library_best=lambda *args: wants_gradient(*args))
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
