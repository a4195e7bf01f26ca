"""Convolutions of sequences, images and volumes; `conv_transpose` has the transposed ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from burnt import _torch, kernels
from burnt.errors import InputValueError
from burnt.module import Module
from burnt.nn.misfit import FAILURES, input_error

LARGE = 1 << 20
"""Multiplications; below, selecting a faster convolution than torch's takes too long."""

Sides = int | tuple[int, int]
"""The padding of an axis: on both sides, or before and after."""

_CONV = (F.conv1d, F.conv2d, F.conv3d)


def sides_of(padding: Iterable[Sides]) -> list[tuple[int, int]]:
    """Return the padding of each axis as a pair (before, after)."""
    return [(side, side) if isinstance(side, int) else side for side in padding]


def has_uneven_sides(padding: str | Sequence[Sides]) -> bool:
    """Whether an axis has different padding on its two sides, which torch's convolutions do not take."""
    return any(isinstance(side, tuple) for side in padding)


def check_sizes(layer: Any, **sizes: int | Sequence[int]) -> None:
    """Check that each size of a convolution is a number, or one for each axis, and large enough.

    Raises:
        InputValueError: one is not.
    """
    axes: int = layer._axes
    for name, given in sizes.items():
        least = int(name != "output_padding")
        numbers = (given,) * axes if isinstance(given, int) else given
        if len(numbers) != axes or any(size < least for size in numbers):
            raise _size_error(layer, name, f"a number of at least {least}, or {axes} of them", given)


def check_groups(layer: Any, in_channels: int, out_channels: int, groups: int) -> None:
    """Check that the channels of a convolution can be split into groups.

    Raises:
        InputValueError: they cannot.
    """
    if groups < 1 or in_channels % groups or out_channels % groups:
        raise InputValueError(
            "the channels of a convolution cannot be split into groups",
            where=f"{type(layer).__name__}({in_channels}, {out_channels}, ...)",
            expected=f"groups, a divisor of {in_channels} and {out_channels}",
            found=groups,
        )


def checked_padding(layer: Any, padding: str | int | Sequence[Sides]) -> str | tuple[Sides, ...]:
    """Return a padding as torch's layers keep it, and uneven sides as pairs.

    Raises:
        InputValueError: there is no such padding.
    """
    if padding in ("same", "valid"):
        return str(padding)
    axes: int = layer._axes
    given = (padding,) * axes if isinstance(padding, int) else padding
    is_known = not isinstance(given, str) and len(given) == axes
    pairs = sides_of(given) if is_known else []  # type: ignore[arg-type]
    if not is_known or any(len(pair) != 2 or min(pair) < 0 for pair in pairs):
        expected = "'valid', 'same', a number of at least 0, or for each axis a number or a pair"
        raise _size_error(layer, "padding", f"{expected} (before, after)", padding)
    return tuple(before if before == after else (before, after) for before, after in pairs)


def _size_error(layer: Any, name: str, expected: str, found: object) -> InputValueError:
    return InputValueError(
        f"the {name} of a convolution is not valid",
        where=type(layer).__name__,
        expected=expected,
        found=repr(found),
    )


class ConvBase:
    """The forward of all ranks. The attributes are torch's, but for a `padding` with pairs."""

    _axes: ClassVar[int]
    in_channels: int
    kernel_size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: Any
    dilation: tuple[int, ...]
    groups: int
    padding_mode: Literal["zeros", "reflect", "replicate", "circular"]
    weight: Tensor
    bias: Tensor | None

    def forward(self, input: Tensor) -> Tensor:
        """Convolve ``[batch, in_channels, *axes]``, or one sample without batch axis."""
        try:
            return self._convolve(input)
        except FAILURES as error:
            if (better := input_error(self, input)) is None:
                raise
            raise better from error

    def _convolve(self, input: Tensor) -> Tensor:
        weight = self.weight  # read once, since a parametrization computes it
        input, padding = self._pad(input)
        sizes: Any = self.stride, padding, self.dilation, self.groups
        if (
            torch.compiler.is_compiling()
            or not _torch.is_plain_call()
            or input.numel() * weight.numel() // self.in_channels < LARGE
            or weight.is_complex()
        ):
            return _CONV[weight.dim() - 3](input, weight, self.bias, *sizes)
        return kernels.conv(input, weight, self.bias, None, None, None, *sizes)

    def _pad(self, input: Tensor) -> tuple[Tensor, Any]:
        """Return the input and the padding left to the kernel: zeros, as many on both sides of an axis."""
        padding = self._same(input) if self.padding == "same" else self.padding
        if padding == "valid":
            return input, 0
        if self.padding_mode == "zeros" and not has_uneven_sides(padding):
            return input, padding
        mode = "constant" if self.padding_mode == "zeros" else self.padding_mode
        return F.pad(input, [size for pair in reversed(sides_of(padding)) for size in pair], mode), 0

    def _same(self, input: Tensor) -> list[Sides]:
        """Return the sides that make ``ceil(size / stride)`` outputs; of an odd number the end gets more."""
        sides: list[Sides] = []
        sizes = input.shape[-len(self.stride) :]
        for size, kernel, step, dilate in zip(
            sizes, self.kernel_size, self.stride, self.dilation, strict=False
        ):
            added = dilate * (kernel - 1)
            if step > 1:
                # The last window begins at the last multiple of the stride.
                added = max(added - (size - 1) % step, 0)
            # With a stride, whether both are equal depends on the size, which is open in an exported program.
            is_even = step == 1 and added % 2 == 0
            sides.append(added // 2 if is_even else (added // 2, added - added // 2))
        return sides


class Conv1d(ConvBase, Module, torch.nn.Conv1d):
    r"""Cross-correlation of sequences with learned kernels.

    .. math:: y_{n,o} = b_o + \sum_i w_{o,i} \star x_{n,i}

    Arguments and errors are those of `Conv2d`, for one axis; ``padding=((2, 0),)`` pads only the past, for a
    causal convolution with a kernel of 3.

    Shapes:
        input ``[batch, in_channels, length]`` or without batch; output ``[batch, out_channels, l]`` with
        ``l = (length + before + after - dilation (kernel_size - 1) - 1) // stride + 1``; ``weight`` is
        ``[out_channels, in_channels / groups, kernel_size]``, ``bias`` ``[out_channels]``.

    >>> import torch
    >>> Conv1d(1, 8, 3, padding=((2, 0),))(torch.zeros(2, 1, 10)).shape
    torch.Size([2, 8, 10])
    """

    _axes = 1

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int],
        stride: int | tuple[int] = 1,
        padding: Literal["valid", "same"] | int | tuple[Sides] = 0,
        dilation: int | tuple[int] = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: Literal["zeros", "reflect", "replicate", "circular"] = "zeros",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        check_sizes(self, kernel_size=kernel_size, stride=stride, dilation=dilation)
        check_groups(self, in_channels, out_channels, groups)
        rest: Any = kernel_size, stride, 0, dilation, groups, bias, padding_mode, device, dtype
        super().__init__(in_channels, out_channels, *rest)
        self.padding = checked_padding(self, padding)


class Conv2d(ConvBase, Module, torch.nn.Conv2d):
    r"""Cross-correlation of images with learned kernels.

    .. math:: y_{n,o} = b_o + \sum_i w_{o,i} \star x_{n,i}

    Args:
        in_channels: channels of the input.
        out_channels: channels of the output.
        kernel_size: height and width of the kernels.
        stride: step between outputs, in pixels.
        padding: pixels added on each side: a number, or for each axis a number or a pair, such as
            ``((top, bottom), (left, right))``. ``"valid"`` adds none; ``"same"`` adds what makes
            ``ceil(size / stride)`` outputs, of an odd number more at the end (ONNX's SAME_UPPER).
        dilation: step between the kernel's pixels.
        groups: blocks that the channels are split into; each output sees one block.
        bias: whether to add ``b``.
        padding_mode: what the added pixels hold.
        device: where the parameters live.
        dtype: dtype of the parameters.

    Shapes:
        input ``[batch, in_channels, height, width]`` or without batch; output ``[batch, out_channels, h, w]``
        with ``h = (height + top + bottom - dilation (kernel_size - 1) - 1) // stride + 1``; ``weight`` is
        ``[out_channels, in_channels / groups, *kernel_size]``, ``bias`` ``[out_channels]``.

    Raises:
        InputValueError: a size out of range, a padding that does not exist, or channels that are no multiple
            of `groups`.
        ShapeError: the input has another number of axes or channels.
        InputRuntimeError: the input has another dtype than the parameters.

    As :class:`torch.nn.Conv2d`, which has no pairs, and ``"same"`` only with a stride of 1 (Burn takes the
    channels as a pair, and padding as an enum). The convolution is `burnt.kernels.conv`'s, torch's own where
    calls are recorded instead of run, and for small inputs.

    >>> import torch
    >>> Conv2d(1, 8, 3, stride=2, padding="same")(torch.zeros(2, 1, 7, 8)).shape
    torch.Size([2, 8, 4, 4])
    """

    _axes = 2

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int],
        stride: int | tuple[int, int] = 1,
        padding: Literal["valid", "same"] | int | tuple[Sides, Sides] = 0,
        dilation: int | tuple[int, int] = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: Literal["zeros", "reflect", "replicate", "circular"] = "zeros",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        check_sizes(self, kernel_size=kernel_size, stride=stride, dilation=dilation)
        check_groups(self, in_channels, out_channels, groups)
        rest: Any = kernel_size, stride, 0, dilation, groups, bias, padding_mode, device, dtype
        super().__init__(in_channels, out_channels, *rest)
        self.padding = checked_padding(self, padding)


class Conv3d(ConvBase, Module, torch.nn.Conv3d):
    r"""Cross-correlation of volumes with learned kernels.

    .. math:: y_{n,o} = b_o + \sum_i w_{o,i} \star x_{n,i}

    Arguments and errors are those of `Conv2d`, for three axes. (Burn's has no uneven padding.)

    Shapes:
        input ``[batch, in_channels, depth, height, width]`` or without batch; output
        ``[batch, out_channels, d, h, w]``, by the formula of `Conv2d`; ``weight`` is
        ``[out_channels, in_channels / groups, *kernel_size]``, ``bias`` ``[out_channels]``.

    >>> import torch
    >>> Conv3d(1, 8, 3, padding=(1, 1, (2, 0)))(torch.zeros(2, 1, 4, 5, 6)).shape
    torch.Size([2, 8, 4, 5, 6])
    """

    _axes = 3

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int, int],
        stride: int | tuple[int, int, int] = 1,
        padding: Literal["valid", "same"] | int | tuple[Sides, Sides, Sides] = 0,
        dilation: int | tuple[int, int, int] = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: Literal["zeros", "reflect", "replicate", "circular"] = "zeros",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        check_sizes(self, kernel_size=kernel_size, stride=stride, dilation=dilation)
        check_groups(self, in_channels, out_channels, groups)
        rest: Any = kernel_size, stride, 0, dilation, groups, bias, padding_mode, device, dtype
        super().__init__(in_channels, out_channels, *rest)
        self.padding = checked_padding(self, padding)
