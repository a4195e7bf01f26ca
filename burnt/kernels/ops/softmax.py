"""`softmax` and `log_softmax`."""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

from burnt.kernels.dispatch.op import op
from burnt.kernels.interface.checks import check_floating


def _check(name: str, x: Tensor, dim: int, dtype: torch.dtype | None) -> None:
    if dtype is None:
        check_floating(name, x=x)


def _examples(device: torch.device) -> list[tuple[object, ...]]:
    shapes = [(4096, 1024), (512, 32000), (8, 16, 512, 512), (37, 53)]
    return [(torch.randn(shape, device=device), -1, None) for shape in shapes]


def _features(x: Tensor, dim: int, dtype: torch.dtype | None) -> dict[str, int]:
    """Return the axis' length and stride, whether there are axes before it, and whether `x` is converted."""
    length, stride = math.prod(x.shape[dim:][:1]), math.prod(x.shape[dim:][1:])
    return {
        "contiguous": x.is_contiguous(),
        "converts": dtype not in (None, x.dtype),
        "length": length,
        "stride": stride,
        "wide": stride > length,
        "columns": x.numel() // max(length, 1),
        "batched": x.numel() > length * stride,
    }


@op(check=functools.partial(_check, "softmax"), examples=_examples, features=_features)
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


@op(check=functools.partial(_check, "log_softmax"), examples=_examples, features=_features)
def log_softmax(x: Tensor, dim: int = -1, dtype: torch.dtype | None = None) -> Tensor:
    r"""Compute the logarithm of the softmax along an axis: :math:`y_i = x_i - \log \sum_j e^{x_j}`.

    Arguments, result and errors are as in `softmax`. Like `torch.log_softmax`.

    >>> log_softmax(torch.tensor([0.0, 0.0]))
    tensor([-0.6931, -0.6931])
    """
    return torch.log_softmax(x, dim, dtype=dtype)
