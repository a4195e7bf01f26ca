"""Reductions over one, several or all axes: `reduce_sum`, `reduce_max` and so on; `cumsum` and `cumprod`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from burnt.kernels.dispatch.op import op

_SHAPES: list[tuple[tuple[int, ...], list[int]]] = [
    ((4096, 1024), [-1]),
    ((4096, 1024), [0]),
    ((37, 53), [0, 1]),
]


def _inputs(device: torch.device) -> list[tuple[Tensor, list[int]]]:
    return [(torch.randn(shape, device=device), dim) for shape, dim in _SHAPES]


def _axes(x: Tensor, dim: int | Sequence[int] | None) -> list[int]:
    if dim is None:
        return list(range(x.dim()))
    return [dim] if isinstance(dim, int) else list(dim)


def _features(x: Tensor, dim: int | Sequence[int] | None, *rest: object) -> dict[str, int]:
    """Return the length of the rows that are reduced; 0 if other axes are."""
    return {"row": x.shape[-1] if x.dim() and _axes(x, dim) in ([-1], [x.dim() - 1]) else 0}


def _examples(*settings: object) -> Callable[[torch.device], list[tuple[object, ...]]]:
    """Return examples that end with these settings."""
    return lambda device: [(x, dim, *settings) for x, dim in _inputs(device)]


def _arg_examples(device: torch.device) -> list[tuple[object, ...]]:
    return [(x, dim[0] if len(dim) == 1 else None, False) for x, dim in _inputs(device)]


def _bool_examples(device: torch.device) -> list[tuple[object, ...]]:
    return [(x > 0, dim, False) for x, dim in _inputs(device)]


@op(examples=_examples(False, None), features=_features)
def reduce_sum(
    x: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False, dtype: torch.dtype | None = None
) -> Tensor:
    """Compute the sum over axes, like `torch.sum`.

    Args:
        x: ``[*]``, the tensor to reduce.
        dim: the axis or axes to reduce; None reduces all.
        keepdim: keep the reduced axes, with size 1.
        dtype: dtype of the computation and the result; None is the dtype of `x`, or int64 for integers and
            booleans.

    Returns:
        ``[*]`` without the reduced axes.

    Raises:
        InputIndexError: `x` has no such axis.

    >>> reduce_sum(torch.tensor([1.0, 2.0]))
    tensor(3.)
    """
    return torch.sum(x, _axes(x, dim), keepdim, dtype=dtype)


@op(examples=_examples(False, None), features=_features)
def reduce_mean(
    x: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False, dtype: torch.dtype | None = None
) -> Tensor:
    """Compute the mean over axes, like `torch.mean`; a `dtype` of None is the dtype of `x`.

    Arguments, result and errors are as in `reduce_sum`.

    >>> reduce_mean(torch.tensor([1.0, 2.0]))
    tensor(1.5000)
    """
    return torch.mean(x, _axes(x, dim), keepdim, dtype=dtype)


@op(examples=_examples(False), features=_features)
def reduce_max(x: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Tensor:
    """Compute the maximum over axes, like `torch.amax`: equal maxima share the gradient evenly.

    Arguments, result and errors are as in `reduce_sum`.

    >>> reduce_max(torch.tensor([1.0, 2.0]))
    tensor(2.)
    """
    return torch.amax(x, _axes(x, dim), keepdim)


@op(examples=_examples(False), features=_features)
def reduce_min(x: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Tensor:
    """Compute the minimum over axes, like `torch.amin`: equal minima share the gradient evenly.

    Arguments, result and errors are as in `reduce_sum`.

    >>> reduce_min(torch.tensor([1.0, 2.0]))
    tensor(1.)
    """
    return torch.amin(x, _axes(x, dim), keepdim)


@op(examples=lambda device: [(*a, None) for a in _arg_examples(device)])
def reduce_prod(
    x: Tensor, dim: int | None = None, keepdim: bool = False, dtype: torch.dtype | None = None
) -> Tensor:
    """Compute the product over one axis or all, like `torch.prod`.

    Arguments, result and errors are as in `reduce_sum`.

    >>> reduce_prod(torch.tensor([3.0, 2.0]))
    tensor(6.)
    """
    if dim is None:
        product = torch.prod(x, dtype=dtype)
        return product.view([1] * x.dim()) if keepdim else product
    return torch.prod(x, dim, keepdim, dtype=dtype)


@op(examples=_examples(1, False))
def reduce_var(
    x: Tensor, dim: int | Sequence[int] | None = None, correction: int = 1, keepdim: bool = False
) -> Tensor:
    """Compute the variance over axes, like `torch.var`.

    The sum of squares is divided by the number of elements minus `correction`; the other arguments, result
    and errors are as in `reduce_sum`.

    >>> reduce_var(torch.tensor([1.0, 2.0, 3.0]))
    tensor(1.)
    """
    return torch.var(x, _axes(x, dim), correction=correction, keepdim=keepdim)


@op(examples=_examples(1, False))
def reduce_std(
    x: Tensor, dim: int | Sequence[int] | None = None, correction: int = 1, keepdim: bool = False
) -> Tensor:
    """Compute the standard deviation over axes, like `torch.std`; arguments are as in `reduce_var`.

    >>> reduce_std(torch.tensor([1.0, 2.0, 3.0]))
    tensor(1.)
    """
    return torch.std(x, _axes(x, dim), correction=correction, keepdim=keepdim)


@op(examples=_examples(False))
def reduce_logsumexp(x: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Tensor:
    """Compute the logarithm of the sum of exponentials, without overflow, like `torch.logsumexp`.

    Arguments, result and errors are as in `reduce_sum`.

    >>> reduce_logsumexp(torch.zeros(2))
    tensor(0.6931)
    """
    return torch.logsumexp(x, _axes(x, dim), keepdim)


@op(examples=_arg_examples)
def reduce_argmax(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """Return the index of the maximum, int64, like `torch.argmax`; of equal maxima the first.

    A `dim` of None returns the index into the flattened `x`; otherwise arguments, result and errors are those
    of `reduce_sum`.

    >>> reduce_argmax(torch.tensor([1.0, 2.0]))
    tensor(1)
    """
    return torch.argmax(x, dim, keepdim)


@op(examples=_arg_examples)
def reduce_argmin(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """Return the index of the minimum, int64, like `torch.argmin`; as `reduce_argmax`.

    >>> reduce_argmin(torch.tensor([1.0, 2.0]))
    tensor(0)
    """
    return torch.argmin(x, dim, keepdim)


@op(examples=_bool_examples)
def reduce_any(x: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Tensor:
    """Test whether any element along the axes is true (nonzero), like `torch.any`.

    Arguments, result and errors are as in `reduce_sum`.

    >>> reduce_any(torch.tensor([True, False]))
    tensor(True)
    """
    return torch.any(x, dim=_axes(x, dim), keepdim=keepdim)


@op(examples=_bool_examples)
def reduce_all(x: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Tensor:
    """Test whether all elements along the axes are true (nonzero), like `torch.all`.

    Arguments, result and errors are as in `reduce_sum`.

    >>> reduce_all(torch.tensor([True, False]))
    tensor(False)
    """
    return torch.all(x, dim=_axes(x, dim), keepdim=keepdim)


def _scan_examples(device: torch.device) -> list[tuple[object, ...]]:
    shapes = [((4096, 1024), 0), ((4096, 1024), -1), ((37, 53), 0)]
    return [(torch.randn(shape, device=device), dim, None) for shape, dim in shapes]


@op(examples=_scan_examples)
def cumsum(x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """Compute the cumulative sums along an axis.

    Args:
        x: ``[*]``, the tensor to sum.
        dim: the axis to sum along.
        dtype: dtype of the sums and the result; None is the dtype of `x`, or int64 for integers and booleans.

    Returns:
        ``[*]``, the shape of `x`.

    Raises:
        InputIndexError: `x` has no axis `dim`.

    Like `torch.cumsum`.

    >>> cumsum(torch.tensor([1.0, 2.0, 3.0]), 0)
    tensor([1., 3., 6.])
    """
    return torch.cumsum(x, dim, dtype=dtype)


@op(examples=_scan_examples)
def cumprod(x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """Compute the cumulative products along an axis, like `torch.cumprod`.

    Arguments, result and errors are as in `cumsum`.

    >>> cumprod(torch.tensor([1.0, 2.0, 3.0]), 0)
    tensor([1., 2., 6.])
    """
    return torch.cumprod(x, dim, dtype=dtype)
