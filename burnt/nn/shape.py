"""Layers that move elements, such as Flatten and PixelShuffle, and Upsample."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from burnt._torch import interpolate_antialiased
from burnt.errors import InputValueError, did_you_mean
from burnt.module import Module
from burnt.nn.checks import explain_input


class Identity(Module, torch.nn.Identity):
    """Returns its input: a place for a layer that may be missing.

    As :class:`torch.nn.Identity`, which ignores arguments that this one does not take.

    >>> Identity()(torch.ones(2))
    tensor([1., 1.])
    """

    def __init__(self) -> None:
        super().__init__()


class Flatten(Module, torch.nn.Flatten):
    """Joins the axes from `start_dim` to `end_dim`, both included.

    Args:
        start_dim: first axis that is joined.
        end_dim: last axis that is joined.

    Shapes:
        input ``[*, S_start, ..., S_end, *]``, output ``[*, S_start * ... * S_end, *]``.

    >>> Flatten()(torch.zeros(2, 3, 4, 5)).shape
    torch.Size([2, 60])
    """

    start_dim: int
    end_dim: int

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        super().__init__(start_dim, end_dim)


class Unflatten(Module, torch.nn.Unflatten):
    """Splits an axis into several.

    Args:
        dim: the axis.
        unflattened_size: sizes of the new axes, one of which may be -1.

    Shapes:
        input ``[*, prod(unflattened_size), *]``, output ``[*, *unflattened_size, *]``.

    >>> Unflatten(1, (3, -1))(torch.zeros(2, 12)).shape
    torch.Size([2, 3, 4])
    """

    dim: int
    unflattened_size: tuple[int, ...]

    def __init__(self, dim: int, unflattened_size: tuple[int, ...]) -> None:
        super().__init__(dim, tuple(unflattened_size))


class PixelShuffle(Module, torch.nn.PixelShuffle):
    """Makes images larger by moving channels between the pixels.

    Args:
        upscale_factor: r, by which height and width grow.

    Shapes:
        input ``[*, channels * r * r, height, width]``, output ``[*, channels, height * r, width * r]``.

    Raises:
        InputValueError: a factor below 1.

    After a convolution, an upsampling that learns its filter. Shi et al., 2016.

    >>> PixelShuffle(2)(torch.zeros(1, 8, 3, 5)).shape
    torch.Size([1, 2, 6, 10])
    """

    upscale_factor: int

    def __init__(self, upscale_factor: int) -> None:
        _check_positive("PixelShuffle", "upscale_factor", upscale_factor)
        super().__init__(upscale_factor)


class PixelUnshuffle(Module, torch.nn.PixelUnshuffle):
    """Makes images smaller by moving pixels into channels; the inverse of `PixelShuffle`.

    Args:
        downscale_factor: r, by which height and width shrink.

    Shapes:
        input ``[*, channels, height * r, width * r]``, output ``[*, channels * r * r, height, width]``.

    Raises:
        InputValueError: a factor below 1.

    >>> PixelUnshuffle(2)(torch.zeros(1, 2, 6, 10)).shape
    torch.Size([1, 8, 3, 5])
    """

    downscale_factor: int

    def __init__(self, downscale_factor: int) -> None:
        _check_positive("PixelUnshuffle", "downscale_factor", downscale_factor)
        super().__init__(downscale_factor)


class ChannelShuffle(Module, torch.nn.ChannelShuffle):
    """Mixes channels between groups, as between two grouped convolutions.

    Args:
        groups: number of groups g; channel ``i`` of group ``k`` becomes channel ``i * g + k``.

    Shapes:
        input ``[batch, channels, *]`` with channels a multiple of `groups`, output the same.

    Raises:
        InputValueError: no group.

    Zhang et al., 2018.

    >>> ChannelShuffle(2)(torch.arange(4.0).view(1, 4, 1, 1)).flatten()
    tensor([0., 2., 1., 3.])
    """

    groups: int

    def __init__(self, groups: int) -> None:
        _check_positive("ChannelShuffle", "groups", groups)
        super().__init__(groups)


class Unfold(Module, torch.nn.Unfold):
    """Lists the blocks that a kernel slides over, each as a column.

    Args:
        kernel_size: height and width of a block.
        dilation: step between the pixels of a block.
        padding: zeros added on each side.
        stride: step between blocks.

    Shapes:
        input ``[batch, channels, height, width]`` or without batch; output
        ``[batch, channels * prod(kernel_size), blocks]``, with as many blocks as a convolution has outputs.

    (Burn: ``Unfold4d``.)

    >>> Unfold((2, 3))(torch.zeros(1, 4, 5, 6)).shape
    torch.Size([1, 24, 16])
    """

    def __init__(
        self,
        kernel_size: int | tuple[int, int],
        dilation: int | tuple[int, int] = 1,
        padding: int | tuple[int, int] = 0,
        stride: int | tuple[int, int] = 1,
    ) -> None:
        super().__init__(kernel_size, dilation, padding, stride)


class Fold(Module, torch.nn.Fold):
    """Puts the columns of `Unfold` back to their places, and adds where blocks overlap.

    Args:
        output_size: height and width of the output.
        kernel_size: height and width of a block.
        dilation: step between the pixels of a block.
        padding: zeros that were added on each side.
        stride: step between blocks.

    Shapes:
        input ``[batch, channels * prod(kernel_size), blocks]`` or without batch; output
        ``[batch, channels, *output_size]``.

    Not the inverse of `Unfold`, since pixels in several blocks are added. (Burn: ``Fold4d``.)

    >>> Fold((4, 5), (2, 3))(torch.zeros(1, 24, 9)).shape
    torch.Size([1, 4, 4, 5])
    """

    def __init__(
        self,
        output_size: int | tuple[int, int],
        kernel_size: int | tuple[int, int],
        dilation: int | tuple[int, int] = 1,
        padding: int | tuple[int, int] = 0,
        stride: int | tuple[int, int] = 1,
    ) -> None:
        super().__init__(output_size, kernel_size, dilation, padding, stride)


def _check_positive(layer: str, name: str, value: int) -> None:
    if value < 1:
        raise InputValueError(f"{layer} has no such {name}", expected="1 or more", found=value)


_RANKS = {"linear": 1, "cubic": 1, "bilinear": 2, "bicubic": 2, "lanczos": 2, "trilinear": 3}
_SMOOTH = ("linear", "cubic", "bilinear", "bicubic", "trilinear")
_ANTIALIASED = ("bilinear", "bicubic", "lanczos")


class Upsample(Module, torch.nn.Upsample):
    """Resizes the axes after the channels, by interpolation; also to fewer elements.

    Args:
        size: size of each axis of the output.
        scale_factor: what each axis is multiplied by, instead of `size`.
        mode: for all ranks ``"nearest"`` (which rounds positions down, as OpenCV), ``"nearest-exact"`` (as
            Pillow) or ``"area"`` (means); for sequences ``"linear"`` or ``"cubic"``; for images
            ``"bilinear"``, ``"bicubic"`` or, with `antialias`, ``"lanczos"`` (on the CPU, from torch 2.13
            on); for volumes ``"trilinear"``.
        align_corners: whether the centres of the outermost elements stay in place, in the linear and cubic
            modes; None is False. (Burn: True by default.)
        recompute_scale_factor: compute positions from the sizes of input and output, and not from a
            `scale_factor` that gives a fractional size.
        antialias: widen the filter when images shrink, so that the result is Pillow's; for ``"bilinear"``,
            ``"bicubic"`` and ``"lanczos"``.

    Shapes:
        input ``[batch, channels, length]``, ``[batch, channels, height, width]`` or
        ``[batch, channels, depth, height, width]``; output ``[batch, channels, *size]``, or
        ``floor(axis * scale_factor)`` for each axis.

    Raises:
        InputValueError: neither or both of `size` and `scale_factor`, an unknown mode, an option that the
            mode does not have, or numbers for other axes than the mode's.
        ShapeError: the input has a number of axes that the mode does not take.

    As :class:`torch.nn.Upsample`, with `antialias` and ``"cubic"`` (Burn: ``Interpolate1d`` and
    ``Interpolate2d``). :class:`torch.nn.UpsamplingNearest2d` is the default mode, and
    :class:`torch.nn.UpsamplingBilinear2d` is ``mode="bilinear", align_corners=True``.

    >>> Upsample(scale_factor=2, mode="bilinear")(torch.zeros(1, 3, 4, 5)).shape
    torch.Size([1, 3, 8, 10])
    """

    antialias: bool

    def __init__(
        self,
        size: int | tuple[int, ...] | None = None,
        scale_factor: float | tuple[float, ...] | None = None,
        mode: Literal[
            "nearest",
            "nearest-exact",
            "area",
            "linear",
            "cubic",
            "bilinear",
            "bicubic",
            "trilinear",
            "lanczos",
        ] = "nearest",
        align_corners: bool | None = None,
        recompute_scale_factor: bool | None = None,
        antialias: bool = False,
    ) -> None:
        if (size is None) == (scale_factor is None):
            raise InputValueError(
                "Upsample needs one size",
                expected="size or scale_factor",
                found="neither" if size is None else "both",
            )
        modes = ("nearest", "nearest-exact", "area", *_SMOOTH, "lanczos")
        if mode not in modes:
            raise InputValueError(
                "Upsample has no such mode",
                expected=", ".join(modes),
                found=repr(mode),
                hint=did_you_mean(mode, modes),
            )
        given = size if scale_factor is None else scale_factor
        if mode in _RANKS and isinstance(given, tuple) and len(given) != _RANKS[mode]:
            raise InputValueError(
                "Upsample has other axes in this mode",
                expected=f"a number, or {_RANKS[mode]} of them, for {mode!r}",
                found=given,
            )
        if recompute_scale_factor and size is not None:
            raise InputValueError(
                "Upsample has no factor to recompute", expected="scale_factor", found="size"
            )
        if align_corners is not None and mode not in _SMOOTH:
            raise _option_error("align_corners", _SMOOTH, mode)
        if antialias and mode not in _ANTIALIASED:
            raise _option_error("antialias", _ANTIALIASED, mode)
        if mode == "lanczos" and not antialias:
            raise InputValueError(
                "Upsample has Lanczos filters only with antialias", expected="antialias=True"
            )
        super().__init__(size, scale_factor, mode, align_corners, recompute_scale_factor)
        self.antialias = antialias

    @explain_input
    def forward(self, input: Tensor) -> Tensor:
        """Resize ``[batch, channels, *]``."""
        options = self.align_corners, self.recompute_scale_factor
        if self.antialias and input.dim() == 4:
            return interpolate_antialiased(input, self.size, self.scale_factor, self.mode, *options)
        if self.mode != "cubic":
            return F.interpolate(input, self.size, self.scale_factor, self.mode, *options, self.antialias)
        # torch has cubic filters only for images: a sequence is an image of one row.
        size, factor = _of_row(self.size, 1), _of_row(self.scale_factor, 1.0)
        return F.interpolate(input.unsqueeze(-2), size, factor, "bicubic", *options).squeeze(-2)


def _of_row(value: Any, height: float) -> Any:
    """Return the size or factor of an image of one row, from a sequence's."""
    return value if value is None else (height, *value) if isinstance(value, tuple) else (height, value)


def _option_error(option: str, modes: tuple[str, ...], mode: str) -> InputValueError:
    return InputValueError(
        f"Upsample has no {option} in this mode",
        expected=f"mode {' or '.join(map(repr, modes))}",
        found=repr(mode),
    )
