"""Layers that take their number of inputs from the first call, and become the layer of that size."""

from __future__ import annotations

from typing import Any, ClassVar, Generic, Literal

import torch
from torch import Tensor

from burnt.config import Config, field_values
from burnt.nn.conv import (
    Conv1d,
    Conv2d,
    Conv3d,
    ConvTranspose1d,
    ConvTranspose2d,
    ConvTranspose3d,
    Pads,
    Sides,
    Size,
)
from burnt.nn.linear import Linear
from burnt.nn.norm import BatchNorm, InstanceNorm


class _Lazy:
    """Added to torch's lazy layers: the layer that one becomes has its own Config, to be saved and loaded."""

    cls_to_become: Any
    _inferred: ClassVar[tuple[str, int]]  # an argument, and the axis of the input that has as many elements
    _built_by: Config | None

    def initialize_parameters(self, input: Tensor) -> None:
        """Create the parameters for an input."""
        super().initialize_parameters(input)  # type: ignore[misc]
        name, axis = self._inferred
        # torch does not where parameters were loaded, or there are none.
        setattr(self, name, input.shape[axis])
        if self._built_by is not None:
            values = {name: input.shape[axis], **field_values(self._built_by)}
            self._remember_config(self.cls_to_become.Config(**values))  # type: ignore[attr-defined]


class LazyLinear(_Lazy, torch.nn.LazyLinear, Linear, init=False):
    """A `Linear` that takes `in_features` from its first input, and then becomes that layer.

    Before the first call, or `load_state_dict`, an optimizer has no parameters to take.

    >>> layer = LazyLinear(2)
    >>> layer(torch.zeros(4, 3)).shape, layer
    (torch.Size([4, 2]), Linear(in_features=3, out_features=2, bias=True))
    """

    cls_to_become = Linear
    _inferred = "in_features", -1


class _LazyConv(_Lazy, Generic[Size, Pads]):
    def __init__(
        self,
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
        rest: Any = stride, padding, dilation, groups, bias, padding_mode, device, dtype
        super().__init__(out_channels, kernel_size, *rest)  # type: ignore[call-arg]


class _LazyConvTranspose(_Lazy, Generic[Size, Pads]):
    def __init__(
        self,
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
        rest: Any = stride, padding, output_padding, groups, bias, dilation, padding_mode, device, dtype
        super().__init__(out_channels, kernel_size, *rest)  # type: ignore[call-arg]


class LazyConv1d(  # type: ignore[misc]
    _LazyConv[tuple[int], tuple[Sides]], torch.nn.LazyConv1d, Conv1d, init=False
):
    """A `Conv1d` that takes `in_channels` from its first input, and then becomes that layer.

    >>> layer = LazyConv1d(4, 2)
    >>> layer(torch.zeros(1, 3, 5)).shape, layer.in_channels
    (torch.Size([1, 4, 4]), 3)
    """

    cls_to_become = Conv1d  # type: ignore[assignment]
    _inferred = "in_channels", -2


class LazyConv2d(  # type: ignore[misc]
    _LazyConv[tuple[int, int], tuple[Sides, Sides]], torch.nn.LazyConv2d, Conv2d, init=False
):
    """A `Conv2d` that takes `in_channels` from its first input, and then becomes that layer.

    >>> layer = LazyConv2d(4, 2)
    >>> layer(torch.zeros(1, 3, 5, 5)).shape, layer.in_channels
    (torch.Size([1, 4, 4, 4]), 3)
    """

    cls_to_become = Conv2d  # type: ignore[assignment]
    _inferred = "in_channels", -3


class LazyConv3d(  # type: ignore[misc]
    _LazyConv[tuple[int, int, int], tuple[Sides, Sides, Sides]], torch.nn.LazyConv3d, Conv3d, init=False
):
    """A `Conv3d` that takes `in_channels` from its first input, and then becomes that layer.

    >>> layer = LazyConv3d(4, 2)
    >>> layer(torch.zeros(1, 3, 5, 5, 5)).shape, layer.in_channels
    (torch.Size([1, 4, 4, 4, 4]), 3)
    """

    cls_to_become = Conv3d  # type: ignore[assignment]
    _inferred = "in_channels", -4


class LazyConvTranspose1d(  # type: ignore[misc]
    _LazyConvTranspose[tuple[int], tuple[Sides]], torch.nn.LazyConvTranspose1d, ConvTranspose1d, init=False
):
    """A `ConvTranspose1d` that takes `in_channels` from its first input, and then becomes that layer.

    >>> layer = LazyConvTranspose1d(4, 2)
    >>> layer(torch.zeros(1, 3, 5)).shape, layer.in_channels
    (torch.Size([1, 4, 6]), 3)
    """

    cls_to_become = ConvTranspose1d  # type: ignore[assignment]
    _inferred = "in_channels", -2


class LazyConvTranspose2d(  # type: ignore[misc]
    _LazyConvTranspose[tuple[int, int], tuple[Sides, Sides]],
    torch.nn.LazyConvTranspose2d,
    ConvTranspose2d,
    init=False,
):
    """A `ConvTranspose2d` that takes `in_channels` from its first input, and then becomes that layer.

    >>> layer = LazyConvTranspose2d(4, 2)
    >>> layer(torch.zeros(1, 3, 5, 5)).shape, layer.in_channels
    (torch.Size([1, 4, 6, 6]), 3)
    """

    cls_to_become = ConvTranspose2d  # type: ignore[assignment]
    _inferred = "in_channels", -3


class LazyConvTranspose3d(  # type: ignore[misc]
    _LazyConvTranspose[tuple[int, int, int], tuple[Sides, Sides, Sides]],
    torch.nn.LazyConvTranspose3d,
    ConvTranspose3d,
    init=False,
):
    """A `ConvTranspose3d` that takes `in_channels` from its first input, and then becomes that layer.

    >>> layer = LazyConvTranspose3d(4, 2)
    >>> layer(torch.zeros(1, 3, 5, 5, 5)).shape, layer.in_channels
    (torch.Size([1, 4, 6, 6, 6]), 3)
    """

    cls_to_become = ConvTranspose3d  # type: ignore[assignment]
    _inferred = "in_channels", -4


class LazyBatchNorm(_Lazy, torch.nn.LazyBatchNorm1d, BatchNorm):
    """A `BatchNorm` that takes `num_features` from its first input, and then becomes that layer.


    >>> layer = LazyBatchNorm()
    >>> layer(torch.randn(4, 3, 8, 8)).shape, layer.num_features
    (torch.Size([4, 3, 8, 8]), 3)
    """

    cls_to_become = BatchNorm  # type: ignore[assignment]
    _inferred = "num_features", 1

    def __init__(
        self,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__(eps, momentum, affine, track_running_stats, device, dtype)
        if not bias:
            self.register_parameter("bias", None)


class LazyInstanceNorm(_Lazy, torch.nn.LazyInstanceNorm1d, InstanceNorm):
    """An `InstanceNorm` that takes `num_features` from its first input, and then becomes that layer.

    Defaults are as in `InstanceNorm`; torch's lazy layers are affine and have running averages.

    >>> layer = LazyInstanceNorm()
    >>> layer(torch.randn(4, 3, 8, 8)).shape, layer.num_features
    (torch.Size([4, 3, 8, 8]), 3)
    """

    cls_to_become = InstanceNorm  # type: ignore[assignment]
    _inferred = "num_features", 1

    def __init__(
        self,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = False,
        track_running_stats: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__(eps, momentum, affine, track_running_stats, device, dtype)
        if not bias:
            self.register_parameter("bias", None)
