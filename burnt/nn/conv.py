"""Convolutions of sequences, images and volumes, and transposed ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Generic, Literal, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from burnt import kernels
from burnt.errors import ShapeError
from burnt.module import Module
from burnt.nn.checks import explain_input, require

Sides = int | tuple[int, int]
"""The padding of an axis: on both sides, or before and after."""

Size = TypeVar("Size", bound=tuple[int, ...])
"""A number for each axis."""

Pads = TypeVar("Pads", bound=tuple[Sides, ...])
"""The padding of each axis."""


def sides_of(padding: Iterable[Sides]) -> list[tuple[int, int]]:
    """Return the padding of each axis as a pair (before, after)."""
    return [(side, side) if isinstance(side, int) else side for side in padding]


def check_sizes(layer: Any, **sizes: int | Sequence[int]) -> None:
    """Check that each size of a convolution is a number, or one for each axis, and large enough."""
    axes: int = layer._axes
    for name, given in sizes.items():
        least = int(name != "output_padding")
        numbers = (given,) * axes if isinstance(given, int) else given
        fits = len(numbers) == axes and all(size >= least for size in numbers)
        expected = f"a number of at least {least}, or {axes} of them"
        require(fits, type(layer).__name__, name, expected, repr(given))


def check_groups(layer: Any, in_channels: int, out_channels: int, groups: int) -> None:
    """Check that the channels of a convolution can be split into groups."""
    require(
        groups >= 1 and in_channels % groups == 0 and out_channels % groups == 0,
        f"{type(layer).__name__}({in_channels}, {out_channels}, ...)",
        "groups",
        f"a divisor of {in_channels} and {out_channels}, into which the channels are split",
        groups,
    )


def checked_padding(layer: Any, padding: str | int | Sequence[Sides]) -> str | tuple[Sides, ...]:
    """Return a valid padding as torch's layers keep it, and uneven sides as pairs."""
    if padding in ("same", "valid"):
        return str(padding)
    axes: int = layer._axes
    given = (padding,) * axes if isinstance(padding, int) else padding
    is_known = not isinstance(given, str) and len(given) == axes
    pairs = sides_of(given) if is_known else []  # type: ignore[arg-type]
    fits = is_known and all(len(pair) == 2 and min(pair) >= 0 for pair in pairs)
    expected = "'valid', 'same', a number of at least 0, or for each axis a number or a pair (before, after)"
    require(fits, type(layer).__name__, "padding", expected, repr(padding))
    return tuple(before if before == after else (before, after) for before, after in pairs)


def convolve(layer: Any, input: Tensor) -> Tensor:
    """Convolve ``[batch, in_channels, *axes]``, or one sample without batch axis."""
    weight = layer.weight  # read once, since a parametrization computes it
    input, padding = pad(layer, input)
    sizes: Any = layer.stride, padding, layer.dilation, layer.groups
    return kernels.conv.in_layer(input, weight, layer.bias, None, None, None, *sizes)


def pad(layer: Any, input: Tensor) -> tuple[Tensor, Any]:
    """Return the input and the padding left to the kernel: zeros, as many on both sides of an axis."""
    padding = _same(layer, input) if layer.padding == "same" else layer.padding
    if padding == "valid":
        return input, 0
    if layer.padding_mode == "zeros" and not any(isinstance(side, tuple) for side in padding):
        return input, padding
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    return F.pad(input, [size for pair in reversed(sides_of(padding)) for size in pair], mode), 0


def _same(layer: Any, input: Tensor) -> list[Sides]:
    """Return the sides that make ``ceil(size / stride)`` outputs; of an odd number the end gets more."""
    sides: list[Sides] = []
    sizes = input.shape[-len(layer.stride) :]
    for size, kernel, step, dilate in zip(
        sizes, layer.kernel_size, layer.stride, layer.dilation, strict=False
    ):
        added = dilate * (kernel - 1)
        if step > 1:
            # The last window begins at the last multiple of the stride.
            added = max(added - (size - 1) % step, 0)
        # With a stride, whether both are equal depends on the size, which is open in an exported program.
        is_even = step == 1 and added % 2 == 0
        sides.append(added // 2 if is_even else (added // 2, added - added // 2))
    return sides


class ConvAttributes:
    """The attributes of torch's convolutions, but for a `padding` with pairs."""

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


class ConvBase(ConvAttributes):
    """The forward of all ranks."""

    forward = explain_input(convolve)


class _Conv(ConvBase, Module, Generic[Size, Pads]):
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | Size,
        stride: int | Size = 1,
        padding: Literal["valid", "same"] | int | Pads = 0,
        dilation: int | Size = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: Literal["zeros", "reflect", "replicate", "circular"] = "zeros",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        sizes: dict[str, Any] = {"kernel_size": kernel_size, "stride": stride, "dilation": dilation}
        check_sizes(self, **sizes)
        check_groups(self, in_channels, out_channels, groups)
        rest = groups, bias, padding_mode, device, dtype
        super().__init__(in_channels, out_channels, kernel_size, stride, 0, dilation, *rest)
        self.padding = checked_padding(self, padding)


class Conv1d(_Conv[tuple[int], tuple[Sides]], torch.nn.Conv1d, init=False):
    r"""Cross-correlation of sequences with learned kernels.

    As `Conv2d`, for ``[batch, in_channels, length]`` or without batch; output ``[batch, out_channels, l]``,
    ``weight`` ``[out_channels, in_channels / groups, kernel_size]``. ``padding=((2, 0),)`` pads only the
    past, for a causal convolution with a kernel of 3.

    >>> Conv1d(1, 8, 3, padding=((2, 0),))(torch.zeros(2, 1, 10)).shape
    torch.Size([2, 8, 10])
    """

    _axes = 1


class Conv2d(_Conv[tuple[int, int], tuple[Sides, Sides]], torch.nn.Conv2d, init=False):
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

    Shapes:
        input ``[batch, in_channels, height, width]`` or without batch; output ``[batch, out_channels, h, w]``
        with ``h = (height + top + bottom - dilation (kernel_size - 1) - 1) // stride + 1``; ``weight`` is
        ``[out_channels, in_channels / groups, *kernel_size]``, ``bias`` ``[out_channels]``.

    Raises:
        InputValueError: a size out of range, a padding that does not exist, or channels that are not a
            multiple of `groups`.
        ShapeError: the input has another number of axes or channels.
        InputRuntimeError: the input has another dtype than the parameters.

    As :class:`torch.nn.Conv2d`, which has no pairs, and ``"same"`` only with a stride of 1 (Burn takes the
    channels as a pair, and padding as an enum). The convolution is `burnt.kernels.conv`'s, torch's own where
    calls are recorded instead of run, and for small inputs.

    >>> Conv2d(1, 8, 3, stride=2, padding="same")(torch.zeros(2, 1, 7, 8)).shape
    torch.Size([2, 8, 4, 4])
    """

    _axes = 2


class Conv3d(_Conv[tuple[int, int, int], tuple[Sides, Sides, Sides]], torch.nn.Conv3d, init=False):
    r"""Cross-correlation of volumes with learned kernels.

    As `Conv2d`, for ``[batch, in_channels, depth, height, width]`` or without batch; output
    ``[batch, out_channels, d, h, w]``. (Burn's has no uneven padding.)

    >>> Conv3d(1, 8, 3, padding=(1, 1, (2, 0)))(torch.zeros(2, 1, 4, 5, 6)).shape
    torch.Size([2, 8, 4, 5, 6])
    """

    _axes = 3


class _Base(ConvAttributes):
    """The forward of all ranks. The attributes are torch's, but for a `padding` with names or pairs."""

    output_padding: tuple[int, ...]

    @explain_input
    def forward(self, input: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        """Convolve ``[batch, in_channels, *axes]``, or one sample without batch axis.

        Args:
            input: the tensor to convolve.
            output_size: size of the output's axes, instead of the one that `output_padding` makes; where a
                stride leaves a choice, as the inverse of a strided convolution has it.

        Raises:
            ShapeError: `output_size` cannot be reached, or the input does not fit.
        """
        weight = self.weight  # read once, since a parametrization computes it
        padding, output_padding = self.padding, self.output_padding
        if isinstance(padding, str):
            padding, output_padding = self._named(padding)
        if output_size is not None:
            output_padding = self._output_padding_for(input, output_size, padding)
        # What both sides have in common is cut by the convolution, the rest afterwards.
        sides = sides_of(padding)
        even = tuple(min(pair) for pair in sides)
        sizes: Any = self.stride, even, output_padding, self.groups, self.dilation
        output = kernels.conv_transpose.in_layer(input, weight, self.bias, None, *sizes)
        for axis, ((before, after), cut) in enumerate(
            zip(sides, even, strict=True), output.dim() - len(sides)
        ):
            if before != after:
                output = output.narrow(axis, before - cut, output.shape[axis] - before - after + 2 * cut)
        return output

    def _named(self, padding: str) -> tuple[tuple[Sides, ...], tuple[int, ...]]:
        """Return padding and output padding that make ``size * stride`` outputs, or that cut nothing."""
        if padding == "valid":
            return (0,) * len(self.stride), self.output_padding
        # The window of an output is longer than the step by as much, or shorter.
        spans = [
            dilate * (kernel - 1) + 1 - step
            for kernel, step, dilate in zip(self.kernel_size, self.stride, self.dilation, strict=True)
        ]
        sides = [(max(span, 0) // 2, max(span, 0) - max(span, 0) // 2) for span in spans]
        even = tuple(before if before == after else (before, after) for before, after in sides)
        return even, tuple(max(-span, 0) for span in spans)

    def _output_padding_for(
        self, input: Tensor, output_size: Sequence[int], padding: Sequence[Sides]
    ) -> tuple[int, ...]:
        axes = len(self.stride)
        sizes = input.shape[-axes:]
        least = [
            (size - 1) * step - sum(pair) + dilate * (kernel - 1) + 1
            for size, step, pair, dilate, kernel in zip(
                sizes, self.stride, sides_of(padding), self.dilation, self.kernel_size, strict=True
            )
        ]
        asked = list(output_size)[-axes:]
        more = [size - start for size, start in zip(asked, least, strict=False)]
        if len(output_size) not in (axes, input.dim()) or any(
            not 0 <= extra < step for extra, step in zip(more, self.stride, strict=True)
        ):
            most = tuple(start + step - 1 for start, step in zip(least, self.stride, strict=True))
            raise ShapeError(
                "no output of this size can be made",
                where=type(self).__name__,
                expected=f"output_size from {tuple(least)} to {most}, for an input of {tuple(input.shape)}",
                found=tuple(output_size),
            )
        return tuple(more)


class _ConvTranspose(_Base, Module, Generic[Size, Pads]):
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | Size,
        stride: int | Size = 1,
        padding: Literal["valid", "same"] | int | Pads = 0,
        output_padding: int | Size = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: int | Size = 1,
        padding_mode: Literal["zeros"] = "zeros",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        sizes: dict[str, Any] = {"kernel_size": kernel_size, "stride": stride, "dilation": dilation}
        check_sizes(self, **sizes, output_padding=output_padding)
        check_groups(self, in_channels, out_channels, groups)
        rest = output_padding, groups, bias, dilation, padding_mode, device, dtype
        super().__init__(in_channels, out_channels, kernel_size, stride, 0, *rest)
        self.padding = checked_padding(self, padding)
        require(
            self.padding != "same" or not any(self.output_padding),
            type(self).__name__,
            "output_padding",
            "0, since padding='same' decides the size of the output",
            self.output_padding,
        )


class ConvTranspose1d(_ConvTranspose[tuple[int], tuple[Sides]], torch.nn.ConvTranspose1d, init=False):
    """Transposed convolution of sequences: the gradient of `Conv1d` with respect to its input.

    As `ConvTranspose2d`, for ``[batch, in_channels, length]`` or without batch; output
    ``[batch, out_channels, l]``, ``weight`` ``[in_channels, out_channels / groups, kernel_size]``.

    >>> ConvTranspose1d(4, 8, 3, stride=2, padding="same")(torch.zeros(2, 4, 10)).shape
    torch.Size([2, 8, 20])
    """

    _axes = 1


class ConvTranspose2d(
    _ConvTranspose[tuple[int, int], tuple[Sides, Sides]], torch.nn.ConvTranspose2d, init=False
):
    """Transposed convolution of images: the gradient of `Conv2d` with respect to its input, for upsampling.

    Args:
        in_channels: channels of the input.
        out_channels: channels of the output.
        kernel_size: height and width of the kernels.
        stride: step between the windows that the input's pixels write to.
        padding: pixels cut off on each side of the output: a number, or for each axis a number or a pair,
            such as ``((top, bottom), (left, right))``. ``"valid"`` cuts none; ``"same"`` makes
            ``size * stride`` outputs, and cuts an odd pixel at the end (ONNX's SAME_UPPER).
        output_padding: pixels added at the end of each axis, less than stride or dilation (Burn's
            ``padding_out``).
        groups: blocks that the channels are split into; each output sees one block.
        bias: whether to add a number to each channel.
        dilation: step between the kernel's pixels.
        padding_mode: only ``"zeros"``, as in torch.

    Shapes:
        input ``[batch, in_channels, height, width]`` or without batch; output ``[batch, out_channels, h, w]``
        with ``h = (height - 1) stride - top - bottom + dilation (kernel_size - 1) + output_padding + 1``;
        ``weight`` is ``[in_channels, out_channels / groups, *kernel_size]``, ``bias`` ``[out_channels]``.

    Raises:
        InputValueError: a size out of range, a padding that does not exist, ``"same"`` and an
            `output_padding`, or channels that are not a multiple of `groups`.
        ValueError: another `padding_mode`.
        ShapeError: the input has another number of axes or channels.
        InputRuntimeError: the input has another dtype than the parameters.

    As :class:`torch.nn.ConvTranspose2d`, which has neither pairs nor names. The convolution is
    `burnt.kernels.conv_transpose`'s, torch's own where calls are recorded, and for small inputs.

    >>> ConvTranspose2d(4, 8, 2, stride=2)(torch.zeros(2, 4, 5, 6)).shape
    torch.Size([2, 8, 10, 12])
    """

    _axes = 2


class ConvTranspose3d(
    _ConvTranspose[tuple[int, int, int], tuple[Sides, Sides, Sides]], torch.nn.ConvTranspose3d
):
    """Transposed convolution of volumes: the gradient of `Conv3d` with respect to its input.

    As `ConvTranspose2d`, for ``[batch, in_channels, depth, height, width]`` or without batch; output
    ``[batch, out_channels, d, h, w]``.

    >>> ConvTranspose3d(4, 8, 2, stride=2)(torch.zeros(2, 4, 3, 5, 6)).shape
    torch.Size([2, 8, 6, 10, 12])
    """

    _axes = 3
