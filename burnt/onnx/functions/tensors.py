"""Functions of ops that move elements: indexing, padding, slicing, scattering."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

Sizes = Tensor | Sequence[int] | int


def to_ints(values: Sizes) -> list[int]:
    """Return integers of a tensor or sequence as a list; sizes that are open in an export stay so."""
    if isinstance(values, Tensor):
        return [int(v) for v in values.reshape(-1).tolist()]
    if _is_open(values):
        return [values]  # type: ignore[list-item]
    return [int(values)] if isinstance(values, int) else [v if _is_open(v) else int(v) for v in values]


def _is_open(value: object) -> bool:
    """Whether a size is a variable of an export."""
    return isinstance(value, torch.SymInt)


def device_of(x: Any) -> torch.device | None:
    """Return the device of a tensor; None, the default one, for arrays of strings."""
    return x.device if isinstance(x, Tensor) else None


def shape(x: Any, start: int = 0, end: int | None = None) -> Tensor:
    """Return the sizes of the axes from `start` to `end` as an int64 tensor."""
    return torch.tensor(list(x.shape)[start:end], dtype=torch.int64, device=device_of(x))


def numel(x: Any) -> Tensor:
    """Return the number of elements as an int64 tensor."""
    return torch.tensor(math.prod(x.shape), dtype=torch.int64, device=device_of(x))


def permute(x: Any, axes: Sequence[int] | None = None) -> Any:
    """Permute axes; None reverses them."""
    order = list(range(len(x.shape)))[::-1] if axes is None else list(axes)
    return x.permute(order) if isinstance(x, Tensor) else x.transpose(order)


def flatten(x: Any, axis: int) -> Any:
    """Return a matrix of a tensor or of strings: the axes before `axis` are its rows."""
    axis = axis if axis >= 0 else len(x.shape) + axis
    return x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))


def concat(tensors: Sequence[Any], axis: int) -> Any:
    """Concatenate tensors, or numpy arrays of strings."""
    if isinstance(tensors[0], Tensor):
        return torch.cat(list(tensors), dim=axis)
    import numpy as np

    return np.concatenate(tensors, axis=axis)


def squeeze(x: Any, axes: Sizes | None = None) -> Any:
    """Remove axes of size 1: all if none are named."""
    if axes is None:
        return x.squeeze()
    return x.squeeze(tuple(to_ints(axes)))


def unsqueeze(x: Any, axes: Sizes) -> Any:
    """Insert axes of size 1 where `axes` says, counted in the result."""
    named = to_ints(axes)
    rank = len(x.shape) + len(named)
    inserted = {axis % rank for axis in named}
    rest = iter(x.shape)
    return x.reshape([1 if i in inserted else next(rest) for i in range(rank)])


def expand(x: Tensor, sizes: Sizes) -> Tensor:
    """Broadcast to a shape, where the shape's own axes of size 1 are broadcast too."""
    shape = torch.broadcast_shapes(x.shape, to_ints(sizes))  # type: ignore[no-untyped-call]
    return x.expand(shape)


def tile(x: Tensor, repeats: Sizes) -> Tensor:
    """Repeat along each axis."""
    return x.repeat(to_ints(repeats))


def split(x: Any, sizes: Sizes, axis: int = 0) -> tuple[Any, ...]:
    """Split into parts of given sizes, or a number of parts of equal size; the last may be smaller."""
    if isinstance(sizes, int):
        length = x.shape[axis]
        size = -(-length // sizes)
        bounds = [min(i * size, length) for i in range(sizes + 1)]
        sizes = [b - a for a, b in itertools.pairwise(bounds)]
    return tuple(torch.split(x, to_ints(sizes), dim=axis))


def slice_(
    x: Tensor, starts: Sizes, ends: Sizes, axes: Sizes | None = None, steps: Sizes | None = None
) -> Tensor:
    """Slice along axes; negative bounds count from the end, steps may be negative, bounds are clamped."""
    start_list, end_list = to_ints(starts), to_ints(ends)
    axis_list = list(range(len(start_list))) if axes is None else to_ints(axes)
    step_list = [1] * len(start_list) if steps is None else to_ints(steps)
    for start, end, axis, step in zip(start_list, end_list, axis_list, step_list, strict=True):
        if step > 0:  # torch clamps bounds as ONNX does, and torch.export follows that for open sizes
            # Of bounds far below zero torch warns.
            start, end = (0 if isinstance(n, int) and n < -(2**62) else n for n in (start, end))
            x = x[(*(slice(None),) * (axis % x.dim()), slice(start, end, step))]
        else:
            size = x.shape[axis]
            start, end = (start + size if start < 0 else start), (end + size if end < 0 else end)
            start, end = min(max(start, 0), size - 1), min(max(end, -1), size - 1)
            x = x.index_select(
                axis, torch.arange(start, end, step, device=x.device) if start > end else _none(x)
            )
    return x


def _none(x: Tensor) -> Tensor:
    return torch.zeros(0, dtype=torch.int64, device=x.device)


def wrap_indices(indices: Tensor, size: int) -> Tensor:
    """Return indices that count from the end, the negative ones, as those that count from the beginning."""
    return torch.where(indices < 0, indices + size, indices)


def gather(x: Any, indices: Tensor, axis: int = 0) -> Any:
    """Take slices of an axis; indices may be negative."""
    if not isinstance(x, Tensor):
        return x.take(indices.numpy(), axis=axis)
    axis %= x.dim()
    index = wrap_indices(indices.long(), x.shape[axis])
    if index.dim() == 0:
        return (
            x.select(axis, int(index))
            if index.device.type == "cpu"
            else x.index_select(axis, index).squeeze(axis)
        )
    taken = x.index_select(axis, index.reshape(-1))
    return taken.reshape(*x.shape[:axis], *index.shape, *x.shape[axis + 1 :])


def gather_elements(x: Tensor, indices: Tensor, axis: int = 0) -> Tensor:
    """Take elements along an axis; indices may be negative."""
    return torch.gather(x, axis, wrap_indices(indices.long(), x.shape[axis]))


def _nd_index(sizes: Sequence[int], indices: Tensor) -> tuple[Tensor, ...]:
    return tuple(wrap_indices(indices[..., i].long(), sizes[i]) for i in range(indices.shape[-1]))


def gather_nd(x: Tensor, indices: Tensor, batch_dims: int = 0) -> Tensor:
    """Take the slices that the last axis of `indices` names, for each index of the batch axes."""
    batch = x.shape[:batch_dims]
    flat = x.reshape(-1, *x.shape[batch_dims:])
    rows = indices.reshape(math.prod(batch), *indices.shape[batch_dims:])
    index = _nd_index(x.shape[batch_dims:], rows)
    number = torch.arange(flat.shape[0], device=x.device).reshape(-1, *[1] * (rows.dim() - 2))
    taken = flat[(number.expand(rows.shape[:-1]), *index)]
    return taken.reshape((*indices.shape[:-1], *taken.shape[rows.dim() - 1 :]))


_REDUCTIONS = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


def scatter_elements(
    x: Tensor, indices: Tensor, updates: Tensor, axis: int = 0, reduction: str = "none"
) -> Tensor:
    """Return a copy of `x` with elements along an axis replaced, or reduced with the updates."""
    index = wrap_indices(indices.long(), x.shape[axis])
    if reduction == "none":
        return x.scatter(axis, index, updates)
    return x.scatter_reduce(axis, index, updates, _REDUCTIONS[reduction], include_self=True)


def scatter_nd(x: Tensor, indices: Tensor, updates: Tensor, reduction: str = "none") -> Tensor:
    """Return a copy of `x` with the slices that `indices` names replaced, or reduced with the updates."""
    depth = indices.shape[-1]
    inner = x.shape[depth:]
    number = torch.zeros(indices.shape[:-1], dtype=torch.int64, device=x.device)
    for i, index in enumerate(_nd_index(x.shape, indices)):
        number = number * x.shape[i] + index
    width = math.prod(inner)
    flat = x.reshape(math.prod(x.shape[:depth]), width)
    rows = number.reshape(-1, 1).expand(-1, width)
    return scatter_elements(flat, rows, updates.reshape(-1, width), 0, reduction).reshape(x.shape)


def pad(
    x: Tensor, pads: Sizes, mode: str = "constant", value: Any = None, axes: Sizes | None = None
) -> Tensor:
    """Pad, or crop where a number is negative.

    `pads` are those before each axis, then those after each; `mode` is constant, reflect, edge or wrap, and
    `value`, a number or a tensor of one element, is for constant.
    """
    numbers = to_ints(pads)
    named = list(range(x.dim())) if axes is None else [axis % x.dim() for axis in to_ints(axes)]
    before, after = numbers[: len(named)], numbers[len(named) :]
    if mode == "constant":
        both = dict(zip(named, zip(before, after, strict=True), strict=True))
        reversed_pads = [n for axis in range(x.dim() - 1, -1, -1) for n in both.get(axis, (0, 0))]
        fill = 0 if value is None else value.item() if isinstance(value, Tensor) else value
        return F.pad(x, reversed_pads, value=fill)
    for axis, low, high in zip(named, before, after, strict=True):
        start, size, end = max(-low, 0), x.shape[axis], max(-high, 0)
        kept = x.narrow(axis, start, size - start - end)
        position = torch.arange(-max(low, 0), kept.shape[axis] + max(high, 0), device=x.device)
        x = kept.index_select(axis, _reflect_index(position, kept.shape[axis], mode))
    return x


def _reflect_index(position: Tensor, size: int, mode: str) -> Tensor:
    if mode == "edge":
        return position.clamp(0, size - 1)
    if mode == "wrap":
        return position % size
    period = max(2 * (size - 1), 1)
    folded = position % period
    return torch.where(folded >= size, period - folded, folded)


def trilu(x: Tensor, k: Tensor | int = 0, upper: bool = True) -> Tensor:
    """Return the upper or lower triangle of matrices."""
    diagonal = int(k)
    return torch.triu(x, diagonal) if upper else torch.tril(x, diagonal)


def depth_to_space(x: Tensor, block: int, mode: str = "DCR") -> Tensor:
    """Move blocks of channels into the plane: channel-last (DCR) or channel-first (CRD) blocks."""
    if mode == "CRD":
        return F.pixel_shuffle(x, block)
    n, c, h, w = x.shape
    parts = x.reshape(n, block, block, c // block**2, h, w).permute(0, 3, 4, 1, 5, 2)
    return parts.reshape(n, c // block**2, h * block, w * block)


def space_to_depth(x: Tensor, block: int, mode: str = "DCR") -> Tensor:
    """Move blocks of the plane into channels: the inverse of `depth_to_space`."""
    if mode == "CRD":
        return F.pixel_unshuffle(x, block)
    n, c, h, w = x.shape
    parts = x.reshape(n, c, h // block, block, w // block, block).permute(0, 3, 5, 1, 2, 4)
    return parts.reshape(n, c * block**2, h // block, w // block)


def reverse_sequence(x: Tensor, lengths: Tensor, time_axis: int = 0, batch_axis: int = 1) -> Tensor:
    """Reverse the first elements of each sequence of a batch, as many as its length."""
    y = x.movedim((time_axis, batch_axis), (0, 1))
    step = torch.arange(y.shape[0], device=x.device)[:, None]
    index = torch.where(step < lengths[None], lengths[None] - 1 - step, step)
    index = index.reshape(*index.shape, *[1] * (y.dim() - 2)).expand(y.shape)
    return torch.gather(y, 0, index).movedim((0, 1), (time_axis, batch_axis))


def col2im(
    x: Tensor,
    image: Sizes,
    block: Sizes,
    dilations: Sequence[int],
    pads: Sequence[int],
    strides: Sequence[int],
) -> Tensor:
    """Sum columns ``[N, C * prod(block), L]`` into images ``[N, C, *image]``."""
    image, block = to_ints(image), to_ints(block)
    rank = len(image)
    padded = [image[i] + pads[i] + pads[rank + i] for i in range(rank)]
    steps = [(padded[i] - dilations[i] * (block[i] - 1) - 1) // strides[i] + 1 for i in range(rank)]
    n, channels = x.shape[0], x.shape[1] // math.prod(block)
    columns = x.reshape(n, channels, math.prod(block), *steps)
    result = x.new_zeros(n, channels, *padded)
    for number, offset in enumerate(itertools.product(*map(range, block))):
        where = [
            slice(o * d, o * d + s * (count - 1) + 1, s)
            for o, d, s, count in zip(offset, dilations, strides, steps, strict=True)
        ]
        result[(slice(None), slice(None), *where)] += columns[:, :, number]
    inside = [slice(pads[i], pads[i] + image[i]) for i in range(rank)]
    return result[(slice(None), slice(None), *inside)]


def unpack(values: Sequence[Any]) -> tuple[Any, ...]:
    """Return several results, to be named one by one."""
    return tuple(values)
