"""Layers that move elements and do not change them, such as Flatten and PixelShuffle."""

from __future__ import annotations

import torch

from burnt.errors import InputValueError
from burnt.module import Module


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
