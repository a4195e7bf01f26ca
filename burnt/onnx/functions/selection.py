"""Selection, ordering and generation of elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from burnt.onnx.functions.tensors import to_ints


def full(
    shape: Tensor | Sequence[int], value: float, dtype: torch.dtype, device: torch.device | None = None
) -> Tensor:
    """Return a tensor of one value; its shape may be a tensor."""
    return torch.full(to_ints(shape), value, dtype=dtype, device=device)


def arange(start: Tensor, limit: Tensor, delta: Tensor) -> Tensor:
    """Return numbers from `start` up to `limit`, without it, in the dtype of `start`."""
    first, last, step = (np.float64(t.double().item()) for t in (start, limit, delta))
    if not start.is_floating_point():
        count = max(-((int(start) - int(limit)) // int(delta)), 0)  # torch refuses an empty range
        end = int(start) + count * int(delta)
        return torch.arange(int(start), end, int(delta), dtype=start.dtype, device=start.device)
    count = max(int(np.ceil((last - first) / step)), 0)
    steps = torch.arange(count, device=start.device, dtype=torch.float64)
    return (first + steps * step).to(start.dtype)


def eye_like(x: Tensor, k: int, dtype: torch.dtype) -> Tensor:
    """Return ones on the `k`-th diagonal of a matrix of the shape of `x`."""
    rows, columns = x.shape
    indices = torch.arange(columns, device=x.device) - torch.arange(rows, device=x.device)[:, None]
    return (indices == k).to(dtype)


def random_normal(
    shape: Tensor | Sequence[int],
    mean: float,
    scale: float,
    dtype: torch.dtype,
    device: torch.device | None = None,
) -> Tensor:
    """Return normally distributed numbers, of torch's default generator."""
    return torch.randn(to_ints(shape), dtype=dtype, device=device) * scale + mean


def random_uniform(
    shape: Tensor | Sequence[int],
    low: float,
    high: float,
    dtype: torch.dtype,
    device: torch.device | None = None,
) -> Tensor:
    """Return uniformly distributed numbers, of torch's default generator."""
    return torch.rand(to_ints(shape), dtype=dtype, device=device) * (high - low) + low


def bernoulli(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return 1 with the probabilities that `x` gives, else 0."""
    return torch.bernoulli(x).to(dtype)


def multinomial(x: Tensor, count: int, dtype: torch.dtype) -> Tensor:
    """Draw classes, with replacement, from unnormalized log probabilities ``[batch, classes]``."""
    return torch.multinomial(torch.softmax(x.float(), -1), count, replacement=True).to(dtype)


def topk(x: Tensor, k: Tensor | int, axis: int = -1, largest: bool = True) -> tuple[Tensor, Tensor]:
    """Return the `k` largest or smallest elements of an axis, sorted, and their indices.

    Of equal elements the first ones are taken, which ``torch.topk`` does not promise.
    """
    if x.dtype in (torch.uint16, torch.uint32, torch.uint64):
        order = np.argsort(x.numpy(force=True), axis=axis, kind="stable")
        if largest:
            size = x.shape[axis]
            reversed_ = np.flip(x.numpy(force=True), axis)
            order = np.flip(size - 1 - np.argsort(reversed_, axis=axis, kind="stable"), axis)
        indices = torch.from_numpy(order.copy()).to(x.device)
        ordered = torch.take_along_dim(x.view(_signed(x.dtype)), indices, axis).view(x.dtype)
    else:
        ordered, indices = torch.sort(x, dim=axis, descending=largest, stable=True)
    return ordered.narrow(axis, 0, int(k)), indices.narrow(axis, 0, int(k))


def _signed(dtype: torch.dtype) -> torch.dtype:
    return {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}[dtype]


def compress(x: Tensor, condition: Tensor, axis: int | None = None) -> Tensor:
    """Select the slices of an axis (or the elements, if it is None) whose condition is true."""
    if axis is None:
        x, axis = x.reshape(-1), 0
    return x.index_select(axis, condition[: x.shape[axis]].nonzero().reshape(-1))


def nonzero(x: Tensor) -> Tensor:
    """Return the indices of elements that are not zero, ``[rank, count]``."""
    return torch.nonzero(x).t()


def one_hot(indices: Tensor, depth: Tensor | int, values: Tensor, axis: int = -1) -> Tensor:
    """Return ``values[1]`` at the indices along a new axis and ``values[0]`` elsewhere.

    Negative indices count from the end; what is out of range has no ``values[1]``.
    """
    size = int(depth)
    whole = indices.to(torch.int64).unsqueeze(axis if axis >= 0 else axis + indices.dim() + 1)
    whole = torch.where(whole < 0, whole + size, whole)
    shape = [1] * whole.dim()
    shape[axis] = size
    hits = whole == torch.arange(size, device=indices.device).reshape(shape)
    return torch.where(hits, values[1], values[0])


def unique(x: Any, axis: int | None = None, sort: bool = True) -> tuple[Any, Tensor, Tensor, Tensor]:
    """Return the unique elements, or slices of an axis, sorted or in the order of their first appearance.

    Returned too: the index of the first appearance of each, the index of each element among the unique ones,
    and their counts.
    """
    if not isinstance(x, np.ndarray) and x.dtype == torch.bfloat16:
        values, *numbers = unique(x.float(), axis, sort)
        return (values.to(x.dtype), *numbers)
    array = x if isinstance(x, np.ndarray) else x.numpy(force=True)
    found, first, inverse, counts = np.unique(
        array, return_index=True, return_inverse=True, return_counts=True, axis=axis
    )
    inverse = inverse.reshape(-1)
    if not sort:
        order = np.argsort(first)
        found = np.take(found, order, axis=0 if axis is None else axis)
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        first, counts, inverse = first[order], counts[order], place[inverse]
    device = None if isinstance(x, np.ndarray) else x.device
    values = found if isinstance(x, np.ndarray) else torch.from_numpy(found).to(device)
    indices = (
        torch.from_numpy(np.ascontiguousarray(n)).to(torch.int64).to(device) for n in (first, inverse, counts)
    )
    return (values, *indices)  # type: ignore[return-value]
