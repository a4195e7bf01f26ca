"""Pooling layers for sequences, images and volumes: for each kind a base of all ranks, and the ranks."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from burnt import kernels
from burnt.errors import ShapeError
from burnt.module import Module
from burnt.nn.checks import require

Size = TypeVar("Size", bound=tuple[int, ...])
"""A number for each axis."""

OutputSize = TypeVar("OutputSize", bound=int | tuple[int | None, ...] | None)
"""A number for all axes or for each, in which None is the input's."""


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


def max_pool(layer: Any, input: Tensor, axes: int) -> Tensor:
    """Compute the forward of a MaxPool layer, burnt's or torch's, of so many axes."""
    size, stride = _per_axis(layer.kernel_size, axes), _per_axis(layer.stride, axes)
    rest = layer.padding, layer.dilation, layer.ceil_mode, layer.return_indices
    return kernels.max_pool.in_layer(input, size, stride, *rest)  # type: ignore[return-value]


class _MaxPool(_Pool, Module, Generic[Size]):
    kernel_size: int | Size
    stride: int | Size
    padding: int | Size
    dilation: int | Size
    return_indices: bool
    ceil_mode: bool

    def __init__(
        self,
        kernel_size: int | Size,
        stride: int | Size | None = None,
        padding: int | Size = 0,
        dilation: int | Size = 1,
        return_indices: bool = False,
        ceil_mode: bool = False,
    ) -> None:
        super().__init__(kernel_size, stride, padding, dilation, return_indices, ceil_mode)

    def forward(self, input: Tensor) -> Tensor:
        """`input` ``[*, channels, *axes]``, pooled; with `return_indices` a pair."""
        self._check(input)
        return max_pool(self, input, self._axes)


class MaxPool1d(_MaxPool[tuple[int]], torch.nn.MaxPool1d, init=False):  # type: ignore[misc]
    """Max pooling of sequences: the maximum of each window.

    As `MaxPool2d`, for ``[batch, channels, length]`` or without batch; output ``[batch, channels, l]``.

    >>> MaxPool1d(2, return_indices=True)(torch.tensor([[3.0, 1.0, 2.0, 4.0]]))
    (tensor([[3., 4.]]), tensor([[0, 3]]))
    """

    _axes = 1


class MaxPool2d(_MaxPool[tuple[int, int]], torch.nn.MaxPool2d, init=False):  # type: ignore[misc]
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

    >>> MaxPool2d(2)(torch.arange(16.0).reshape(1, 1, 4, 4)).flatten()
    tensor([ 5.,  7., 13., 15.])
    """

    _axes = 2


class MaxPool3d(_MaxPool[tuple[int, int, int]], torch.nn.MaxPool3d, init=False):  # type: ignore[misc]
    """Max pooling of volumes: the maximum of each window.

    As `MaxPool2d`, for ``[batch, channels, depth, height, width]`` or without batch; output
    ``[batch, channels, d, h, w]``. (Burn has no such layer.)

    >>> MaxPool3d(2)(torch.arange(8.0).reshape(1, 1, 2, 2, 2)).flatten()
    tensor([7.])
    """

    _axes = 3


class _MaxUnpool(_Pool, Module, Generic[Size]):
    def __init__(
        self, kernel_size: int | Size, stride: int | Size | None = None, padding: int | Size = 0
    ) -> None:
        super().__init__(kernel_size, stride, padding)

    def forward(self, input: Tensor, indices: Tensor, output_size: list[int] | None = None) -> Tensor:
        """Put the maxima `input` ``[*, channels, *axes]`` at the `indices` of an output of `output_size`."""
        self._check(input)
        # torch has gradients only for contiguous indices.
        return super().forward(input, indices.contiguous(), output_size)  # type: ignore[no-any-return]


class MaxUnpool1d(_MaxUnpool[tuple[int]], torch.nn.MaxUnpool1d, init=False):
    """The inverse of `MaxPool1d` for sequences: each maximum at its position, and zeros elsewhere.

    Arguments and shapes are as in `MaxUnpool2d`, for one axis.

    >>> maxima, indices = MaxPool1d(2, return_indices=True)(torch.tensor([[3.0, 1.0, 2.0, 4.0]]))
    >>> MaxUnpool1d(2)(maxima, indices)
    tensor([[3., 0., 0., 4.]])
    """

    _axes = 1


class MaxUnpool2d(_MaxUnpool[tuple[int, int]], torch.nn.MaxUnpool2d, init=False):
    """The inverse of `MaxPool2d` for images: each maximum at its position, and zeros elsewhere.

    Args:
        kernel_size: height and width of the window, as in the `MaxPool2d`, like the next two.
        stride: step between windows; None is `kernel_size`.
        padding: pixels on each side of the image.

    Shapes:
        input and indices, which ``MaxPool2d(return_indices=True)`` returns, ``[batch, channels, h, w]`` or
        without batch; output ``[batch, channels, height, width]`` with
        ``height = (h - 1) stride - 2 padding + kernel_size``, or the `output_size` of the call.

    >>> maxima, indices = MaxPool2d(2, return_indices=True)(torch.arange(4.0).reshape(1, 2, 2))
    >>> MaxUnpool2d(2)(maxima, indices)
    tensor([[[0., 0.],
             [0., 3.]]])
    """

    _axes = 2


class MaxUnpool3d(_MaxUnpool[tuple[int, int, int]], torch.nn.MaxUnpool3d, init=False):
    """The inverse of `MaxPool3d` for volumes: each maximum at its position, and zeros elsewhere.

    Arguments and shapes are as in `MaxUnpool2d`, for three axes.

    >>> maxima, indices = MaxPool3d(2, return_indices=True)(torch.arange(8.0).reshape(1, 2, 2, 2))
    >>> MaxUnpool3d(2)(maxima, indices).flatten()
    tensor([0., 0., 0., 0., 0., 0., 0., 7.])
    """

    _axes = 3


# --- means ------------------------------------------------------------------------------------------------


def avg_pool(layer: Any, input: Tensor, axes: int) -> Tensor:
    """Compute the forward of an AvgPool layer, burnt's or torch's, of so many axes."""
    size, stride = _per_axis(layer.kernel_size, axes), _per_axis(layer.stride, axes)
    divisor = getattr(layer, "divisor_override", None)  # sequences have none
    return kernels.avg_pool.in_layer(
        input, size, stride, layer.padding, layer.ceil_mode, layer.count_include_pad, divisor
    )


class _AvgPool(_Pool, Module, Generic[Size]):
    kernel_size: int | Size
    stride: int | Size
    padding: int | Size
    ceil_mode: bool
    count_include_pad: bool
    divisor_override: int | None

    def __init__(
        self,
        kernel_size: int | Size,
        stride: int | Size | None = None,
        padding: int | Size = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> None:
        super().__init__(kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)

    def forward(self, input: Tensor) -> Tensor:
        """`input` ``[*, channels, *axes]``, pooled."""
        self._check(input)
        return avg_pool(self, input, self._axes)


class AvgPool1d(_Pool, Module, torch.nn.AvgPool1d):
    """Average pooling of sequences: the mean of each window.

    As `AvgPool2d`, without `divisor_override`, for ``[batch, channels, length]`` or without batch; output
    ``[batch, channels, l]``.

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

    def forward(self, input: Tensor) -> Tensor:
        """`input` ``[*, channels, length]``, pooled."""
        self._check(input)
        return avg_pool(self, input, 1)


class AvgPool2d(_AvgPool[tuple[int, int]], torch.nn.AvgPool2d, init=False):
    """Average pooling of images: the mean of each window.

    Args:
        padding: pixels of zero on each side, at most half the window.
        count_include_pad: whether the padding counts in the mean.
        divisor_override: divide the sum by this instead of by the window's size.

    Other arguments are as in `MaxPool2d`, without `dilation` and `return_indices`.

    Shapes:
        input ``[batch, channels, height, width]`` or without batch; output ``[batch, channels, h, w]`` with
        ``h = (height + 2 padding - kernel_size) // stride + 1``.

    Raises:
        ShapeError: the input has another number of axes.

    >>> AvgPool2d(2)(torch.arange(16.0).reshape(1, 1, 4, 4)).flatten()
    tensor([ 2.5000,  4.5000, 10.5000, 12.5000])
    """

    _axes = 2


class AvgPool3d(_AvgPool[tuple[int, int, int]], torch.nn.AvgPool3d, init=False):
    """Average pooling of volumes: the mean of each window.

    As `AvgPool2d`, for ``[batch, channels, depth, height, width]`` or without batch; output
    ``[batch, channels, d, h, w]``. (Burn has no such layer.)

    >>> AvgPool3d(2)(torch.arange(8.0).reshape(1, 1, 2, 2, 2)).flatten()
    tensor([3.5000])
    """

    _axes = 3


# --- norms of windows -------------------------------------------------------------------------------------


class _LpPool(_Pool, Module, Generic[Size]):
    norm_type: float
    kernel_size: int | Size
    stride: int | Size | None
    ceil_mode: bool

    def __init__(
        self,
        norm_type: float,
        kernel_size: int | Size,
        stride: int | Size | None = None,
        ceil_mode: bool = False,
    ) -> None:
        hint = "of infinity, take MaxPool of the absolute values" if norm_type == math.inf else None
        is_valid = 0 < norm_type < math.inf
        require(is_valid, type(self).__name__, "norm_type", "above 0, and finite", norm_type, hint=hint)
        super().__init__(norm_type, kernel_size, stride, ceil_mode)

    def forward(self, input: Tensor) -> Tensor:
        """`input` ``[*, channels, *axes]``, pooled."""
        self._check(input)
        size = _per_axis(self.kernel_size, self._axes)
        stride = size if self.stride is None else _per_axis(self.stride, self._axes)
        powers = input.pow(self.norm_type)
        mean = kernels.avg_pool.in_layer(powers, size, stride, 0, self.ceil_mode, True, None)
        # As torch has it: with no gradient where a sum is 0.
        return (torch.sign(mean) * F.relu(mean.abs())).mul(math.prod(size)).pow(1.0 / self.norm_type)


class LpPool1d(_LpPool[tuple[int]], torch.nn.LPPool1d, init=False):  # type: ignore[misc]
    """Power-average pooling of sequences: the p-norm of each window.

    Arguments, shapes and errors are as in `LpPool2d`, for one axis.

    >>> LpPool1d(2, 2)(torch.tensor([[3.0, 4.0, 6.0, 8.0]]))
    tensor([[ 5., 10.]])
    """

    _axes = 1


class LpPool2d(_LpPool[tuple[int, int]], torch.nn.LPPool2d, init=False):  # type: ignore[misc]
    r"""Power-average pooling of images: the p-norm of each window.

    .. math:: y = \left(\sum_{x \in \text{window}} x^p\right)^{1/p}

    Args:
        norm_type: exponent :math:`p` of the norm, above 0.

    `kernel_size`, `stride` and `ceil_mode` are as in `MaxPool2d`.

    Shapes:
        input ``[batch, channels, height, width]`` or without batch; output ``[batch, channels, h, w]`` with
        ``h = (height - kernel_size) // stride + 1``.

    Raises:
        InputValueError: `norm_type` is not above 0, or is infinite.
        ShapeError: the input has another number of axes.

    As :class:`torch.nn.LPPool2d`, also in that a negative sum, as odd powers may have, gives NaN, and in that
    a window cut off by the end in `ceil_mode` counts as a whole one. (Burn has no such layer.)

    >>> LpPool2d(2, 2)(torch.ones(1, 2, 2))
    tensor([[[2.]]])
    """

    _axes = 2


class LpPool3d(_LpPool[tuple[int, int, int]], torch.nn.LPPool3d, init=False):  # type: ignore[misc]
    """Power-average pooling of volumes: the p-norm of each window.

    Arguments, shapes and errors are as in `LpPool2d`, for three axes.

    >>> LpPool3d(3, 2)(torch.ones(1, 2, 2, 2))
    tensor([[[[2.]]]])
    """

    _axes = 3


# --- adaptive ---------------------------------------------------------------------------------------------


def adaptive_size(layer: Any, input: Tensor, axes: int) -> tuple[int, ...]:
    """Return the output's size of an adaptive pool, in which None is the input's size."""
    given = layer.output_size
    sizes = given if isinstance(given, tuple | list) else (given,) * axes
    if None not in sizes:
        return tuple(sizes)
    pairs = zip(sizes, input.shape[-axes:], strict=True)
    return tuple(kept if size is None else size for size, kept in pairs)


class _AdaptiveAvgPool(_Pool, Module, Generic[OutputSize]):
    output_size: OutputSize

    def __init__(self, output_size: OutputSize) -> None:
        super().__init__(output_size)

    def forward(self, input: Tensor) -> Tensor:
        """`input` ``[*, channels, *axes]``, pooled."""
        self._check(input)
        return kernels.adaptive_avg_pool.in_layer(input, adaptive_size(self, input, self._axes))


class _AdaptiveMaxPool(_Pool, Module, Generic[OutputSize]):
    output_size: OutputSize
    return_indices: bool

    def __init__(self, output_size: OutputSize, return_indices: bool = False) -> None:
        super().__init__(output_size, return_indices)

    def forward(self, input: Tensor) -> Tensor:
        """`input` ``[*, channels, *axes]``, pooled; with `return_indices` a pair."""
        self._check(input)
        sizes = adaptive_size(self, input, self._axes)
        return kernels.adaptive_max_pool.in_layer(input, sizes, self.return_indices)  # type: ignore[return-value]


class AdaptiveAvgPool1d(_AdaptiveAvgPool[int | tuple[int]], torch.nn.AdaptiveAvgPool1d, init=False):  # type: ignore[misc]
    """Adaptive average pooling of sequences: the output's size is fixed, the windows follow.

    As `AdaptiveAvgPool2d`, for ``[batch, channels, length]`` or without batch; output
    ``[batch, channels, *output_size]``.

    >>> AdaptiveAvgPool1d(2)(torch.tensor([[3.0, 1.0, 2.0, 4.0]]))
    tensor([[2., 3.]])
    """

    _axes = 1


class AdaptiveAvgPool2d(  # type: ignore[misc]
    _AdaptiveAvgPool[int | tuple[int | None, int | None] | None], torch.nn.AdaptiveAvgPool2d, init=False
):
    """Adaptive average pooling of images: the output's size is fixed, the windows follow.

    Args:
        output_size: height and width of the output; None keeps the input's.

    Shapes:
        input ``[batch, channels, height, width]`` or without batch; output
        ``[batch, channels, *output_size]``.

    Raises:
        ShapeError: the input has another number of axes.

    >>> AdaptiveAvgPool2d(1)(torch.zeros(2, 3, 7, 5)).shape
    torch.Size([2, 3, 1, 1])
    """

    _axes = 2


class AdaptiveAvgPool3d(  # type: ignore[misc]
    _AdaptiveAvgPool[int | tuple[int | None, int | None, int | None] | None],
    torch.nn.AdaptiveAvgPool3d,
    init=False,
):
    """Adaptive average pooling of volumes: the output's size is fixed, the windows follow.

    As `AdaptiveAvgPool2d`, for ``[batch, channels, depth, height, width]`` or without batch; output
    ``[batch, channels, *output_size]``.

    >>> AdaptiveAvgPool3d((1, None, 2))(torch.zeros(2, 3, 7, 5, 4)).shape
    torch.Size([2, 3, 1, 5, 2])
    """

    _axes = 3


class AdaptiveMaxPool1d(_AdaptiveMaxPool[int | tuple[int]], torch.nn.AdaptiveMaxPool1d, init=False):  # type: ignore[misc]
    """Adaptive max pooling of sequences: the output's size is fixed, the windows follow.

    As `AdaptiveMaxPool2d`, for ``[batch, channels, length]`` or without batch; output
    ``[batch, channels, *output_size]``.

    >>> AdaptiveMaxPool1d(2)(torch.tensor([[3.0, 1.0, 2.0, 4.0]]))
    tensor([[3., 4.]])
    """

    _axes = 1


class AdaptiveMaxPool2d(  # type: ignore[misc]
    _AdaptiveMaxPool[int | tuple[int | None, int | None] | None], torch.nn.AdaptiveMaxPool2d, init=False
):
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

    >>> AdaptiveMaxPool2d(1)(torch.zeros(2, 3, 7, 5)).shape
    torch.Size([2, 3, 1, 1])
    """

    _axes = 2


class AdaptiveMaxPool3d(  # type: ignore[misc]
    _AdaptiveMaxPool[int | tuple[int | None, int | None, int | None] | None],
    torch.nn.AdaptiveMaxPool3d,
    init=False,
):
    """Adaptive max pooling of volumes: the output's size is fixed, the windows follow.

    As `AdaptiveMaxPool2d`, for ``[batch, channels, depth, height, width]`` or without batch; output
    ``[batch, channels, *output_size]``.

    >>> AdaptiveMaxPool3d((1, None, 2))(torch.zeros(2, 3, 7, 5, 4)).shape
    torch.Size([2, 3, 1, 5, 2])
    """

    _axes = 3
