"""`softmax` and `log_softmax`."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from burnt.device import processor
from burnt.kernels.dispatch.op import op
from burnt.kernels.interface.checks import check_floating
from burnt.kernels.interface.tuning_key import wants_gradient


def _check_softmax(x: Tensor, dim: int, dtype: torch.dtype | None) -> None:
    if dtype is None:
        check_floating("softmax", x=x)


def _examples(device: torch.device) -> list[tuple[object, ...]]:
    shapes = [(4096, 1024), (512, 32000), (8, 16, 512, 512), (37, 53)]
    return [(torch.randn(shape, device=device), -1, None) for shape in shapes]


def _axis_layout(x: Tensor, dim: int) -> tuple[int, int, bool]:
    """Return the axis' length, its stride, and whether there are axes before it, for a contiguous `x`."""
    length, stride = math.prod(x.shape[dim:][:1]), math.prod(x.shape[dim:][1:])
    return length, stride, x.numel() > length * stride


def _softmax_library_best(x: Tensor, dim: int, dtype: torch.dtype | None) -> bool:
    """Whether torch's kernel is expected to be at least as fast as the generated one.

    Along the last axis torch's is vectorized by hand: with gradients it is as fast as the generated kernel.
    Without gradients the generated one is 1.05 to 1.7 times as fast (Zen 5, 512-bit and 256-bit vectors), but
    0.2 to 1.1 times on rows of 16 to 127 elements, and 1 to 10 times on shorter ones (Xeon, 512-bit vectors).
    Along other axes it is 1.1 to 5 times as fast, also with gradients; exceptions are float16 (0.4 to 1.3),
    bfloat16 with few columns (0.8 to 1.2) and short axes with a large stride (0.9 to 1.8). In float64
    torch's exponential is faster.
    """
    if not x.is_contiguous() or dtype not in (None, x.dtype) or x.dtype == torch.float64:
        return True
    length, stride, _ = _axis_layout(x, dim)
    if stride == 1:
        return wants_gradient(x) or 16 <= length < 128
    is_narrow_bfloat16 = x.dtype == torch.bfloat16 and x.numel() < 512 * length
    return x.dtype == torch.float16 or is_narrow_bfloat16 or (length < 128 and stride > 64)


def _log_softmax_library_best(x: Tensor, dim: int, dtype: torch.dtype | None) -> bool:
    """Whether torch's kernel is expected to be at least as fast as the generated one.

    The generated kernel is 1.1 to 1.7 times as fast on long rows, in 16 bits and float64 only without
    gradients; 0.2 to 1.1 times on short rows, and along other axes in 16 bits or float64. Along other axes in
    float32 it depends on the layout: 1.2 to 3.6 times as fast if `x` is one matrix; for batches of matrices
    0.6 to 1.0 times, with gradients and 512-bit vectors 1.2 to 1.5 times. (Zen 5, as for `softmax`.)
    """
    if not x.is_contiguous() or dtype not in (None, x.dtype):
        return True
    length, stride, has_outer_axes = _axis_layout(x, dim)
    if x.dtype != torch.float32:
        return wants_gradient(x) or stride > 1 or (length < 1024 and x.dtype != torch.float64)
    if stride == 1:
        return length < 256
    if wants_gradient(x):
        return has_outer_axes and stride > 64 and not processor().has_wide_vectors
    return stride > 64 and (has_outer_axes or stride > length)


@op(check=_check_softmax, examples=_examples, library_best=_softmax_library_best)
def softmax(x: Tensor, dim: int = -1, dtype: torch.dtype | None = None) -> Tensor:
    r"""Compute the softmax along an axis: :math:`y_i = e^{x_i} / \sum_j e^{x_j}`.

    Args:
        x: ``[*]``, floating-point.
        dim: the axis.
        dtype: convert `x` to this dtype first; also the result's dtype. None keeps the dtype of `x`.

    Returns:
        ``[*]``, the shape of `x`.

    Raises:
        InputIndexError: `x` has no axis `dim`.
        InputUnsupportedError: `x` is not floating-point, and `dtype` is None.

    Like `torch.softmax`. Sums are accumulated in float32 for 16-bit dtypes.

    >>> softmax(torch.tensor([0.0, 0.0]))
    tensor([0.5000, 0.5000])
    """
    return torch.softmax(x, dim, dtype=dtype)


def _check_log_softmax(x: Tensor, dim: int, dtype: torch.dtype | None) -> None:
    if dtype is None:
        check_floating("log_softmax", x=x)


@op(check=_check_log_softmax, examples=_examples, library_best=_log_softmax_library_best)
def log_softmax(x: Tensor, dim: int = -1, dtype: torch.dtype | None = None) -> Tensor:
    r"""Compute the logarithm of the softmax along an axis: :math:`y_i = x_i - \log \sum_j e^{x_j}`.

    Args:
        x: ``[*]``, floating-point.
        dim: the axis.
        dtype: convert `x` to this dtype first; also the result's dtype. None keeps the dtype of `x`.

    Returns:
        ``[*]``, the shape of `x`.

    Raises:
        InputIndexError: `x` has no axis `dim`.
        InputUnsupportedError: `x` is not floating-point, and `dtype` is None.

    Like `torch.log_softmax`.

    >>> log_softmax(torch.tensor([0.0, 0.0]))
    tensor([-0.6931, -0.6931])
    """
    return torch.log_softmax(x, dim, dtype=dtype)
