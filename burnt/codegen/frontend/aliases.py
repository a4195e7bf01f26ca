"""Results that share memory in the eager function: which a plan computes, and which are views of those."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from burnt.codegen.frontend.overlap import footprint, has_internal_overlap, may_overlap


class Alias(NamedTuple):
    """A result that is another one, or a view of it."""

    base: int  # position of the other result
    # Shape, strides, and offset from the base's first element; None for the same object.
    layout: tuple[tuple[int, ...], tuple[int, ...], int] | None
    is_detached: bool  # whether no gradient flows through it

    def of(self, base: Tensor) -> Tensor:
        """Return the view of the base."""
        if self.layout is None:
            return base
        shape, strides, offset = self.layout
        base = base.detach() if self.is_detached else base
        return base.as_strided(shape, strides, base.storage_offset() + offset)


class Aliases(NamedTuple):
    """Which results a plan need not compute."""

    by_position: dict[int, Alias]  # the results that are other results or views of these
    unsupported_reason: str | None = None  # why no plan can return results that overlap in this way


def find_aliases(results: Sequence[Any]) -> Aliases:
    """Find the results of the eager function that are other results or views of them, or overlap otherwise.

    Results that lie apart in one storage, as those of ``chunk``, are no aliases.
    """
    found: dict[int, Alias] = {}
    by_storage: dict[int, list[int]] = {}
    for i, result in enumerate(results):
        if isinstance(result, Tensor) and result.layout == torch.strided:
            by_storage.setdefault(result.untyped_storage()._cdata, []).append(i)
    for positions in by_storage.values():
        aliases = _aliases_of_results(results, positions)
        if aliases is None:
            return Aliases({}, "its results overlap in part, and none is a view of another")
        found |= aliases
    return Aliases(found)


def _aliases_of_results(results: Sequence[Any], positions: Sequence[int]) -> dict[int, Alias] | None:
    """Return which results are views of others; None if two overlap and neither is a view of the other."""
    aliases: dict[int, Alias] = {}
    bases: list[int] = []
    # The first are those that others can be views of.
    for i in sorted(positions, key=lambda i: _rank(results[i]), reverse=True):
        overlapping = [base for base in bases if _overlap(results[base], results[i])]
        if not overlapping:
            bases.append(i)
            continue
        alias = _alias(results[overlapping[0]], results[i], overlapping[0])
        if alias is None or len(overlapping) > 1:
            return None
        aliases[i] = alias
    return aliases


def _rank(result: Tensor) -> tuple[bool, bool, int]:
    return result.requires_grad, not has_internal_overlap(result.shape, result.stride()), result.numel()


def _offset(base: Tensor, tensor: Tensor) -> int:
    """Return the distance of their first elements, in bytes."""
    return int(tensor.storage_offset()) * tensor.itemsize - int(base.storage_offset()) * base.itemsize


def _overlap(base: Tensor, tensor: Tensor) -> bool:
    return base is tensor or may_overlap(footprint(base), footprint(tensor), _offset(base, tensor))


def _alias(base: Tensor, tensor: Tensor, position: int) -> Alias | None:
    """Return a tensor as a view of a base; None if it is none."""
    if base is tensor:
        return Alias(position, None, False)
    offset = _offset(base, tensor) // base.itemsize
    if base.dtype != tensor.dtype or not _holds(base, tensor, offset):
        return None
    layout = tuple(tensor.shape), tuple(tensor.stride()), offset
    return Alias(position, layout, base.requires_grad and not tensor.requires_grad)


def _holds(base: Tensor, tensor: Tensor, offset: int) -> bool:
    """Whether all elements of a tensor, which begins at this offset, are found to be elements of a base."""
    end = offset + footprint(tensor).num_bytes // tensor.itemsize
    size = footprint(base).num_bytes // base.itemsize
    if offset < 0 or end > size:
        return False
    is_dense = size == base.numel() and not has_internal_overlap(base.shape, base.stride())
    if is_dense or (base.shape, base.stride()) == (tensor.shape, tensor.stride()):
        return True
    # The base has gaps: each axis of the tensor must run along one of the base's, and stay within it.
    axes = [(stride, size) for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1]
    for stride, size in sorted(zip(base.stride(), base.shape, strict=True), reverse=True):
        if size > 1 and stride:
            along = [axis for axis in axes if axis[0] >= stride and not axis[0] % stride]
            last = offset // stride + sum(step // stride * (count - 1) for step, count in along)
            if last >= size:
                return False
            axes, offset = [axis for axis in axes if axis not in along], offset % stride
    return not offset and all(step == 0 for step, _ in axes)
