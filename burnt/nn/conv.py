"""Convolutions of sequences, images and volumes; `conv_transpose` has the transposed ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Generic, Literal, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from burnt import kernels
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
        InputValueError: a size out of range, a padding that does not exist, or channels that are no multiple
            of `groups`.
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
