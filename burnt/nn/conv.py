"""Convolutions."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from burnt import _torch, kernels
from burnt.module import Module

__all__ = ["Conv2d"]

_LARGE = 1 << 20  # multiplications; below, selecting a faster convolution than torch's takes too long


class Conv2d(Module, torch.nn.Conv2d):
    r"""Cross-correlation of images with learned kernels.

    .. math:: y_{n,o} = b_o + \sum_i w_{o,i} \star x_{n,i}

    Args:
        in_channels: channels of the input.
        out_channels: channels of the output.
        kernel_size: height and width of the kernels.
        stride: step between outputs, in pixels.
        padding: pixels added on each side, ``"valid"`` (none) or ``"same"`` (stride 1 only).
        dilation: step between the kernel's pixels.
        groups: blocks that the channels are split into; each output sees one block.
        bias: whether to add ``b``.
        padding_mode: what the added pixels hold.
        device: where the parameters live.
        dtype: dtype of the parameters.

    Shapes:
        input ``[batch, in_channels, height, width]`` or without batch; output ``[batch, out_channels, h, w]``
        with ``h = (height + 2 padding - dilation (kernel_size - 1) - 1) // stride + 1``; ``weight`` is
        ``[out_channels, in_channels / groups, *kernel_size]``, ``bias`` ``[out_channels]``.

    Raises:
        ValueError: the channels are no multiple of `groups`, or a padding that does not exist.

    As :class:`torch.nn.Conv2d` (Burn takes the channels as a pair, and padding as an enum). The convolution
    is `burnt.kernels.conv`'s, torch's own where calls are recorded instead of run, and where what is added on
    each side are no zeros.

    >>> import torch
    >>> Conv2d(1, 8, 3, padding=1)(torch.zeros(2, 1, 8, 8)).shape
    torch.Size([2, 8, 8, 8])
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int],
        stride: int | tuple[int, int] = 1,
        padding: str | int | tuple[int, int] = 0,
        dilation: int | tuple[int, int] = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: Literal["zeros", "reflect", "replicate", "circular"] = "zeros",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            in_channels,
            out_channels,
            kernel_size,
            stride,
            padding,
            dilation,
            groups,
            bias,
            padding_mode,
            device,
            dtype,
        )

    def forward(self, input: Tensor) -> Tensor:
        """Convolve ``[batch, in_channels, height, width]``, or one image."""
        weight = self.weight  # read once, since a parametrization computes it
        recorded = torch.compiler.is_compiling() or not _torch.is_plain_call()
        small = input.numel() * weight.numel() // self.in_channels < _LARGE
        plain = self.padding_mode == "zeros" and not weight.is_complex()
        if recorded or small or not plain:
            made: Tensor = self._conv_forward(input, weight, self.bias)
            return made
        sizes: Any = self.stride, self.padding, self.dilation, self.groups
        return kernels.conv(input, weight, self.bias, None, None, None, *sizes)
