"""What layers of torch accept that are recognised by their class, since their attributes do not tell.

`burnt.inspect.layers` has those that are recognised by the names of their attributes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from burnt.inspect.misfit import Misfit, rank_hint
from burnt.inspect.specs import shape_text

SAME_INPUTS = (nn.EmbeddingBag, nn.LogSoftmax, nn.Softmax, nn.Softmax2d, nn.Softmin, nn.Upsample)
"""Layers whose subclasses accept the same inputs, also those with a ``forward`` of their own."""

_AXES = {1: ("L",), 2: ("H", "W"), 3: ("D", "H", "W")}
_UPSAMPLE_MODES = {1: ("linear", "cubic"), 2: ("bilinear", "bicubic", "lanczos"), 3: ("trilinear",)}
_POOLS = {
    axes: tuple(
        getattr(nn, f"{name}{axes}d")
        for name in ("MaxPool", "AvgPool", "LPPool", "AdaptiveMaxPool", "AdaptiveAvgPool", "MaxUnpool")
    )
    for axes in _AXES
}
_MEANS = (nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d)
_CONSTANT_PADS = (nn.ConstantPad1d, nn.ConstantPad2d, nn.ConstantPad3d)  # and ZeroPads, which are theirs
_CIRCULAR_PADS = (nn.CircularPad1d, nn.CircularPad2d, nn.CircularPad3d)
_REFLECTION_PADS = (nn.ReflectionPad1d, nn.ReflectionPad2d, nn.ReflectionPad3d)
_REPLICATION_PADS = (nn.ReplicationPad1d, nn.ReplicationPad2d, nn.ReplicationPad3d)
_PADS = (*_CONSTANT_PADS, *_CIRCULAR_PADS, *_REFLECTION_PADS, *_REPLICATION_PADS)


def misfit_by_class(module: nn.Module, inputs: Sequence[torch.Tensor]) -> Misfit | None:
    """Return why a layer does not accept these inputs; None if they fit or the layer is unknown.

    >>> misfit_by_class(nn.PixelShuffle(2), [torch.empty(1, 6, 3, 3)]).expected
    '(..., 4 * C, H, W)'
    """
    x = inputs[0]
    match module:
        case nn.Softmax(dim=int(dim)) | nn.LogSoftmax(dim=int(dim)) | nn.Softmin(dim=int(dim)):
            return _axis(x.dim(), dim, x)
        case nn.GLU(dim=dim):
            if (problem := _axis(x.dim(), dim, x)) is not None:
                return problem
            fits, expected = x.dim() > 0 and x.shape[dim] % 2 == 0, f"an even size on axis {dim}, to halve it"
        case nn.Softmax2d():
            fits, expected = x.dim() in (3, 4), "(N, C, H, W)"
        case nn.Dropout1d():
            fits, expected = x.dim() in (2, 3), "(N, C, L)"
        case nn.Dropout2d(training=True) | nn.FeatureAlphaDropout(training=True):
            fits, expected = x.dim() >= 2 or module.p == 0, "(N, C, ...)"
        case nn.Dropout3d(training=True):
            fits, expected = x.dim() >= 1 or module.p == 0, "(N, C, D, H, W)"
        case nn.Flatten(start_dim=start, end_dim=end):
            return _flatten(x, start, end)
        case nn.Unflatten(dim=int(dim), unflattened_size=sizes):
            return _axis(x.dim(), dim, x) or _unflatten(x, dim, tuple(sizes))
        case nn.PixelShuffle(upscale_factor=r):
            fits = x.dim() >= 3 and x.shape[-3] % (r * r) == 0
            expected = f"(..., {r * r} * C, H, W)"
        case nn.PixelUnshuffle(downscale_factor=r):
            fits = x.dim() >= 3 and x.shape[-2] % r == 0 and x.shape[-1] % r == 0
            expected = f"(..., C, {r} * H, {r} * W)"
        case nn.ChannelShuffle(groups=groups):
            fits, expected = x.dim() >= 3 and x.shape[1] % groups == 0, f"(N, {groups} * C, L, ...)"
        case nn.Fold():
            size, blocks = math.prod(_pair(module.kernel_size)), _blocks(_pair(module.output_size), module)
            fits = x.dim() in (2, 3) and x.shape[-2] % size == 0 and x.shape[-1] == math.prod(blocks)
            expected = f"(N, {size} * C, {math.prod(blocks)})"
        case nn.Unfold():
            fits = x.dim() in (3, 4) and min(_blocks(tuple(x.shape[-2:]), module)) > 0
            expected = "(N, C, H, W), not smaller than the kernel" if x.dim() in (3, 4) else "(N, C, H, W)"
        case nn.Upsample():
            axes = _upsample_axes(module)
            fits = x.dim() - 2 in axes
            expected = " or ".join(f"(N, C, {', '.join(_AXES[n])})" for n in axes)
        case nn.CosineSimilarity(dim=dim):
            problem, rank = _broadcast(inputs), max(tensor.dim() for tensor in inputs)
            return problem or _axis(rank, dim, x)
        case nn.PairwiseDistance():
            return _broadcast(inputs)
        case nn.Bilinear():
            return _bilinear(module, inputs)
        case nn.LocalResponseNorm():
            fits, expected = x.dim() >= 3, "(N, C, L, ...)"
        case _ if isinstance(module, _PADS):
            return _padding(module, x)
        case _ if pooled := next((n for n, pools in _POOLS.items() if isinstance(module, pools)), None):
            fits, expected = x.dim() - pooled in (1, 2), f"(N, C, {', '.join(_AXES[pooled])})"
            if isinstance(module, _MEANS) and x.dim() >= pooled:
                fits = fits or set(_pair(module.output_size)) == {1}  # torch's mean of the last axes
        case _:
            return None
    return None if fits else Misfit(expected, shape_text(x), hint=rank_hint(type(module).__name__, x.dim()))


def pooled_channels_hint(module: nn.Module, x: object) -> str | None:
    """Say that a pool may have taken a batch for a sample without batch axis, and pooled its channels."""
    axes = next((n for n, pools in _POOLS.items() if isinstance(module, pools)), 0)
    if axes < 2 or not isinstance(x, torch.Tensor) or x.dim() != axes + 1:
        return None
    # burnt's pools are torch's, with their names.
    return f"pooled the channels of {shape_text(x)}, {rank_hint(type(module).__name__, x.dim())}"


def _axis(rank: int, dim: int, x: torch.Tensor) -> Misfit | None:
    # A scalar has the axes 0 and -1.
    return None if -max(rank, 1) <= dim < max(rank, 1) else Misfit(f"an axis {dim}", shape_text(x))


def _flatten(x: torch.Tensor, start: int, end: int) -> Misfit | None:
    rank = max(x.dim(), 1)
    if (problem := _axis(rank, start, x) or _axis(rank, end, x)) is not None or start % rank <= end % rank:
        return problem
    return Misfit(f"axis {start} not after axis {end}", shape_text(x))


def _unflatten(x: torch.Tensor, dim: int, sizes: tuple[int, ...]) -> Misfit | None:
    found = x.shape[dim] if x.dim() else 1
    known = math.prod(size for size in sizes if size != -1)
    if found == known or (-1 in sizes and known and found % known == 0):
        return None
    expected = f"a multiple of {known}" if -1 in sizes else f"size {known}"
    return Misfit(f"{expected} on axis {dim}, for {sizes}", shape_text(x))


def _pair(value: Any) -> tuple[int, ...]:
    return (value, value) if isinstance(value, int) else tuple(value)


def _blocks(size: tuple[int, ...], module: Any) -> list[int]:
    """Return how many blocks of an Unfold or Fold there are on each axis."""
    options = (_pair(module.kernel_size), _pair(module.dilation), _pair(module.padding), _pair(module.stride))
    return [
        (axis + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
        for axis, kernel, dilation, padding, stride in zip(size, *options, strict=True)
    ]


def _upsample_axes(module: nn.Upsample) -> tuple[int, ...]:
    """Return the numbers of axes after the channels that an Upsample accepts."""
    # The other modes are for all ranks.
    axes = tuple(n for n, modes in _UPSAMPLE_MODES.items() if module.mode in modes) or (1, 2, 3)
    given = module.size if module.size is not None else module.scale_factor
    return (len(given),) if isinstance(given, tuple) and len(given) in axes else axes


def _broadcast(inputs: Sequence[torch.Tensor]) -> Misfit | None:
    shapes = [tuple(tensor.shape) for tensor in inputs]
    try:
        torch.broadcast_shapes(*shapes)  # type: ignore[no-untyped-call]
    except RuntimeError:
        return Misfit("equal shapes, or shapes that broadcast", " and ".join(map(shape_text, inputs)))
    return None


def _bilinear(module: nn.Bilinear, inputs: Sequence[torch.Tensor]) -> Misfit | None:
    sizes = (module.in1_features, module.in2_features)
    if len(inputs) != 2:
        return None
    fits = all(x.shape[-1:] == (size,) for x, size in zip(inputs, sizes, strict=True))
    if fits and inputs[0].shape[:-1] == inputs[1].shape[:-1]:
        return None
    expected = " and ".join(f"(..., {size})" for size in sizes)
    return Misfit(f"{expected}, equal before the last axis", " and ".join(map(shape_text, inputs)))


def _padding(module: Any, x: torch.Tensor) -> Misfit | None:
    names = _AXES[len(module.padding) // 2]
    any_rank = isinstance(module, _CONSTANT_PADS)
    rank = len(names)
    shape = f"(..., {', '.join(names)})" if any_rank else f"(N, C, {', '.join(names)})"
    if x.dim() < rank or not (any_rank or x.dim() in (rank + 1, rank + 2)):
        return Misfit(shape, shape_text(x))
    # The pairs of sides are listed from the last axis on.
    for i, name in enumerate(reversed(names)):
        before, after = module.padding[2 * i : 2 * i + 2]
        # Constant padding removes elements before it adds any. In one dimension, torch refuses empty results
        # of reflection and replication.
        least = max(0, -before) + max(0, -after)
        if isinstance(module, _CIRCULAR_PADS):
            least = max(0, -before - after, before, after)
        elif isinstance(module, _REPLICATION_PADS):
            least = max(1, (rank == 1) - before - after)
        elif isinstance(module, _REFLECTION_PADS):
            least = max(1, (rank == 1) - before - after, before + 1, after + 1)
        if x.shape[-1 - i] < least:
            return Misfit(f"{shape} with {name} at least {least}", shape_text(x))
    return None
