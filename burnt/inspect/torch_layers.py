"""What layers of torch accept that are recognised by their class, since their attributes do not tell.

`burnt.inspect.layers` has those that are recognised by the names of their attributes. Other layers of torch
raise errors of their own on meta tensors, which say what is wrong.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from burnt.inspect.shape_mismatch import ShapeMismatch, rank_hint
from burnt.inspect.specs import shape_text

SAME_INPUTS = (nn.EmbeddingBag, nn.LogSoftmax, nn.Softmax, nn.Softmin, nn.Upsample)
"""Layers whose subclasses accept the same inputs, also those with a ``forward`` of their own."""

_AXES = {1: "L", 2: "H, W", 3: "D, H, W"}
_UPSAMPLE_MODES = {1: ("linear", "cubic"), 2: ("bilinear", "bicubic", "lanczos"), 3: ("trilinear",)}
_POOLS = {
    axes: tuple(
        getattr(nn, f"{name}{axes}d")
        for name in ("MaxPool", "AvgPool", "LPPool", "AdaptiveMaxPool", "AdaptiveAvgPool", "MaxUnpool")
    )
    for axes in _AXES
}
_MEANS = (nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d)


def mismatch_by_class(module: nn.Module, inputs: Sequence[torch.Tensor]) -> ShapeMismatch | None:
    """Return why a layer does not accept these inputs; None if they fit or the layer is unknown.

    >>> mismatch_by_class(nn.MaxPool2d(2), [torch.empty(6, 3)]).expected
    '(N, C, H, W)'
    """
    x = inputs[0]
    pooled = _pooled_axes(module)
    match module:
        case nn.Softmax(dim=int(dim)) | nn.LogSoftmax(dim=int(dim)) | nn.Softmin(dim=int(dim)):
            # torch's meta kernel accepts any axis. A scalar has the axes 0 and -1.
            rank = max(x.dim(), 1)
            return None if -rank <= dim < rank else ShapeMismatch(f"an axis {dim}", shape_text(x))
        case nn.Upsample():
            axes = _upsample_axes(module)
            fits = x.dim() - 2 in axes
        case _ if pooled:
            axes = (pooled,)
            fits = x.dim() - pooled in (1, 2)
            if isinstance(module, _MEANS) and x.dim() >= pooled:
                size = module.output_size
                fits = fits or set(size if isinstance(size, tuple) else (size,)) == {1}  # torch's mean
        case _:
            return None
    expected = " or ".join(f"(N, C, {_AXES[n]})" for n in axes)
    hint = rank_hint(type(module).__name__, x.dim())
    return None if fits else ShapeMismatch(expected, shape_text(x), hint=hint)


def pooled_channels_hint(module: nn.Module, x: object) -> str | None:
    """Say that a pool may have taken a batch for a sample without batch axis, and pooled its channels."""
    axes = _pooled_axes(module)
    if axes < 2 or not isinstance(x, torch.Tensor) or x.dim() != axes + 1:
        return None
    # burnt's pools are torch's, with their names.
    return f"pooled the channels of {shape_text(x)}, {rank_hint(type(module).__name__, x.dim())}"


def _pooled_axes(module: nn.Module) -> int:
    """Return how many axes a pooling layer pools; 0 for other layers."""
    return next((n for n, pools in _POOLS.items() if isinstance(module, pools)), 0)


def _upsample_axes(module: nn.Upsample) -> tuple[int, ...]:
    """Return the numbers of axes after the channels that an Upsample accepts."""
    # The other modes are for all ranks.
    axes = tuple(n for n, modes in _UPSAMPLE_MODES.items() if module.mode in modes) or (1, 2, 3)
    given = module.size if module.size is not None else module.scale_factor
    return (len(given),) if isinstance(given, tuple) and len(given) in axes else axes
