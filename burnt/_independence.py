"""Do an item's outputs depend on the other items of its batch? Needs only NumPy: a server may lack torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

Arrays = list[np.ndarray[Any, Any]]

TOLERANCE = 1e-3
"""The largest difference between an item's outputs in two batches that rounding explains in float32,
relative to its largest output: batches of other sizes take other kernels, which add in another order."""


_ROUNDING = {"bfloat16": 2.0**-7, "float16": 2.0**-10, "tf32": 2.0**-10}


def tolerance_for(dtypes: Iterable[str]) -> float:
    """Return the largest difference that rounding explains where these dtypes are among those of a model.

    >>> tolerance_for(["float32"]), tolerance_for(["float32", "bfloat16"])
    (0.001, 0.0625)
    """
    return max([TOLERANCE, *(8 * _ROUNDING.get(dtype, 0.0) for dtype in dtypes)])


class BatchProbe:
    """Puts the same items into batches with other items, and compares their outputs between the batches.

    Args:
        items: the inputs of at least two items, each with a batch axis of size 1. The first one is in every
            batch, except that the first two are run by themselves in turn. If some are much larger than
            others, a quantization with one scale for a batch is found.
        input_axes, output_axes: the batch axis of each input (the same in all batches if it has none) and of
            each output (not compared then).
        tolerance: the largest accepted difference, relative to an item's largest output. With more than
            `TOLERANCE`, integers are not compared: rounding may change them.

    >>> probe = BatchProbe([[np.array([[1.0]])], [np.array([[5.0]])]], [0], [0])
    >>> for size in (1, 2):
    ...     (x,) = probe.batch(size)
    ...     probe.add([x - x.mean(0)])
    >>> probe.largest_difference
    1.0
    """

    def __init__(
        self,
        items: Sequence[Arrays],
        input_axes: Sequence[int | None],
        output_axes: Sequence[int | None],
        tolerance: float = TOLERANCE,
    ) -> None:
        self.largest_difference = 0.0
        self._items, self._input_axes, self._output_axes = items, input_axes, output_axes
        self._tolerance = tolerance
        self._generator = np.random.default_rng(0)
        self._numbers: list[int] = []  # of the items in the last batch
        self._is_first = False
        self._num_single = 0  # batches of one item
        self._known: dict[tuple[int, int], np.ndarray[Any, Any]] = {}  # by output and item
        self._compared: set[int] = set()

    @property
    def depends(self) -> bool:
        """Whether a difference was found that rounding does not explain."""
        return not self.largest_difference <= self._tolerance

    @property
    def is_complete(self) -> bool:
        """Whether finite numbers of every output that has a batch axis were compared."""
        return all(axis is None or i in self._compared for i, axis in enumerate(self._output_axes))

    def batch(self, size: int) -> Arrays:
        """Return the inputs for the next batch, in memory of their own; then call `add`."""
        others = [*range(1, len(self._items))]
        more = self._generator.integers(1, len(self._items), size).tolist()
        numbers = [*others, *more][: size - 1]
        # At both ends in turn: the others may be compared with the first item, or with the last one.
        self._numbers = [0, *numbers] if self._is_first else [*numbers, 0]
        self._is_first = size > 1 and not self._is_first
        if size == 1:  # an item that has the largest number of all does not show a division by it
            self._numbers = [self._num_single % 2]
            self._num_single += 1
        return [
            self._items[0][i].copy()
            if axis is None
            else np.concatenate([self._items[number][i] for number in self._numbers], axis)
            for i, axis in enumerate(self._input_axes)
        ]

    def add(self, outputs: Sequence[np.ndarray[Any, Any]]) -> None:
        """Compare the outputs of the last batch with the same items' in earlier ones."""
        for i, (output, axis) in enumerate(zip(outputs, self._output_axes, strict=True)):
            if axis is None or (self._tolerance > TOLERANCE and output.dtype.kind in "biu"):
                continue
            if axis >= output.ndim or output.shape[axis] != len(self._numbers):
                self.largest_difference = float("inf")
                continue
            for row, number in enumerate(self._numbers):
                part = np.take(output, row, axis)
                expected = self._known.setdefault((i, number), part)
                if part is not expected:
                    self.largest_difference = max(self.largest_difference, difference(part, expected))
                    if part.dtype.kind not in "fc" or np.isfinite(part).any():
                        self._compared.add(i)


def difference(found: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> float:
    """Return the largest difference relative to the largest number in two arrays.

    It is infinite where shapes, integers, or the places of NaN and infinity differ. Numbers that are equal
    count up to 10 times the largest of the others: a mask of -1e9 or a timestamp must not hide a difference.

    >>> difference(np.array([1.0, 4.0, np.nan]), np.array([1.0, 5.0, np.nan]))
    0.2
    >>> difference(np.array([1.0, -1e9]), np.array([2.0, -1e9]))
    0.05
    """
    if found.shape != expected.shape:
        return float("inf")
    if found.dtype.kind not in "fc":
        return 0.0 if np.array_equal(found, expected) else float("inf")
    finite = np.isfinite(found) & np.isfinite(expected)
    if not np.array_equal(found[~finite], expected[~finite], equal_nan=True):
        return float("inf")
    if not finite.any():
        return 0.0
    kind = np.result_type(found, np.float64)
    a, b = found[finite].astype(kind), expected[finite].astype(kind)
    errors, sizes = np.abs(a - b), np.maximum(np.abs(a), np.abs(b))
    if not errors.any():
        return 0.0
    return float(errors.max() / min(sizes.max(), 10 * sizes[errors > 0].max()))


def pad(array: np.ndarray[Any, Any], batch_axis: int | None) -> None:
    """Set the second half of the last axis of integers or booleans to 0 in place, like padded tokens.

    The batch axis does not count; it is None for an array without one.
    """
    axis = array.ndim - 1 if batch_axis != array.ndim - 1 else array.ndim - 2
    if array.dtype.kind in "biu" and axis >= 0:
        array.swapaxes(axis, -1)[..., (array.shape[axis] + 1) // 2 :] = 0
