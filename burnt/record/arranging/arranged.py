"""Tensors that are arranged differently from how a file stores them: read when needed, from the same file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from burnt.record.stored import MemoryTensor, StoredTensor


@dataclass(frozen=True)
class ArrangedTensor(StoredTensor):
    """A tensor whose values come from other stored tensors."""

    inner: tuple[StoredTensor, ...]

    @property
    def sources(self) -> tuple[StoredTensor, ...]:
        """The tensors of the file that the values come from."""
        return tuple(source for stored in self.inner for source in stored.sources)

    def value(self) -> Tensor:
        """Return the values; of tensors in memory it is a view where a view suffices."""
        raise NotImplementedError

    def read_into(self, out: Tensor) -> None:
        """Copy the values to a tensor."""
        out.copy_(self.value())

    def verify(self, where: str) -> None:
        """Verify each tensor of the file."""
        for source in self.sources:
            source.verify(where)


@dataclass(frozen=True)
class RearrangedTensor(ArrangedTensor):
    """A tensor with its values in another order."""

    rearrange: Callable[[Tensor], Tensor] = field(repr=False)

    def value(self) -> Tensor:
        """Return a view where `rearrange` does."""
        return self.rearrange(value_of(self.inner[0]))


def permuted(stored: StoredTensor, axes: tuple[int, ...]) -> StoredTensor:
    """Return a tensor with its axes in another order; as it is where it has another number of axes."""
    if len(stored.shape) != len(axes):
        return stored
    shape = tuple(stored.shape[axis] for axis in axes)
    return RearrangedTensor(shape, stored.dtype, (stored,), lambda value: value.permute(axes))


@dataclass(frozen=True)
class JoinedTensor(ArrangedTensor):
    """Several tensors along an axis, in `groups` that have a piece of each."""

    dim: int
    groups: int

    def value(self) -> Tensor:
        """Return a new tensor."""
        parts = [_grouped(value_of(part), self.dim, self.groups) for part in self.inner]
        return torch.cat(parts, self.dim + 1).flatten(self.dim, self.dim + 1)

    def read_into(self, out: Tensor) -> None:
        """Read each part to its place."""
        sizes = [part.shape[self.dim] for part in self.inner]
        for part, piece in zip(self.inner, _pieces(out, sizes, self.dim, self.groups), strict=True):
            if self.groups == 1:
                part.read_into(piece.squeeze(self.dim))
            else:
                piece.copy_(_grouped(value_of(part), self.dim, self.groups))


@dataclass(frozen=True)
class PartOfTensor(ArrangedTensor):
    """The part numbered `index` of the parts of these sizes along an axis, or of each group of it."""

    sizes: tuple[int, ...]
    index: int
    dim: int
    groups: int

    def value(self) -> Tensor:
        """Return a view where there are no groups."""
        pieces = _pieces(value_of(self.inner[0]), self.sizes, self.dim, self.groups)
        return pieces[self.index].flatten(self.dim, self.dim + 1)

    def read_into(self, out: Tensor) -> None:
        """Read the rows alone where they lie together, else the whole tensor."""
        if self.dim == 0 and self.groups == 1:
            self.inner[0].read_rows_into(sum(self.sizes[: self.index]), out)
        else:
            out.copy_(self.value())


def value_of(stored: StoredTensor) -> Tensor:
    """Return the values of a stored tensor, without a copy where they are in memory."""
    if isinstance(stored, MemoryTensor):
        return stored.tensor
    if isinstance(stored, ArrangedTensor):
        return stored.value()
    return stored.read()


def _grouped(tensor: Tensor, dim: int, groups: int) -> Tensor:
    shape = tensor.shape
    return tensor.view(*shape[:dim], groups, shape[dim] // groups, *shape[dim + 1 :])


def _pieces(whole: Tensor, sizes: Sequence[int], dim: int, groups: int) -> Sequence[Tensor]:
    """Return the parts ``[..., groups, size // groups, ...]``, which share the memory of the whole."""
    return torch.split(_grouped(whole, dim, groups), [size // groups for size in sizes], dim + 1)
