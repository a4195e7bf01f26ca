"""Pooling over one, two or three axes, depending on the rank of the input."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from burnt.errors import InputRuntimeError
from burnt.kernels.dispatch.op import op

_MAX = (F.max_pool1d, F.max_pool2d, F.max_pool3d)
_AVG = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)
_ADAPTIVE_AVG = (F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d)
_ADAPTIVE_MAX = (F.adaptive_max_pool1d, F.adaptive_max_pool2d, F.adaptive_max_pool3d)


def _num_pooled_axes(x: Tensor, size: int | Sequence[int]) -> int:
    """Return the number of pooled axes: `x` has no batch axis if `size` is as long as its other axes."""
    if x.dim() == 2:
        return 1
    length = 0 if isinstance(size, int) else len(size)
    return length if length == x.dim() - 1 else x.dim() - 2


def _check_pool(name: str, x: Tensor, size: int | Sequence[int]) -> None:
    axes = _num_pooled_axes(x, size)
    if not 1 <= axes <= 3 or (not isinstance(size, int) and len(size) not in (1, axes)):
        raise InputRuntimeError(
            f"{name} supports one, two or three axes",
            where=f"burnt.kernels.{name}",
            expected="x [batch, channels, *1 to 3 axes], and a size of one number, or one per axis",
            found=f"x {tuple(x.shape)}, and the size {size}",
            hint="add a batch axis: x.unsqueeze(0)" if x.dim() < 3 else None,
        )


def _unwrap(values: Any) -> Any:
    """Unwrap a list of one number, which torch then uses for every axis."""
    return values[0] if isinstance(values, list | tuple) and len(values) == 1 else values


def _torch_function(functions: Sequence[Callable[..., Any]], x: Tensor, size: Any) -> Callable[..., Any]:
    return functions[_num_pooled_axes(x, size) - 1]


def _pool_examples(device: torch.device, *rest: tuple[Any, ...]) -> list[tuple[object, ...]]:
    shapes = [(2, 32, 256, 256), (2, 3, 11, 7)]
    examples: list[tuple[object, ...]] = [(torch.randn(s, device=device), *r) for s in shapes for r in rest]
    return [*examples, (torch.randn(2, 3, 17, device=device), *rest[0])]


def _adaptive_features(x: Tensor, output_size: int | Sequence[int]) -> dict[str, bool]:
    """Return whether all axes are averaged, and whether windows overlap."""
    axes = x.dim() - 2 if x.dim() > 2 else 1
    sizes = [output_size] * axes if isinstance(output_size, int) else list(output_size)
    pairs = zip(x.shape[-len(sizes) :], sizes, strict=False)
    return {"global": all(n == 1 for n in sizes), "overlaps": any(size % out for size, out in pairs if out)}


@op(
    pair="return_indices",
    check=lambda x, kernel_size, *_: _check_pool("max_pool", x, kernel_size),
    examples=lambda device: _pool_examples(
        device, (3, 1, 1, 1, False, False), (3, 2, 1, 1, False, False), (2, None, 0, 1, True, False)
    ),
)
def max_pool(
    x: Tensor,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Compute the maximum of each pooling window.

    Args:
        x: ``[batch, channels, *axes]`` with one to three axes; without the batch axis `kernel_size` must
            have one number per axis.
        kernel_size: size of a window, one number or one per axis.
        stride: step between windows; None is `kernel_size`.
        padding: number of elements of minus infinity added on each side, at most half a window.
        dilation: step between the elements of a window.
        ceil_mode: keep windows that extend beyond the end.
        return_indices: also return the indices of the maxima into the flattened axes, int64.

    Returns:
        ``[batch, channels, *windows]``, or the pair ``(maxima, indices)``.

    Like `torch.nn.functional.max_pool2d` and its 1d and 3d variants.

    >>> max_pool(torch.arange(16.0).reshape(1, 1, 4, 4), 2).flatten()
    tensor([ 5.,  7., 13., 15.])
    """
    output = _torch_function(_MAX, x, kernel_size)(
        x,
        _unwrap(kernel_size),
        _unwrap(stride),
        _unwrap(padding),
        _unwrap(dilation),
        ceil_mode=ceil_mode,
        return_indices=return_indices,
    )
    return output  # type: ignore[no-any-return]


@op(
    check=lambda x, kernel_size, *_: _check_pool("avg_pool", x, kernel_size),
    examples=lambda device: _pool_examples(
        device, (3, 2, 1, False, True, None), (2, None, 0, True, False, None)
    ),
)
def avg_pool(
    x: Tensor,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    """Compute the mean of each pooling window.

    Args:
        x, kernel_size, stride, ceil_mode: the same arguments as in `max_pool`.
        padding: number of zeros added on each side, at most half a window.
        count_include_pad: whether zeros of the padding count as elements of the mean.
        divisor_override: divide by this instead of the number of elements (only with two or three axes).

    Returns:
        ``[batch, channels, *windows]``.

    Like `torch.nn.functional.avg_pool2d` and its 1d and 3d variants.

    >>> avg_pool(torch.arange(16.0).reshape(1, 1, 4, 4), 2).flatten()
    tensor([ 2.5000,  4.5000, 10.5000, 12.5000])
    """
    settings = [_unwrap(kernel_size), _unwrap(stride), _unwrap(padding), ceil_mode, count_include_pad]
    if _num_pooled_axes(x, kernel_size) > 1:
        settings.append(divisor_override)
    return _torch_function(_AVG, x, kernel_size)(x, *settings)  # type: ignore[no-any-return]


@op(
    check=lambda x, output_size: _check_pool("adaptive_avg_pool", x, output_size),
    examples=lambda device: _pool_examples(device, (1,), (7,)),
    features=_adaptive_features,
)
def adaptive_avg_pool(x: Tensor, output_size: int | Sequence[int]) -> Tensor:
    """Compute means of windows chosen such that the output has the given size.

    Args:
        x: ``[batch, channels, *axes]`` with one to three axes; without the batch axis `output_size` must
            have one number per axis.
        output_size: size of the output, one number or one per axis.

    Returns:
        ``[batch, channels, *output_size]``.

    Like `torch.nn.functional.adaptive_avg_pool2d` and its 1d and 3d variants.

    >>> adaptive_avg_pool(torch.arange(16.0).reshape(1, 1, 4, 4), 1)
    tensor([[[[7.5000]]]])
    """
    return _torch_function(_ADAPTIVE_AVG, x, output_size)(x, _unwrap(output_size))  # type: ignore[no-any-return]


@op(
    pair="return_indices",
    check=lambda x, output_size, _: _check_pool("adaptive_max_pool", x, output_size),
    examples=lambda device: _pool_examples(device, (1, False), (7, False)),
)
def adaptive_max_pool(
    x: Tensor, output_size: int | Sequence[int], return_indices: bool = False
) -> Tensor | tuple[Tensor, Tensor]:
    """Compute maxima of windows chosen such that the output has the given size.

    Arguments, result and errors are as in `adaptive_avg_pool`; with `return_indices` it returns the pair
    ``(maxima, indices)``, as `max_pool`. Like `torch.nn.functional.adaptive_max_pool2d` and its variants.

    >>> adaptive_max_pool(torch.arange(16.0).reshape(1, 1, 4, 4), 1)
    tensor([[[[15.]]]])
    """
    pool = _torch_function(_ADAPTIVE_MAX, x, output_size)
    return pool(x, _unwrap(output_size), return_indices=return_indices)  # type: ignore[no-any-return]
