"""Convolutions by oneDNN, with what comes after them: what candidates of `burnt.kernels.conv` run on a CPU.

While training the weight is given as it is, and torch's own gradients follow. Without gradients the
activations that oneDNN has are in its kernel, and the weight may be put into its own layout once. A residual
is added after it: within, it makes kernels up to a third slower (8 x 64 to 256 x 56 x 56: 4.3 ms of 3.1, two
threads of a Zen 5), and never faster. A convolution of one axis is that of images of one row.
"""

from __future__ import annotations

import math
from collections.abc import MutableMapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from burnt import _torch
from burnt.device import processor
from burnt.kernels.interface.tuning_key import wants_gradient
from burnt.kernels.ops.activation import apply_activation

__all__ = ["AxisSizes", "Sizes", "convolved", "each", "why_not_onednn", "why_not_packed"]

Sizes = int | Sequence[int]

_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
# relu is none of them: oneDNN makes 0 of NaN.
_TAILS = {None: ("none", ""), "gelu": ("gelu", "none"), "gelu_tanh": ("gelu", "tanh"), "silu": ("swish", ""),
          "hardswish": ("hardswish", "")}  # fmt: skip


def each(sizes: Sizes, axes: int) -> list[int]:
    """A number for every axis."""
    listed = [sizes] if isinstance(sizes, int) else list(sizes)
    return listed * axes if len(listed) == 1 else listed


class AxisSizes(NamedTuple):
    """What a convolution is told, for every axis; `more` is the output padding of a transposed one."""

    stride: list[int]
    padding: list[int]
    dilation: list[int]
    groups: int
    more: list[int] | None = None

    @classmethod
    def of(
        cls,
        weight: Tensor,
        stride: Sizes,
        padding: Sizes,
        dilation: Sizes,
        groups: int,
        more: Sizes | None = None,
    ) -> AxisSizes:
        """Those for the axes of a weight."""
        axes = weight.dim() - 2
        stride, padding, dilation = (each(sizes, axes) for sizes in (stride, padding, dilation))
        return cls(stride, padding, dilation, groups, None if more is None else each(more, axes))

    def of_images(self) -> AxisSizes:
        """Those of signals, as images of one row."""
        more = None if self.more is None else [0, *self.more]
        return AxisSizes([1, *self.stride], [0, *self.padding], [1, *self.dilation], self.groups, more)


def why_not_onednn(x: Tensor, weight: Tensor, residual: Tensor | None = None) -> str | None:
    """Why oneDNN cannot convolve these, or None."""
    if x.dtype not in processor().onednn:
        return f"no oneDNN here for {str(x.dtype).removeprefix('torch.')}"
    if residual is not None and residual.dtype != x.dtype:
        return "a residual of another dtype"
    if weight.dim() == 3 and not weight.is_contiguous():
        return "a weight of signals that is a view"
    if weight.dim() == 5 and weight[0, 0].numel() == 1 and torch.get_num_threads() == 1:
        return "a product of voxels, whose result torch lays out otherwise in one thread"
    return None if x.numel() and weight.numel() else "an empty tensor"


def why_not_packed(
    x: Tensor, weight: Tensor, residual: Tensor | None, kept: Sequence[Tensor | None]
) -> str | None:
    """Why the weight is not put into a layout of its own, or None; `kept` are the tensors it is made of."""
    if x.dim() != weight.dim():
        return "x is no batch"
    form = _CHANNELS_LAST.get(x.dim())
    if form is not None:
        if not x.is_contiguous(memory_format=form) or x.is_contiguous():
            return "x is not channels-last"
        if residual is not None and not residual.is_contiguous(memory_format=form):
            return "the residual is not channels-last"
    if any(t is not None and t.is_inference() for t in kept):
        return "a weight whose changes cannot be told"
    return why_not_onednn(x, weight, residual)


def convolved(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    scale: Tensor | None,
    residual: Tensor | None,
    activation: str | None,
    sizes: AxisSizes,
    packed: bool = False,
) -> Tensor:
    """As `burnt.kernels.conv`, or `conv_transpose` where the sizes are of one.

    Args:
        x: ``[batch, channels, *axes]``, or without batch.
        weight: as the op has it.
        bias: ``[out_channels]``.
        scale: ``[out_channels]``.
        residual: of the result's shape.
        activation: a key of `burnt.kernels.ACTIVATIONS`.
        sizes: of the axes.
        packed: whether to put the weight into oneDNN's layout, and keep it so; without gradients alone.
    """
    batched, signals = x.dim() == weight.dim(), weight.dim() == 3
    if not batched:
        x, residual = x.unsqueeze(0), None if residual is None else residual.unsqueeze(0)
    if signals:
        x, residual = x.unsqueeze(-2), None if residual is None else residual.unsqueeze(-2)
        sizes = sizes.of_images()
    taken, made = None, x
    if wants_gradient(x, weight, bias, scale, residual):
        weight = _scaled(weight, scale)
        made = _Convolution.apply(x, weight, bias, sizes)  # type: ignore[no-untyped-call]
    else:
        weight = _packed_weight(x, weight, scale, sizes) if packed else _scaled(weight, scale)
        taken = activation if residual is None and activation in _TAILS else None
        made = _called(x, weight, bias, sizes, _TAILS[taken])
    if residual is not None:
        made = made.add_(residual)
    if activation != taken:
        made = made.relu_() if activation == "relu" else apply_activation(made, activation)
    if signals:
        made = made.squeeze(-2).contiguous()
    return made if batched else made.squeeze(0)


def _scaled(weight: Tensor, scale: Tensor | None) -> Tensor:
    """A weight as images have it, each of its outputs scaled."""
    if scale is not None:
        weight = weight * scale.view(-1, *[1] * (weight.dim() - 1))
    return weight.unsqueeze(-2) if weight.dim() == 3 else weight


def _called(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    sizes: AxisSizes,
    tail: tuple[str, str] = _TAILS[None],
) -> Tensor:
    stride, padding, dilation, groups, more = sizes
    if more is None:
        return _torch.onednn_conv(x, weight, bias, padding, stride, dilation, groups, *tail)
    return _torch.onednn_conv_transpose(x, weight, bias, padding, more, stride, dilation, groups, *tail)


class _Convolution(torch.autograd.Function):
    """A convolution of a batch by oneDNN, with torch's gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, sizes: AxisSizes) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.sizes = sizes
        return _called(x, weight, bias, sizes)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        stride, padding, dilation, groups, more = ctx.sizes
        *wanted, _ = ctx.needs_input_grad
        found: Sequence[Tensor | None] = (None, None, None)
        if any(wanted):
            channels = [cotangent.shape[1]] if wanted[2] else None
            turned = more is not None, more or [0] * len(padding)
            found = torch.ops.aten.convolution_backward(
                cotangent, x, weight, channels, stride, padding, dilation, *turned, groups, wanted
            )
        return (*found, None)


_packed: MutableMapping[Tensor, tuple[tuple[object, ...], tuple[Tensor, Tensor | None]]] = (
    WeakIdKeyDictionary()
)


def _packed_weight(x: Tensor, weight: Tensor, scale: Tensor | None, sizes: AxisSizes) -> Tensor:
    """A scaled weight in oneDNN's layout, best for inputs as the first was; kept until it changes or goes."""
    state = (_torch.state_of(weight, _uses(x, sizes)), _torch.state_of(scale), str(sizes))
    known = _packed.get(weight)
    if known is None or known[0] != state:
        plain = _scaled(weight.detach(), None if scale is None else scale.detach())
        plain = plain.contiguous(memory_format=_CHANNELS_LAST[plain.dim()])
        stride, padding, dilation, groups, more = sizes
        made = _torch.onednn_packed_conv(plain, x.shape, padding, stride, dilation, groups, more)
        # The scale is kept with it: another one might be at its address otherwise.
        known = _packed[weight] = state, (made, scale)
    return known[1][0]


def _uses(x: Tensor, sizes: AxisSizes) -> int:
    """How often a convolution of these uses each element of its weight, about."""
    places = x.numel() // x.shape[1]
    return places // math.prod(sizes.stride) if sizes.more is None else places
