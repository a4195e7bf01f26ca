"""The candidate ``onednn packed`` of `burnt.kernels.conv`: by oneDNN, with an epilogue and packed weights.

For images and volumes in channels-last layout, without gradients. oneDNN fuses the activations that it
supports; the weight is scaled, converted to oneDNN's own layout, and cached until it changes. The residual is
added after the kernel: fused into it, it makes kernels up to a third slower and never faster (8 x 64 to 256
channels x 56 x 56: 4.3 ms instead of 3.1, two threads of a Zen 5).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from burnt import _torch
from burnt.device import processor
from burnt.kernels.interface.derived import derive
from burnt.kernels.interface.tuning_key import wants_gradient
from burnt.kernels.ops.activation import apply_activation

Sizes = int | Sequence[int]

_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
# Activations fused by oneDNN. relu is not among them: oneDNN's returns 0 for NaN.
_EPILOGUES = {
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


def unsupported_reason(x: Tensor, weight: Tensor, *rest: Any) -> str | None:
    """Return why oneDNN cannot compute a convolution with a packed weight, or None."""
    bias, scale, residual, *_ = rest
    if wants_gradient(x, weight, bias, scale, residual):
        return "a gradient is required: the weight changes with every step"
    if x.dtype not in processor().onednn:
        return f"oneDNN does not support {str(x.dtype).removeprefix('torch.')} on this machine"
    if x.dim() != weight.dim() or x.dim() not in _CHANNELS_LAST:
        return "x is not a batch of images or volumes"
    channels_last = _CHANNELS_LAST[x.dim()]
    if not x.is_contiguous(memory_format=channels_last) or x.is_contiguous():
        return "x is not channels-last"
    if residual is not None and residual.dtype != x.dtype:
        return "the residual has another dtype than x"
    if residual is not None and not residual.is_contiguous(memory_format=channels_last):
        return "the residual is not channels-last"
    if any(t is not None and t.is_inference() for t in (weight, bias, scale)):
        return "changes of the weight cannot be detected (inference tensor)"
    if weight.dim() == 5 and weight[0, 0].numel() == 1 and torch.get_num_threads() == 1:
        return "a 1 x 1 x 1 kernel in one thread, where torch returns another memory layout"
    return None if x.numel() and weight.numel() else "an empty tensor"


def packed_conv(x: Tensor, weight: Tensor, *rest: Any) -> Tensor:
    """Compute `burnt.kernels.conv`."""
    bias, scale, residual, activation, stride, padding, dilation, groups = rest
    stride, padding, dilation = (expand_sizes(sizes, x.dim() - 2) for sizes in (stride, padding, dilation))
    sizes = padding, stride, dilation, groups

    def pack() -> Tensor:
        plain = weight.detach()
        if scale is not None:
            plain = plain * scale.detach().view(-1, *[1] * (plain.dim() - 1))
        plain = plain.contiguous(memory_format=_CHANNELS_LAST[plain.dim()])
        return _torch.onednn_packed_conv(plain, x.shape, *sizes)

    uses_per_element = x.numel() // x.shape[1] // math.prod(stride)
    state = _torch.state_of(weight, uses_per_element), _torch.state_of(scale), str(sizes)
    packed = derive(weight, "conv", state, pack, keep_alive=scale)
    fused_activation = activation if residual is None and activation in _EPILOGUES else None
    output = _torch.onednn_conv(x, packed, bias, *sizes, *_EPILOGUES[fused_activation])
    if residual is not None:
        output = output.add_(residual)
    if activation != fused_activation:
        output = output.relu_() if activation == "relu" else apply_activation(output, activation)
    return output
