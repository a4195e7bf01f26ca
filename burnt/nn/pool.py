"""Pooling layers for sequences, images and volumes."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from burnt import kernels
from burnt.errors import InputValueError, ShapeError
from burnt.module import Module


def _per_axis(size: Any, axes: int) -> Any:
    """Expand a size to all axes, so that the kernels recognise an input without a batch axis."""
    return (size,) * axes if isinstance(size, int) else size


class _Pool:
    """What the pools have in common: the number of axes, which the kernels would take from the input."""

    _axes: ClassVar[int]

    def _check(self, input: Tensor) -> None:
        axes = self._axes
        if input.dim() - axes not in (1, 2):
            shape = ", ".join(("L", "H, W", "D, H, W")[axes - 1 : axes])
            raise ShapeError(
                "the input does not fit a pooling layer",
                where=type(self).__name__,
                expected=f"(N, C, {shape}) or (C, {shape})",
                found=tuple(input.shape),
            )


# --- maxima -----------------------------------------------------------------------------------------------


class _MaxPool(_Pool):
    kernel_size: Any
    stride: Any
    padding: Any
    dilation: Any
    return_indices: bool
    ceil_mode: bool

    def forward(self, input: Tensor) -> Tensor:
        """`input` ``[*, channels, *axes]``, pooled; with `return_indices` a pair."""
        self._check(input)
        if torch.compiler.is_compiling():
            return super().forward(input)  # type: ignore[misc, no-any-return]
        size, stride = _per_axis(self.kernel_size, self._axes), _per_axis(self.stride, self._axes)
        rest = self.padding, self.dilation, self.ceil_mode, self.return_indices
        return kernels.max_pool(input, size, stride, *rest)  # type: ignore[return-value]


class MaxPool1d(_MaxPool, Module, torch.nn.MaxPool1d):
    """Max pooling of sequences: the maximum of each window.

    Arguments and errors are those of `MaxPool2d`, for one axis.

    Shapes:
        input ``[batch, channels, length]`` or without batch; output ``[batch, channels, l]``, by
        the formula of `MaxPool2d`.

    >>> import torch
    >>> MaxPool1d(2, return_indices=True)(torch.tensor([[3.0, 1.0, 2.0, 4.0]]))
    (tensor([[3., 4.]]), tensor([[0, 3]]))
    """

    kernel_size: int | tuple[int]
    stride: int | tuple[int]
    padding: int | tuple[int]
    dilation: int | tuple[int]
    return_indices: bool
    ceil_mode: bool
    _axes = 1

    def __init__(
        self,
        kernel_size: int | tuple[int],
        stride: int | tuple[int] | None = None,
        padding: int | tuple[int] = 0,
        dilation: int | tuple[int] = 1,
        return_indices: bool = False,
        ceil_mode: bool = False,
    ) -> None:
        super().__init__(kernel_size, stride, padding, dilation, return_indices, ceil_mode)


class MaxPool2d(_MaxPool, Module, torch.nn.MaxPool2d):
    """Max pooling of images: the maximum of each window.

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

    Raises:
        ShapeError: the input has another number of axes.

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
    _axes = 2

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


class MaxPool3d(_MaxPool, Module, torch.nn.MaxPool3d):
    """Max pooling of volumes: the maximum of each window.

    Arguments and errors are those of `MaxPool2d`, for three axes. (Burn has no such layer.)

    Shapes:
        input ``[batch, channels, depth, height, width]`` or without batch; output
        ``[batch, channels, d, h, w]``, by the formula of `MaxPool2d`.

    >>> import torch
    >>> MaxPool3d(2)(torch.arange(8.0).reshape(1, 1, 2, 2, 2)).flatten()
    tensor([7.])
    """

    kernel_size: int | tuple[int, int, int]
    stride: int | tuple[int, int, int]
    padding: int | tuple[int, int, int]
    dilation: int | tuple[int, int, int]
    return_indices: bool
    ceil_mode: bool
    _axes = 3

    def __init__(
        self,
        kernel_size: int | tuple[int, int, int],
        stride: int | tuple[int, int, int] | None = None,
        padding: int | tuple[int, int, int] = 0,
        dilation: int | tuple[int, int, int] = 1,
        return_indices: bool = False,
        ceil_mode: bool = False,
    ) -> None:
        super().__init__(kernel_size, stride, padding, dilation, return_indices, ceil_mode)


class _MaxUnpool(_Pool):
    def forward(self, input: Tensor, indices: Tensor, output_size: list[int] | None = None) -> Tensor:
        """Put the maxima `input` ``[*, channels, *axes]`` at the `indices` of an output of `output_size`."""
        self._check(input)
        # torch has gradients only for contiguous indices.
        return super().forward(input, indices.contiguous(), output_size)  # type: ignore[misc, no-any-return]


class MaxUnpool1d(_MaxUnpool, Module, torch.nn.MaxUnpool1d, init=False):
    """The inverse of `MaxPool1d` for sequences: each maximum at its position, and zeros elsewhere.

    Arguments and shapes are those of `MaxUnpool2d`, for one axis.

    >>> import torch
    >>> maxima, indices = MaxPool1d(2, return_indices=True)(torch.tensor([[3.0, 1.0, 2.0, 4.0]]))
    >>> MaxUnpool1d(2)(maxima, indices)
    tensor([[3., 0., 0., 4.]])
    """

    _axes = 1


class MaxUnpool2d(_MaxUnpool, Module, torch.nn.MaxUnpool2d, init=False):
    """The inverse of `MaxPool2d` for images: each maximum at its position, and zeros elsewhere.

    Args:
        kernel_size: height and width of the window, those of the `MaxPool2d`, as are the next two.
        stride: step between windows; None is `kernel_size`.
        padding: pixels on each side of the image.

    Shapes:
        input and indices, which ``MaxPool2d(return_indices=True)`` returns, ``[batch, channels, h, w]`` or
        without batch; output ``[batch, channels, height, width]`` with
        ``height = (h - 1) stride - 2 padding + kernel_size``, or the `output_size` of the call.

    >>> import torch
    >>> maxima, indices = MaxPool2d(2, return_indices=True)(torch.arange(4.0).reshape(1, 2, 2))
    >>> MaxUnpool2d(2)(maxima, indices)
    tensor([[[0., 0.],
             [0., 3.]]])
    """

    _axes = 2


class MaxUnpool3d(_MaxUnpool, Module, torch.nn.MaxUnpool3d, init=False):
    """The inverse of `MaxPool3d` for volumes: each maximum at its position, and zeros elsewhere.

    Arguments and shapes are those of `MaxUnpool2d`, for three axes.

    >>> import torch
    >>> maxima, indices = MaxPool3d(2, return_indices=True)(torch.arange(8.0).reshape(1, 2, 2, 2))
    >>> MaxUnpool3d(2)(maxima, indices).flatten()
    tensor([0., 0., 0., 0., 0., 0., 0., 7.])
    """

    _axes = 3


# --- means ------------------------------------------------------------------------------------------------


class _AvgPool(_Pool):
    kernel_size: Any
    stride: Any
    padding: Any
    ceil_mode: bool
    count_include_pad: bool
    divisor_override: int | None = None

    def forward(self, input: Tensor) -> Tensor:
        """`input` ``[*, channels, *axes]``, pooled."""
        self._check(input)
        if torch.compiler.is_compiling():
            return super().forward(input)  # type: ignore[misc, no-any-return]
        size, stride = _per_axis(self.kernel_size, self._axes), _per_axis(self.stride, self._axes)
        rest = self.padding, self.ceil_mode, self.count_include_pad, self.divisor_override
        return kernels.avg_pool(input, size, stride, *rest)


class AvgPool1d(_AvgPool, Module, torch.nn.AvgPool1d):
    """Average pooling of sequences: the mean of each window.

    Arguments and errors are those of `AvgPool2d`, for one axis, without `divisor_override`.

    Shapes:
        input ``[batch, channels, length]`` or without batch; output ``[batch, channels, l]``, by
        the formula of `AvgPool2d`.

    >>> import torch
    >>> AvgPool1d(2)(torch.tensor([[3.0, 1.0, 2.0, 4.0]]))
    tensor([[2., 3.]])
    """

    kernel_size: int | tuple[int]
    stride: int | tuple[int]
    padding: int | tuple[int]
    ceil_mode: bool
    count_include_pad: bool
    _axes = 1

    def __init__(
        self,
        kernel_size: int | tuple[int],
        stride: int | tuple[int] | None = None,
        padding: int | tuple[int] = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> None:
        super().__init__(kernel_size, stride, padding, ceil_mode, count_include_pad)  # type: ignore[arg-type]


class AvgPool2d(_AvgPool, Module, torch.nn.AvgPool2d):
    """Average pooling of images: the mean of each window.

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

    Raises:
        ShapeError: the input has another number of axes.

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
    _axes = 2

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


class AvgPool3d(_AvgPool, Module, torch.nn.AvgPool3d):
    """Average pooling of volumes: the mean of each window.

    Arguments and errors are those of `AvgPool2d`, for three axes. (Burn has no such layer.)

    Shapes:
        input ``[batch, channels, depth, height, width]`` or without batch; output
        ``[batch, channels, d, h, w]``, by the formula of `AvgPool2d`.

    >>> import torch
    >>> AvgPool3d(2)(torch.arange(8.0).reshape(1, 1, 2, 2, 2)).flatten()
    tensor([3.5000])
    """

    kernel_size: int | tuple[int, int, int]
    stride: int | tuple[int, int, int]
    padding: int | tuple[int, int, int]
    ceil_mode: bool
    count_include_pad: bool
    divisor_override: int | None
    _axes = 3

    def __init__(
        self,
        kernel_size: int | tuple[int, int, int],
        stride: int | tuple[int, int, int] | None = None,
        padding: int | tuple[int, int, int] = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> None:
        super().__init__(kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)


# --- norms of windows -------------------------------------------------------------------------------------


def _check_norm_type(layer: str, norm_type: float) -> None:
    if not 0 < norm_type < math.inf:
        raise InputValueError(
            "the norm of a pooling layer is not valid",
            where=layer,
            expected="norm_type above 0, and finite",
            found=norm_type,
            hint="of norm_type infinity, take MaxPool of the absolute values"
            if norm_type == math.inf
            else None,
        )


class _LpPool(_Pool):
    norm_type: float
    kernel_size: Any
    stride: Any
    ceil_mode: bool

    def forward(self, input: Tensor) -> Tensor:
        """`input` ``[*, channels, *axes]``, pooled."""
        self._check(input)
        if torch.compiler.is_compiling():
            return super().forward(input)  # type: ignore[misc, no-any-return]
        size = _per_axis(self.kernel_size, self._axes)
        stride = size if self.stride is None else _per_axis(self.stride, self._axes)
        mean = kernels.avg_pool(input.pow(self.norm_type), size, stride, 0, self.ceil_mode, True, None)
        # As torch has it: with no gradient where a sum is 0.
        return (torch.sign(mean) * F.relu(mean.abs())).mul(math.prod(size)).pow(1.0 / self.norm_type)


class LpPool1d(_LpPool, Module, torch.nn.LPPool1d):
    """Power-average pooling of sequences: the p-norm of each window.

    Arguments, shapes and errors are those of `LpPool2d`, for one axis.

    >>> import torch
    >>> LpPool1d(2, 2)(torch.tensor([[3.0, 4.0, 6.0, 8.0]]))
    tensor([[ 5., 10.]])
    """

    norm_type: float
    kernel_size: int | tuple[int]
    stride: int | tuple[int] | None  # type: ignore[assignment]
    ceil_mode: bool
    _axes = 1

    def __init__(
        self,
        norm_type: float,
        kernel_size: int | tuple[int],
        stride: int | tuple[int] | None = None,
        ceil_mode: bool = False,
    ) -> None:
        _check_norm_type("LpPool1d", norm_type)
        super().__init__(norm_type, kernel_size, stride, ceil_mode)


class LpPool2d(_LpPool, Module, torch.nn.LPPool2d):
    r"""Power-average pooling of images: the p-norm of each window.

    .. math:: y = \left(\sum_{x \in \text{window}} x^p\right)^{1/p}

    Args:
        norm_type: :math:`p`, above 0.
        kernel_size: height and width of the window.
        stride: step between windows; None is `kernel_size`.
        ceil_mode: keep windows that begin inside the image and end outside.

    Shapes:
        input ``[batch, channels, height, width]`` or without batch; output ``[batch, channels, h, w]`` with
        ``h = (height - kernel_size) // stride + 1``.

    Raises:
        InputValueError: `norm_type` is not above 0, or is infinite.
        ShapeError: the input has another number of axes.

    As :class:`torch.nn.LPPool2d`, also in that a negative sum, as odd powers may have, gives NaN, and in that
    a window cut off by the end in `ceil_mode` counts as a whole one. (Burn has no such layer.)

    >>> import torch
    >>> LpPool2d(2, 2)(torch.ones(1, 2, 2))
    tensor([[[2.]]])
    """

    norm_type: float
    kernel_size: int | tuple[int, int]
    stride: int | tuple[int, int] | None  # type: ignore[assignment]
    ceil_mode: bool
    _axes = 2

    def __init__(
        self,
        norm_type: float,
        kernel_size: int | tuple[int, int],
        stride: int | tuple[int, int] | None = None,
        ceil_mode: bool = False,
    ) -> None:
        _check_norm_type("LpPool2d", norm_type)
        super().__init__(norm_type, kernel_size, stride, ceil_mode)


class LpPool3d(_LpPool, Module, torch.nn.LPPool3d):
    """Power-average pooling of volumes: the p-norm of each window.

    Arguments, shapes and errors are those of `LpPool2d`, for three axes.

    >>> import torch
    >>> LpPool3d(3, 2)(torch.ones(1, 2, 2, 2))
    tensor([[[[2.]]]])
    """

    norm_type: float
    kernel_size: int | tuple[int, int, int]
    stride: int | tuple[int, int, int] | None  # type: ignore[assignment]
    ceil_mode: bool
    _axes = 3

    def __init__(
        self,
        norm_type: float,
        kernel_size: int | tuple[int, int, int],
        stride: int | tuple[int, int, int] | None = None,
        ceil_mode: bool = False,
    ) -> None:
        _check_norm_type("LpPool3d", norm_type)
        super().__init__(norm_type, kernel_size, stride, ceil_mode)


# --- adaptive ---------------------------------------------------------------------------------------------


class _AdaptiveAvgPool(_Pool):
    output_size: Any

    def forward(self, input: Tensor) -> Tensor:
        """`input` ``[*, channels, *axes]``, pooled."""
        self._check(input)
        sizes = _per_axis(self.output_size, self._axes)
        if torch.compiler.is_compiling() or sizes is None or None in sizes:
            return super().forward(input)  # type: ignore[misc, no-any-return]
        return kernels.adaptive_avg_pool(input, sizes)


class _AdaptiveMaxPool(_Pool):
    output_size: Any
    return_indices: bool

    def forward(self, input: Tensor) -> Tensor:
        """`input` ``[*, channels, *axes]``, pooled; with `return_indices` a pair."""
        self._check(input)
        sizes = _per_axis(self.output_size, self._axes)
        if torch.compiler.is_compiling() or sizes is None or None in sizes:
            return super().forward(input)  # type: ignore[misc, no-any-return]
        return kernels.adaptive_max_pool(input, sizes, self.return_indices)  # type: ignore[return-value]


class AdaptiveAvgPool1d(_AdaptiveAvgPool, Module, torch.nn.AdaptiveAvgPool1d):
    """Adaptive average pooling of sequences: the output's size is fixed, the windows follow.

    Args:
        output_size: length of the output.

    Shapes:
        input ``[batch, channels, length]`` or without batch; output
        ``[batch, channels, *output_size]``.

    >>> import torch
    >>> AdaptiveAvgPool1d(2)(torch.tensor([[3.0, 1.0, 2.0, 4.0]]))
    tensor([[2., 3.]])
    """

    output_size: int | tuple[int]
    _axes = 1

    def __init__(self, output_size: int | tuple[int]) -> None:
        super().__init__(output_size)


class AdaptiveAvgPool2d(_AdaptiveAvgPool, Module, torch.nn.AdaptiveAvgPool2d):
    """Adaptive average pooling of images: the output's size is fixed, the windows follow.

    Args:
        output_size: height and width of the output; None keeps the input's.

    Shapes:
        input ``[batch, channels, height, width]`` or without batch; output
        ``[batch, channels, *output_size]``.

    Raises:
        ShapeError: the input has another number of axes.

    >>> import torch
    >>> AdaptiveAvgPool2d(1)(torch.zeros(2, 3, 7, 5)).shape
    torch.Size([2, 3, 1, 1])
    """

    output_size: int | tuple[int | None, int | None] | None
    _axes = 2

    def __init__(self, output_size: int | tuple[int | None, int | None] | None) -> None:
        super().__init__(output_size)


class AdaptiveAvgPool3d(_AdaptiveAvgPool, Module, torch.nn.AdaptiveAvgPool3d):
    """Adaptive average pooling of volumes: the output's size is fixed, the windows follow.

    Args:
        output_size: depth, height and width of the output; None keeps the input's.

    Shapes:
        input ``[batch, channels, depth, height, width]`` or without batch; output
        ``[batch, channels, *output_size]``.

    >>> import torch
    >>> AdaptiveAvgPool3d((1, None, 2))(torch.zeros(2, 3, 7, 5, 4)).shape
    torch.Size([2, 3, 1, 5, 2])
    """

    output_size: int | tuple[int | None, int | None, int | None] | None
    _axes = 3

    def __init__(self, output_size: int | tuple[int | None, int | None, int | None] | None) -> None:
        super().__init__(output_size)


class AdaptiveMaxPool1d(_AdaptiveMaxPool, Module, torch.nn.AdaptiveMaxPool1d):
    """Adaptive max pooling of sequences: the output's size is fixed, the windows follow.

    Args:
        output_size: length of the output.
        return_indices: return the pair of maxima and their flat positions in the axes.

    Shapes:
        input ``[batch, channels, length]`` or without batch; output
        ``[batch, channels, *output_size]``.

    (Burn has no such layer.)

    >>> import torch
    >>> AdaptiveMaxPool1d(2)(torch.tensor([[3.0, 1.0, 2.0, 4.0]]))
    tensor([[3., 4.]])
    """

    output_size: int | tuple[int]
    return_indices: bool
    _axes = 1

    def __init__(self, output_size: int | tuple[int], return_indices: bool = False) -> None:
        super().__init__(output_size, return_indices)


class AdaptiveMaxPool2d(_AdaptiveMaxPool, Module, torch.nn.AdaptiveMaxPool2d):
    """Adaptive max pooling of images: the output's size is fixed, the windows follow.

    Args:
        output_size: height and width of the output; None keeps the input's.
        return_indices: return the pair of maxima and their flat positions in the axes.

    Shapes:
        input ``[batch, channels, height, width]`` or without batch; output
        ``[batch, channels, *output_size]``.

    Raises:
        ShapeError: the input has another number of axes.

    (Burn has no such layer.)

    >>> import torch
    >>> AdaptiveMaxPool2d(1)(torch.zeros(2, 3, 7, 5)).shape
    torch.Size([2, 3, 1, 1])
    """

    output_size: int | tuple[int | None, int | None] | None
    return_indices: bool
    _axes = 2

    def __init__(
        self, output_size: int | tuple[int | None, int | None] | None, return_indices: bool = False
    ) -> None:
        super().__init__(output_size, return_indices)


class AdaptiveMaxPool3d(_AdaptiveMaxPool, Module, torch.nn.AdaptiveMaxPool3d):
    """Adaptive max pooling of volumes: the output's size is fixed, the windows follow.

    Args:
        output_size: depth, height and width of the output; None keeps the input's.
        return_indices: return the pair of maxima and their flat positions in the axes.

    Shapes:
        input ``[batch, channels, depth, height, width]`` or without batch; output
        ``[batch, channels, *output_size]``.

    (Burn has no such layer.)

    >>> import torch
    >>> AdaptiveMaxPool3d((1, None, 2))(torch.zeros(2, 3, 7, 5, 4)).shape
    torch.Size([2, 3, 1, 5, 2])
    """

    output_size: int | tuple[int | None, int | None, int | None] | None
    return_indices: bool
    _axes = 3

    def __init__(
        self,
        output_size: int | tuple[int | None, int | None, int | None] | None,
        return_indices: bool = False,
    ) -> None:
        super().__init__(output_size, return_indices)
