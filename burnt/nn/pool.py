"""Pooling layers for images."""

from __future__ import annotations

import torch
from torch import Tensor

from burnt import kernels
from burnt.module import Module

__all__ = ["AdaptiveAvgPool2d", "AvgPool2d", "MaxPool2d"]


def _of_both(size: int | tuple[int, int]) -> tuple[int, int]:
    """Expand a size to two axes, so that the kernels recognise an image without a batch axis."""
    return (size, size) if isinstance(size, int) else size


class MaxPool2d(Module, torch.nn.MaxPool2d):
    """Max pooling: the maximum of each window.

    Args:
        kernel_size: height and width of the window.
        stride: step between windows; None is `kernel_size` (as in Burn).
        padding: pixels of minus infinity on each side, at most half the window.
        dilation: step between the window's pixels.
        return_indices: return the pair of maxima and their flat positions in the image.
        ceil_mode: keep windows that begin inside the image and end outside.

    Shapes:
        input ``[batch, channels, height, width]`` or without batch; output ``[batch, channels, h, w]`` with
        ``h = (height + 2 padding - dilation (kernel_size - 1) - 1) // stride + 1``.

    >>> import torch
    >>> MaxPool2d(2)(torch.arange(16.0).reshape(1, 1, 4, 4)).flatten()
    tensor([ 5.,  7., 13., 15.])
    """

    kernel_size: int | tuple[int, int]
    stride: int | tuple[int, int]
    padding: int | tuple[int, int]
    dilation: int | tuple[int, int]
    return_indices: bool
    ceil_mode: bool

    def __init__(
        self,
        kernel_size: int | tuple[int, int],
        stride: int | tuple[int, int] | None = None,
        padding: int | tuple[int, int] = 0,
        dilation: int | tuple[int, int] = 1,
        return_indices: bool = False,
        ceil_mode: bool = False,
    ) -> None:
        super().__init__(kernel_size, stride, padding, dilation, return_indices, ceil_mode)

    def forward(self, input: Tensor) -> Tensor:
        """`input` ``[*, channels, height, width]``, pooled."""
        if torch.compiler.is_compiling():
            return super().forward(input)  # type: ignore[no-any-return]
        return kernels.max_pool(  # type: ignore[return-value]
            input,
            _of_both(self.kernel_size),
            _of_both(self.stride),
            self.padding,
            self.dilation,
            self.ceil_mode,
            self.return_indices,
        )


class AvgPool2d(Module, torch.nn.AvgPool2d):
    """Average pooling: the mean of each window.

    Args:
        kernel_size: height and width of the window.
        stride: step between windows; None is `kernel_size` (as in Burn).
        padding: pixels of zero on each side, at most half the window.
        ceil_mode: keep windows that begin inside the image and end outside.
        count_include_pad: whether the padding counts in the mean.
        divisor_override: divide the sum by this instead of by the window's size.

    Shapes:
        input ``[batch, channels, height, width]`` or without batch; output ``[batch, channels, h, w]`` with
        ``h = (height + 2 padding - kernel_size) // stride + 1``.

    >>> import torch
    >>> AvgPool2d(2)(torch.arange(16.0).reshape(1, 1, 4, 4)).flatten()
    tensor([ 2.5000,  4.5000, 10.5000, 12.5000])
    """

    kernel_size: int | tuple[int, int]
    stride: int | tuple[int, int]
    padding: int | tuple[int, int]
    ceil_mode: bool
    count_include_pad: bool
    divisor_override: int | None

    def __init__(
        self,
        kernel_size: int | tuple[int, int],
        stride: int | tuple[int, int] | None = None,
        padding: int | tuple[int, int] = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> None:
        super().__init__(kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)

    def forward(self, input: Tensor) -> Tensor:
        """`input` ``[*, channels, height, width]``, pooled."""
        if torch.compiler.is_compiling():
            return super().forward(input)
        return kernels.avg_pool(
            input,
            _of_both(self.kernel_size),
            _of_both(self.stride),
            self.padding,
            self.ceil_mode,
            self.count_include_pad,
            self.divisor_override,
        )


class AdaptiveAvgPool2d(Module, torch.nn.AdaptiveAvgPool2d):
    """Adaptive average pooling: the output size is fixed, and the windows follow from the input's size.

    Args:
        output_size: height and width of the output; None keeps the input's.

    Shapes:
        input ``[batch, channels, height, width]`` or without batch; output
        ``[batch, channels, *output_size]``.

    >>> import torch
    >>> AdaptiveAvgPool2d(1)(torch.zeros(2, 3, 7, 5)).shape
    torch.Size([2, 3, 1, 1])
    """

    output_size: int | tuple[int | None, int | None] | None

    def __init__(self, output_size: int | tuple[int | None, int | None] | None) -> None:
        super().__init__(output_size)

    def forward(self, input: Tensor) -> Tensor:
        """`input` ``[*, channels, height, width]``, pooled."""
        height, width = self.output_size if isinstance(self.output_size, tuple) else (self.output_size,) * 2
        if torch.compiler.is_compiling() or height is None or width is None:
            return super().forward(input)
        return kernels.adaptive_avg_pool(input, (height, width))
