"""Convolutions by oneDNN with an epilogue: the CPU candidates of `burnt.kernels.conv` and `conv_transpose`.

In training the weight is passed in its usual layout, and gradients are torch's. Without gradients oneDNN
fuses the activations that it supports, and the weight may be converted to oneDNN's own layout once. The
residual is added after the kernel: fused into it, it makes kernels up to a third slower and never faster
(8 x 64 to 256 channels x 56 x 56: 4.3 ms instead of 3.1, two threads of a Zen 5). A convolution over one axis
is computed as one of images with one row.
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

Sizes = int | Sequence[int]

_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
# Activations fused by oneDNN. relu is not among them: oneDNN's returns 0 for NaN.
_ONEDNN_EPILOGUES = {
    None: ("none", ""),
    "gelu": ("gelu", "none"),
    "gelu_tanh": ("gelu", "tanh"),
    "silu": ("swish", ""),
    "hardswish": ("hardswish", ""),
}


def expand_sizes(sizes: Sizes, axes: int) -> list[int]:
    """Return one number per axis."""
    sizes_list = [sizes] if isinstance(sizes, int) else list(sizes)
    return sizes_list * axes if len(sizes_list) == 1 else sizes_list


class AxisSizes(NamedTuple):
    """Sizes of a convolution per axis; `output_padding` is None unless it is a transposed one."""

    stride: list[int]
    padding: list[int]
    dilation: list[int]
    groups: int
    output_padding: list[int] | None = None

    @classmethod
    def of(
        cls,
        weight: Tensor,
        stride: Sizes,
        padding: Sizes,
        dilation: Sizes,
        groups: int,
        output_padding: Sizes | None = None,
    ) -> AxisSizes:
        """Build from sizes given as one number or one per axis of the weight."""
        axes = weight.dim() - 2
        stride, padding, dilation = (expand_sizes(sizes, axes) for sizes in (stride, padding, dilation))
        more = None if output_padding is None else expand_sizes(output_padding, axes)
        return cls(stride, padding, dilation, groups, more)

    def as_images(self) -> AxisSizes:
        """Return the sizes of a one-axis convolution as those of images with one row."""
        output_padding = None if self.output_padding is None else [0, *self.output_padding]
        return AxisSizes(
            [1, *self.stride], [0, *self.padding], [1, *self.dilation], self.groups, output_padding
        )


def onednn_unsupported_reason(x: Tensor, weight: Tensor, residual: Tensor | None = None) -> str | None:
    """Return why oneDNN does not support these tensors, or None."""
    if x.dtype not in processor().onednn:
        return f"oneDNN does not support {str(x.dtype).removeprefix('torch.')} on this machine"
    if residual is not None and residual.dtype != x.dtype:
        return "the residual has another dtype than x"
    if weight.dim() == 3 and not weight.is_contiguous():
        return "the weight of a one-axis convolution is not contiguous"
    if weight.dim() == 5 and weight[0, 0].numel() == 1 and torch.get_num_threads() == 1:
        return "a 1 x 1 x 1 kernel in one thread, where torch returns another memory layout"
    return None if x.numel() and weight.numel() else "an empty tensor"


def packed_unsupported_reason(
    x: Tensor, weight: Tensor, residual: Tensor | None, cached_from: Sequence[Tensor | None]
) -> str | None:
    """Return why the weight cannot be packed, or None; `cached_from` are the tensors it is computed from."""
    if x.dim() != weight.dim():
        return "x has no batch axis"
    channels_last = _CHANNELS_LAST.get(x.dim())
    if channels_last is not None:
        if not x.is_contiguous(memory_format=channels_last) or x.is_contiguous():
            return "x is not channels-last"
        if residual is not None and not residual.is_contiguous(memory_format=channels_last):
            return "the residual is not channels-last"
    if any(t is not None and t.is_inference() for t in cached_from):
        return "changes of the weight cannot be detected (inference tensor)"
    return onednn_unsupported_reason(x, weight, residual)


def run_convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    scale: Tensor | None,
    residual: Tensor | None,
    activation: str | None,
    sizes: AxisSizes,
    packed: bool = False,
) -> Tensor:
    """Compute `burnt.kernels.conv`, or `conv_transpose` if the sizes have an output padding.

    `packed`: convert the weight to oneDNN's layout and cache it; only without gradients.
    """
    has_batch, is_one_axis = x.dim() == weight.dim(), weight.dim() == 3
    if not has_batch:
        x, residual = x.unsqueeze(0), None if residual is None else residual.unsqueeze(0)
    if is_one_axis:
        x, residual = x.unsqueeze(-2), None if residual is None else residual.unsqueeze(-2)
        sizes = sizes.as_images()
    fused_activation, output = None, x
    if wants_gradient(x, weight, bias, scale, residual):
        weight = _scale_weight(weight, scale)
        output = _Convolution.apply(x, weight, bias, sizes)  # type: ignore[no-untyped-call]
    else:
        weight = _packed_weight(x, weight, scale, sizes) if packed else _scale_weight(weight, scale)
        fused_activation = activation if residual is None and activation in _ONEDNN_EPILOGUES else None
        output = _onednn_conv(x, weight, bias, sizes, _ONEDNN_EPILOGUES[fused_activation])
    if residual is not None:
        output = output.add_(residual)
    if activation != fused_activation:
        output = output.relu_() if activation == "relu" else apply_activation(output, activation)
    if is_one_axis:
        output = output.squeeze(-2).contiguous()
    return output if has_batch else output.squeeze(0)


def _scale_weight(weight: Tensor, scale: Tensor | None) -> Tensor:
    """Multiply each output channel by its scale; add an axis to the weight of a one-axis convolution."""
    if scale is not None:
        weight = weight * scale.view(-1, *[1] * (weight.dim() - 1))
    return weight.unsqueeze(-2) if weight.dim() == 3 else weight


def _onednn_conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    sizes: AxisSizes,
    epilogue: tuple[str, str] = _ONEDNN_EPILOGUES[None],
) -> Tensor:
    stride, padding, dilation, groups, output_padding = sizes
    if output_padding is None:
        return _torch.onednn_conv(x, weight, bias, padding, stride, dilation, groups, *epilogue)
    return _torch.onednn_conv_transpose(
        x, weight, bias, padding, output_padding, stride, dilation, groups, *epilogue
    )


class _Convolution(torch.autograd.Function):
    """Convolution of a batch by oneDNN, with torch's gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, sizes: AxisSizes) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.sizes = sizes
        return _onednn_conv(x, weight, bias, sizes)

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        stride, padding, dilation, groups, output_padding = ctx.sizes
        *needs_grad, _ = ctx.needs_input_grad
        grads: Sequence[Tensor | None] = (None, None, None)
        if any(needs_grad):
            bias_sizes = [grad_out.shape[1]] if needs_grad[2] else None
            transposed_args = output_padding is not None, output_padding or [0] * len(padding)
            sizes = (stride, padding, dilation, *transposed_args, groups, needs_grad)
            grads = torch.ops.aten.convolution_backward(grad_out, x, weight, bias_sizes, *sizes)
        return (*grads, None)


_packed_weights: MutableMapping[Tensor, tuple[tuple[object, ...], tuple[Tensor, Tensor | None]]] = (
    WeakIdKeyDictionary()
)


def _packed_weight(x: Tensor, weight: Tensor, scale: Tensor | None, sizes: AxisSizes) -> Tensor:
    """Return the scaled, packed weight for inputs like `x`; it is cached until it changes or is freed."""
    state = (_torch.state_of(weight, _uses_per_element(x, sizes)), _torch.state_of(scale), str(sizes))
    entry = _packed_weights.get(weight)
    if entry is None or entry[0] != state:
        plain = _scale_weight(weight.detach(), None if scale is None else scale.detach())
        plain = plain.contiguous(memory_format=_CHANNELS_LAST[plain.dim()])
        stride, padding, dilation, groups, output_padding = sizes
        packed = _torch.onednn_packed_conv(plain, x.shape, padding, stride, dilation, groups, output_padding)
        # Keep the scale alive: otherwise another one might get its address, and match the state.
        entry = _packed_weights[weight] = state, (packed, scale)
    return entry[1][0]


def _uses_per_element(x: Tensor, sizes: AxisSizes) -> int:
    """Estimate how often a convolution uses each element of its weight."""
    num_positions = x.numel() // x.shape[1]
    return num_positions // math.prod(sizes.stride) if sizes.output_padding is None else num_positions
