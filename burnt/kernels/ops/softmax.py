"""Softmax and its logarithm."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from burnt.device import processor
from burnt.kernels.dispatch.op import op
from burnt.kernels.interface.checks import check_floating
from burnt.kernels.interface.tuning_key import wants_gradient

__all__ = ["log_softmax", "softmax"]


def _check(x: Tensor, dim: int, dtype: torch.dtype | None) -> None:
    if dtype is None:
        check_floating("softmax", x=x)


def _examples(device: torch.device) -> list[tuple[object, ...]]:
    shapes = [(4096, 1024), (512, 32000), (8, 16, 512, 512), (37, 53)]
    return [(torch.randn(shape, device=device), -1, None) for shape in shapes]


def _rows(x: Tensor, dim: int) -> tuple[int, int, bool]:
    """How long the axis is, how many elements lie between neighbours on it, and whether others lie around."""
    length, step = math.prod(x.shape[dim:][:1]), math.prod(x.shape[dim:][1:])
    return length, step, x.numel() > length * step


def _library_best(x: Tensor, dim: int, dtype: torch.dtype | None) -> bool:
    """torch's own is vectorised by hand along the last axis: with gradients as fast as what is generated.

    Without them that is 1.05 to 1.7 times as fast (Zen 5, with vectors of 512 bits and of 256). Along other
    axes it is 1.1 to 5 times as fast, with gradients too, but for float16 (0.4 to 1.3), bfloat16 of few
    columns (0.8 to 1.2) and short axes with many elements between their neighbours (0.9 to 1.8). In float64
    torch's exponential is faster.
    """
    if not x.is_contiguous() or dtype not in (None, x.dtype) or x.dtype == torch.float64:
        return True
    length, step, _ = _rows(x, dim)
    if step == 1:
        return wants_gradient(x)
    few = x.dtype == torch.bfloat16 and x.numel() < 512 * length
    return x.dtype == torch.float16 or few or (length < 128 and step > 64)


def _library_log_best(x: Tensor, dim: int, dtype: torch.dtype | None) -> bool:
    """Generated, long rows are 1.1 to 1.7 times as fast, those of 16 bits and of float64 without gradients.

    Short ones, and other axes of 16 bits or float64, are 0.2 to 1.1 times as fast. Along other axes of
    float32 it hangs on how these lie: where all of `x` is one matrix 1.2 to 3.6 times, where matrices lie
    behind each other 0.6 to 1.0, with gradients and vectors of 512 bits 1.2 to 1.5. (As above.)
    """
    if not x.is_contiguous() or dtype not in (None, x.dtype):
        return True
    length, step, several = _rows(x, dim)
    if x.dtype != torch.float32:
        return wants_gradient(x) or step > 1 or (length < 1024 and x.dtype != torch.float64)
    if step == 1:
        return length < 256
    if wants_gradient(x):
        return several and step > 64 and not processor().has_wide_vectors
    return step > 64 and (several or step > length)


@op(check=_check, examples=_examples, library_best=_library_best)
def softmax(x: Tensor, dim: int = -1, dtype: torch.dtype | None = None) -> Tensor:
    r"""Exponentials along an axis, divided by their sum: :math:`y_i = e^{x_i} / \sum_j e^{x_j}`.

    Args:
        x: ``[*]``, of a floating-point dtype.
        dim: the axis.
        dtype: what `x` is converted to first, and the result's dtype; None leaves it.

    Returns:
        ``[*]``, as `x`.

    Raises:
        InputIndexError: `x` has no axis `dim`.
        InputUnsupportedError: `x` is not of a floating-point dtype, and `dtype` is None.

    As `torch.softmax`. Sums are accumulated in float32 for 16-bit dtypes.

    >>> softmax(torch.tensor([0.0, 0.0]))
    tensor([0.5000, 0.5000])
    """
    return torch.softmax(x, dim, dtype=dtype)


def _check_log(x: Tensor, dim: int, dtype: torch.dtype | None) -> None:
    if dtype is None:
        check_floating("log_softmax", x=x)


@op(check=_check_log, examples=_examples, library_best=_library_log_best)
def log_softmax(x: Tensor, dim: int = -1, dtype: torch.dtype | None = None) -> Tensor:
    r"""The logarithm of the softmax along an axis: :math:`y_i = x_i - \log \sum_j e^{x_j}`.

    Args:
        x: ``[*]``, of a floating-point dtype.
        dim: the axis.
        dtype: what `x` is converted to first, and the result's dtype; None leaves it.

    Returns:
        ``[*]``, as `x`.

    Raises:
        InputIndexError: `x` has no axis `dim`.
        InputUnsupportedError: `x` is not of a floating-point dtype, and `dtype` is None.

    As `torch.log_softmax`.

    >>> log_softmax(torch.tensor([0.0, 0.0]))
    tensor([-0.6931, -0.6931])
    """
    return torch.log_softmax(x, dim, dtype=dtype)
