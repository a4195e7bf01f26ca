"""Tensors that repeat others, as keys and values do whose heads are repeated for those of the queries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from burnt.onnx.importer.program import Name


@dataclass(frozen=True)
class Repeated:
    """What is known of a tensor that repeats the slices of another along an axis.

    Args:
        source: the other tensor.
        axis: of the source.
        count: how often.
        sizes: of the source: numbers, names, or None for those that are not known.
        is_merged: whether the repeats are on the axis itself, not on one after it.
    """

    source: Name
    axis: int
    count: int
    sizes: list[Any]
    is_merged: bool = False

    def permuted(self, source: Name, axes: list[int]) -> Repeated:
        """Return what is known of the tensor with permuted axes, given its source with permuted axes."""
        sizes = [self.sizes[axis] for axis in axes]
        return Repeated(source, axes.index(self.axis), self.count, sizes, self.is_merged)
