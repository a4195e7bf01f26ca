"""Functions of normalizations and losses that torch has in other forms."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F


def batch_norm_training(
    x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, var: Tensor, eps: float, momentum: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalize by the statistics of the batch; return the new running mean and (biased) variance too."""
    axes = [axis for axis in range(x.dim()) if axis != 1]
    batch_var, batch_mean = torch.var_mean(x, axes, correction=0)
    y = torch.batch_norm(x, scale, bias, None, None, True, 0.0, eps, False)  # differentiates the statistics
    running = [old * momentum + new * (1 - momentum) for old, new in ((mean, batch_mean), (var, batch_var))]
    return y, running[0], running[1]


def layer_norm(
    x: Tensor, scale: Tensor | None, bias: Tensor | None = None, axis: int = -1, eps: float = 1e-5
) -> Tensor:
    """Normalize over the axes from `axis`; scale and bias are broadcast."""
    return layer_norm_statistics(x, scale, bias, axis, eps)[0]


def layer_norm_statistics(
    x: Tensor, scale: Tensor | None, bias: Tensor | None = None, axis: int = -1, eps: float = 1e-5
) -> tuple[Tensor, Tensor, Tensor]:
    """`layer_norm` with its mean and inverse standard deviation, in float32 for narrower inputs."""
    wide = x if x.dtype == torch.float64 else x.float()
    axes = list(range(axis % x.dim(), x.dim()))
    var, mean = torch.var_mean(wide, axes, correction=0, keepdim=True)
    inverse = torch.rsqrt(var + eps)
    y = ((wide - mean) * inverse).to(x.dtype)
    y = y if scale is None else y * scale
    return (y if bias is None else y + bias).to(x.dtype), mean, inverse


def rms_norm(x: Tensor, scale: Tensor, axis: int = -1, eps: float = 1e-5) -> Tensor:
    """Divide by the root of the mean square over the axes from `axis`, in float32 for narrower inputs."""
    wide = x if x.dtype == torch.float64 else x.float()
    axes = list(range(axis % x.dim(), x.dim()))
    inverse = torch.rsqrt(wide.square().mean(axes, keepdim=True) + eps)
    return ((wide * inverse).to(x.dtype) * scale).to(x.dtype)


def group_norm(x: Tensor, scale: Tensor, bias: Tensor, groups: int, eps: float = 1e-5) -> Tensor:
    """Group normalization; scale and bias are per channel, or per group as before opset 21."""
    if scale.numel() == x.shape[1]:
        return torch.group_norm(x, groups, scale, bias, eps)
    repeats = x.shape[1] // groups
    return torch.group_norm(x, groups, scale.repeat_interleave(repeats), bias.repeat_interleave(repeats), eps)


def local_response_norm(x: Tensor, size: int, alpha: float, beta: float, bias: float) -> Tensor:
    """Divide by a power of the mean square of neighbouring channels. Krizhevsky and others, 2012."""
    low = (size - 1) // 2
    squares = F.pad(x.square().movedim(1, -1), (low, size - 1 - low))
    total = squares.unfold(-1, size, 1).sum(-1).movedim(-1, 1)
    return x / (bias + alpha / size * total) ** beta


def lp_normalize(x: Tensor, axis: int = -1, p: int = 2) -> Tensor:
    """Divide by the p-norm along an axis; 0 where it is 0."""
    norm = torch.linalg.vector_norm(x, p, axis, keepdim=True)
    return torch.where(norm == 0, torch.zeros_like(x), x / norm)


def mean_variance_normalize(x: Tensor, axes: Sequence[int] = (0, 2, 3)) -> Tensor:
    """Subtract the mean and divide by the standard deviation plus 1e-9."""
    centred = x - x.mean(list(axes), keepdim=True)
    # Not mean(x^2) - mean(x)^2, as in ONNX's definition: rounding makes that negative, and the root NaN.
    std = centred.square().mean(list(axes), keepdim=True).sqrt()
    return centred / (std + 1e-9)


def dropout(x: Tensor, ratio: float = 0.5, training: bool = False) -> tuple[Tensor, Tensor]:
    """Return the input with elements dropped in training, and the mask of those that stay."""
    if not training or ratio == 0:
        return x, torch.ones(x.shape, dtype=torch.bool, device=x.device)
    mask = torch.rand(x.shape, device=x.device) >= ratio
    return x * mask / (1 - ratio), mask
