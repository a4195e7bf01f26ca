"""Pooling windows, of one, two or three axes by the rank of what is pooled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from burnt.errors import InputRuntimeError
from burnt.kernels.dispatch.op import op
from burnt.kernels.interface.tuning_key import wants_gradient

__all__ = ["adaptive_avg_pool", "adaptive_max_pool", "avg_pool", "max_pool"]

_MAX = (F.max_pool1d, F.max_pool2d, F.max_pool3d)
_AVG = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)
_ADAPTIVE_AVG = (F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d)
_ADAPTIVE_MAX = (F.adaptive_max_pool1d, F.adaptive_max_pool2d, F.adaptive_max_pool3d)


def _axes(x: Tensor, size: int | Sequence[int]) -> int:
    """How many axes are pooled: all but batch and channels, or all but channels where `size` says so."""
    if x.dim() == 2:
        return 1
    listed = 0 if isinstance(size, int) else len(size)
    return listed if listed == x.dim() - 1 else x.dim() - 2


def _check(name: str, x: Tensor, size: int | Sequence[int]) -> None:
    axes = _axes(x, size)
    if not 1 <= axes <= 3 or (not isinstance(size, int) and len(size) not in (1, axes)):
        raise InputRuntimeError(
            f"{name} is over one, two or three axes",
            where=f"burnt.kernels.{name}",
            expected="[batch, channels, *1 to 3 axes], and a number, or one for each axis",
            found=f"{tuple(x.shape)}, and {size}",
            hint="add a batch axis: x.unsqueeze(0)" if x.dim() < 3 else None,
        )


def _whole(values: Any) -> Any:
    """A list of one number as the number, which torch takes for every axis."""
    return values[0] if isinstance(values, list | tuple) and len(values) == 1 else values


def _of(kinds: Sequence[Callable[..., Any]], x: Tensor, size: Any) -> Callable[..., Any]:
    return kinds[_axes(x, size) - 1]


def _images(device: torch.device, *rest: tuple[Any, ...]) -> list[tuple[object, ...]]:
    shapes = [(2, 32, 256, 256), (2, 3, 11, 7)]
    made: list[tuple[object, ...]] = [(torch.randn(s, device=device), *r) for s in shapes for r in rest]
    return [*made, (torch.randn(2, 3, 17, device=device), *rest[0])]


def _overlap(x: Tensor, output_size: int | Sequence[int]) -> bool:
    """Whether adaptive windows overlap: gradients are 0.8 times as fast as torch's, else 1.3 times."""
    axes = x.dim() - 2 if x.dim() > 2 else 1
    sizes = [output_size] * axes if isinstance(output_size, int) else list(output_size)
    return any(size % out for size, out in zip(x.shape[-len(sizes) :], sizes, strict=False) if out)


@op(
    pair="return_indices",
    check=lambda x, kernel_size, *_: _check("max_pool", x, kernel_size),
    examples=lambda device: _images(
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
    """The maximum of each window.

    Args:
        x: ``[batch, channels, *axes]`` with one to three axes; without batch, `kernel_size` is one number for
            each axis.
        kernel_size: the window's size, one number or one for each axis.
        stride: step between windows; None is `kernel_size`.
        padding: elements of minus infinity on each side, at most half the window.
        dilation: step between the window's elements.
        ceil_mode: keep windows that begin inside and end outside.
        return_indices: return the pair of maxima and their flat positions, int64.

    Returns:
        ``[batch, channels, *windows]``, or the pair ``(maxima, positions)``.

    Raises:
        InputRuntimeError: the sizes do not fit `x`.

    As `torch.nn.functional.max_pool2d` and its like.

    >>> max_pool(torch.arange(16.0).reshape(1, 1, 4, 4), 2).flatten()
    tensor([ 5.,  7., 13., 15.])
    """
    made = _of(_MAX, x, kernel_size)(
        x,
        _whole(kernel_size),
        _whole(stride),
        _whole(padding),
        _whole(dilation),
        ceil_mode=ceil_mode,
        return_indices=return_indices,
    )
    return made  # type: ignore[no-any-return]


@op(
    check=lambda x, kernel_size, *_: _check("avg_pool", x, kernel_size),
    examples=lambda device: _images(device, (3, 2, 1, False, True, None), (2, None, 0, True, False, None)),
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
    """The mean of each window.

    Args:
        x: ``[batch, channels, *axes]`` with one to three axes; without batch, `kernel_size` is one number for
            each axis.
        kernel_size: the window's size, one number or one for each axis.
        stride: step between windows; None is `kernel_size`.
        padding: elements of zero on each side, at most half the window.
        ceil_mode: keep windows that begin inside and end outside.
        count_include_pad: whether the padding counts in the mean.
        divisor_override: divide the sum by this instead of by the window's size (two and three axes).

    Returns:
        ``[batch, channels, *windows]``.

    Raises:
        InputRuntimeError: the sizes do not fit `x`.

    As `torch.nn.functional.avg_pool2d` and its like.

    >>> avg_pool(torch.arange(16.0).reshape(1, 1, 4, 4), 2).flatten()
    tensor([ 2.5000,  4.5000, 10.5000, 12.5000])
    """
    settings = [_whole(kernel_size), _whole(stride), _whole(padding), ceil_mode, count_include_pad]
    if _axes(x, kernel_size) > 1:
        settings.append(divisor_override)
    return _of(_AVG, x, kernel_size)(x, *settings)  # type: ignore[no-any-return]


@op(
    check=lambda x, output_size: _check("adaptive_avg_pool", x, output_size),
    examples=lambda device: _images(device, (1,), (7,)),
    library_best=lambda x, output_size: wants_gradient(x) and _overlap(x, output_size),
)
def adaptive_avg_pool(x: Tensor, output_size: int | Sequence[int]) -> Tensor:
    """The means of as many windows as the output has elements, whatever the size of `x`.

    Args:
        x: ``[batch, channels, *axes]`` with one to three axes; without batch, `output_size` is one number for
            each axis.
        output_size: the output's size, one number or one for each axis.

    Returns:
        ``[batch, channels, *output_size]``.

    Raises:
        InputRuntimeError: the sizes do not fit `x`.

    As `torch.nn.functional.adaptive_avg_pool2d` and its like.

    >>> adaptive_avg_pool(torch.arange(16.0).reshape(1, 1, 4, 4), 1)
    tensor([[[[7.5000]]]])
    """
    return _of(_ADAPTIVE_AVG, x, output_size)(x, _whole(output_size))  # type: ignore[no-any-return]


@op(
    pair="return_indices",
    check=lambda x, output_size, _: _check("adaptive_max_pool", x, output_size),
    examples=lambda device: _images(device, (1, False), (7, False)),
    # Level without gradients; with them 0.3 to 0.6 times as fast as torch's.
    library_best=lambda *_: True,
)
def adaptive_max_pool(
    x: Tensor, output_size: int | Sequence[int], return_indices: bool = False
) -> Tensor | tuple[Tensor, Tensor]:
    """The maxima of as many windows as the output has elements, whatever the size of `x`.

    Args:
        x: ``[batch, channels, *axes]`` with one to three axes; without batch, `output_size` is one number for
            each axis.
        output_size: the output's size, one number or one for each axis.
        return_indices: return the pair of maxima and their flat positions, int64.

    Returns:
        ``[batch, channels, *output_size]``, or the pair ``(maxima, positions)``.

    Raises:
        InputRuntimeError: the sizes do not fit `x`.

    As `torch.nn.functional.adaptive_max_pool2d` and its like.

    >>> adaptive_max_pool(torch.arange(16.0).reshape(1, 1, 4, 4), 1)
    tensor([[[[15.]]]])
    """
    pool = _of(_ADAPTIVE_MAX, x, output_size)
    return pool(x, _whole(output_size), return_indices=return_indices)  # type: ignore[no-any-return]
