"""Buckets: batches of items of similar length, so that little of them is padding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from burnt.data.loading.samplers import digest_of, item_lengths
from burnt.errors import DataError

Integers = np.ndarray[Any, np.dtype[np.int64]]


class Buckets:
    """Batches of items whose lengths are in the same bucket, or in neighbouring ones.

    Every epoch draws the batches anew from the items of a bucket and shuffles them; the number of batches is
    the same in all epochs. Without shuffling, batches go from the shortest items to the longest.

    Args:
        lengths: ``[n]``, integers: the length of each item; or a function of an item, which is called once
            for every item when the `Loader` is built, and so reads the whole dataset.
        count: the number of buckets, which have about as many items each.
        width: instead of `count`: the range of lengths in a bucket; with 32, lengths from 1 to 32, to 64, ...
        tokens: the largest number of items times the largest length of their bucket in a batch. A batch then
            has at most `batch_size` items, and long items come in smaller batches.

    Raises:
        DataError: lengths or settings that make no buckets.

    >>> from burnt.data import Loader, Pad
    >>> texts = [[7] * length for length in (2, 9, 3, 8, 2, 9)]
    >>> lengths = [len(text) for text in texts]
    >>> loader = Loader(texts, 2, buckets=Buckets(lengths, count=3), batcher=Pad(0))
    >>> [tuple(batch.items.shape) for batch in loader]
    [(2, 2), (2, 8), (2, 9)]
    """

    def __init__(
        self,
        lengths: Sequence[int] | Tensor | Callable[[Any], int],
        *,
        count: int | None = None,
        width: int | None = None,
        tokens: int | None = None,
    ) -> None:
        if count is not None and width is not None:
            raise DataError("buckets are given by count= or by width=", found=f"count={count}, width={width}")
        for name, value in (("count", count), ("width", width), ("tokens", tokens)):
            if value is not None and value < 1:
                raise DataError(
                    "a setting of buckets is invalid", where=name, expected="at least 1", found=value
                )
        self.count = count
        self.width = width
        self.tokens = tokens
        self._lengths: Any = lengths

    def prepare(self, dataset: Any, batch_size: int) -> None:
        """Assign the items to buckets; called by the `Loader`."""
        lengths = self._lengths = item_lengths(dataset, self._lengths, "buckets")
        self._digest = digest_of(lengths)
        if self.width is not None:
            bucket = (np.maximum(lengths, 1) - 1) // self.width
        else:
            count = min(self.count or 16, len(lengths))
            edges = np.sort(lengths)[np.arange(1, count) * len(lengths) // count - 1]
            bucket = np.searchsorted(edges, lengths, side="left")
        self._bucket = bucket.astype(np.int64)
        if self.tokens is None:
            return
        longest = np.zeros(self._bucket.max() + 1, np.int64)
        np.maximum.at(longest, self._bucket, lengths)
        if longest[-1] > self.tokens:
            raise DataError(
                "an item is longer than a batch may be",
                where=f"item {int(lengths.argmax())}",
                expected=f"at most tokens={self.tokens}",
                found=int(longest[-1]),
            )
        # The bucket at a place among the items sorted by bucket is the same in every epoch.
        sizes = longest[np.sort(self._bucket)]
        starts, at = [0], 0
        while True:
            number = min(batch_size, self.tokens // max(int(sizes[at]), 1), len(sizes) - at)
            while number * int(sizes[at + number - 1]) > self.tokens:
                number = self.tokens // int(sizes[at + number - 1])
            at += number
            if at == len(sizes):
                break
            starts.append(at)
        self._starts = np.array(starts, np.int64)

    def num_batches(self, items: int, batch_size: int) -> int:
        """Return the number of batches of an epoch of `items` items."""
        return -(-items // batch_size) if self.tokens is None else len(self._starts)

    def arrange(
        self, order: Integers, batch_size: int, generator: np.random.Generator | None
    ) -> tuple[Integers, Integers]:
        """Return the items of an epoch, ``[n]``, in a new order, and where in it the batches start.

        Those of a bucket stay in the order given. A generator shuffles the batches; None leaves them sorted.
        """
        items = order[np.argsort(self._bucket[order], kind="stable")]
        starts = np.arange(0, len(items), batch_size) if self.tokens is None else self._starts
        if generator is None:
            return items, starts
        shuffled = generator.permutation(len(starts))
        sizes = np.diff(starts, append=len(items))[shuffled]
        new_starts = np.cumsum(sizes) - sizes
        return items[np.arange(len(items)) + np.repeat(starts[shuffled] - new_starts, sizes)], new_starts

    def state(self) -> dict[str, Any]:
        """Return what decides the batches."""
        return {"lengths": self._digest, "count": self.count, "width": self.width, "tokens": self.tokens}
