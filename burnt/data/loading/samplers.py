"""Samplers: which items an epoch has, in which order, as a function of (seed, epoch); buckets."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from burnt.data.loading.workers import naming
from burnt.data.seeds import numpy_generator, seed_of, seeded_globally, torch_generator
from burnt.errors import DataError


@runtime_checkable
class Sampler(Protocol):
    """The interface that a `Loader` needs of a sampler.

    A method ``state() -> dict``, of JSON values, may tell samplers apart when a run is resumed.
    """

    def __len__(self) -> int:
        """Return the number of indices of an epoch."""
        ...

    def indices(self, epoch: int) -> Tensor:
        """Return the indices of an epoch in their order, ``[n]`` of int64, the same at every call."""
        ...


class SubsetSampler:
    """Some of the items, once each.

    Args:
        indices: ``[n]``, integers: the items to draw.
        shuffle: use a new order in every epoch.
        seed: the seed of the order.

    >>> SubsetSampler([7, 3, 5], shuffle=False).indices(0)
    tensor([7, 3, 5])
    """

    def __init__(
        self, indices: Sequence[int] | Tensor | np.ndarray[Any, Any], *, shuffle: bool = True, seed: int = 0
    ) -> None:
        self._indices = _array(indices, "indices", np.int64)
        self._digest = digest_of(self._indices)
        self.shuffle = shuffle
        self.seed = seed

    def __len__(self) -> int:
        return len(self._indices)

    def indices(self, epoch: int) -> Tensor:
        """Return the indices in the order of an epoch."""
        if not self.shuffle:
            return torch.from_numpy(self._indices)
        return torch.from_numpy(numpy_generator(self.seed, epoch).permutation(self._indices))

    def state(self) -> dict[str, Any]:
        """Return what decides the order."""
        return {"seed": self.seed, "shuffle": self.shuffle, "indices": self._digest}


class WeightedSampler:
    """Items drawn with a probability in proportion to their weight.

    Args:
        weights: ``[n]``, of the items: finite, at least 0.
        size: the number of items in an epoch; by default as many as there are weights, and without
            replacement as many as have a weight above 0.
        replacement: an item can come more than once in an epoch. Without, items of larger weight tend to come
            earlier (Efraimidis and Spirakis, 2006).
        seed: the seed of the draws.

    Raises:
        DataError: weights that cannot be probabilities, or fewer items than `size`, without replacement.

    >>> WeightedSampler([0.0, 1.0, 0.0], size=4).indices(0)
    tensor([1, 1, 1, 1])
    """

    def __init__(
        self,
        weights: Sequence[float] | Tensor,
        size: int | None = None,
        *,
        replacement: bool = True,
        seed: int = 0,
    ) -> None:
        self._weights = _array(weights, "weights", np.float64)
        possible = int((self._weights > 0).sum())
        if not np.isfinite(self._weights).all() or (self._weights < 0).any() or not possible:
            raise DataError(
                "the weights of a WeightedSampler cannot be probabilities",
                expected="finite numbers of at least 0, one of them above 0",
                found="nothing above 0" if not possible else "negative, infinite or NaN weights",
            )
        self.size = size if size is not None else len(self._weights) if replacement else possible
        if self.size < 1 or (not replacement and self.size > possible):
            raise DataError(
                "the size of a WeightedSampler is invalid",
                expected="at least 1"
                + ("" if replacement else f", and at most the {possible} items that can come"),
                found=self.size,
                hint=None if replacement else "replacement=True draws items more than once",
            )
        self.replacement = replacement
        self.seed = seed

    def __len__(self) -> int:
        return self.size

    def indices(self, epoch: int) -> Tensor:
        """Draw the indices of an epoch."""
        generator = numpy_generator(self.seed, epoch)
        if self.replacement:
            sums = self._sums
            places = generator.random(self.size) * sums[-1]
            in_order = np.argsort(places)  # looked up in order, they stay in the cache
            drawn = np.empty(self.size, np.int64)
            drawn[in_order] = np.searchsorted(sums, places[in_order], side="right")
            return torch.from_numpy(drawn)
        with np.errstate(divide="ignore"):
            times = generator.standard_exponential(len(self._weights)) / self._weights
        return torch.from_numpy(np.argsort(times, kind="stable")[: self.size])

    @functools.cached_property
    def _sums(self) -> np.ndarray[Any, Any]:
        return np.cumsum(self._weights)

    @functools.cached_property
    def _weights_digest(self) -> str:
        return digest_of(self._weights)

    def state(self) -> dict[str, Any]:
        """Return what decides the draws."""
        return {
            "seed": self.seed,
            "size": self.size,
            "replacement": self.replacement,
            "weights": self._weights_digest,
        }


class ClassBalanced(WeightedSampler):
    """Items drawn so that every class is equally likely, with replacement.

    Args:
        labels: ``[n]``, integers: the class of each item.
        size: the number of items in an epoch; by default as many as there are labels.
        seed: the seed of the draws.

    >>> labels = torch.tensor([0] * 90 + [1] * 10)
    >>> drawn = labels[ClassBalanced(labels, size=1000).indices(0)]
    >>> 450 < int(drawn.sum()) < 550
    True
    """

    def __init__(self, labels: Sequence[int] | Tensor, size: int | None = None, *, seed: int = 0) -> None:
        _, classes, counts = np.unique(
            _array(labels, "labels", np.int64), return_inverse=True, return_counts=True
        )
        super().__init__(torch.from_numpy(1.0 / counts[classes]), size, seed=seed)


class TorchSampler:
    """A sampler of torch, or any iterable of indices with a length, made a function of (seed, epoch).

    ``set_epoch`` is called where there is one, an attribute ``generator`` is replaced, and the global states
    of torch, NumPy and Python are seeded while the sampler is iterated, and restored. What remains of earlier
    epochs elsewhere in the sampler (a generator under another name, a counter) is beyond it: such a sampler
    does not resume exactly.

    Args:
        sampler: iterated once for each epoch.
        seed: the seed of what it draws.

    >>> sampler = TorchSampler(torch.utils.data.RandomSampler(range(9)))
    >>> torch.equal(sampler.indices(3), sampler.indices(3))
    True
    """

    def __init__(self, sampler: Any, seed: int = 0) -> None:
        self.sampler = sampler
        self.seed = seed

    def __len__(self) -> int:
        return len(self.sampler)

    def indices(self, epoch: int) -> Tensor:
        """Return the indices that the sampler gives for an epoch."""
        if hasattr(self.sampler, "set_epoch"):
            self.sampler.set_epoch(epoch)
        own = getattr(self.sampler, "generator", None)
        with seeded_globally(seed_of(self.seed, epoch)):
            try:
                if hasattr(self.sampler, "generator"):
                    self.sampler.generator = torch_generator(self.seed, epoch)
                indices = list(self.sampler)
            finally:
                if hasattr(self.sampler, "generator"):
                    self.sampler.generator = own
        if len(indices) != len(self.sampler):
            raise DataError(
                f"{type(self.sampler).__name__} gives another number of indices than its length",
                expected=f"{len(self.sampler)}",
                found=f"{len(indices)} in epoch {epoch}",
            )
        return torch.from_numpy(_array(indices, f"indices of {type(self.sampler).__name__}", np.int64))

    def state(self) -> dict[str, Any]:
        """Return what is known of the sampler."""
        return {"seed": self.seed, "type": type(self.sampler).__qualname__, "size": len(self.sampler)}


def as_sampler(sampler: Any, seed: int) -> Sampler:
    """Return a sampler as a `Loader` uses it."""
    # torch's SubsetRandomSampler has an attribute of this name.
    if isinstance(sampler, Sampler) and callable(sampler.indices):
        return sampler
    if isinstance(sampler, list | tuple | range | Tensor | np.ndarray):
        return SubsetSampler(sampler, shuffle=False)
    if isinstance(sampler, torch.utils.data.BatchSampler):
        raise DataError(
            "sampler= gives batches of indices",
            expected="a sampler of indices, and batch_size= next to it",
            found=type(sampler).__name__,
            hint="buckets= makes batches of items of similar length",
        )
    if isinstance(sampler, Iterable) and hasattr(sampler, "__len__"):
        return TorchSampler(sampler, seed)
    raise DataError(
        "sampler= cannot be used",
        expected="an object with indices(epoch) and a length, a sampler of torch, or a list of indices",
        found=type(sampler).__name__,
    )


def item_lengths(dataset: Any, lengths: Any, what: str) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the length of every item, ``[n]``: as given, or by a function, for which each is read once."""
    if callable(lengths):
        length, lengths = lengths, []
        problem = "the length of an item cannot be found"
        with naming(lambda: f"item {len(lengths)} of {type(dataset).__name__}", problem):
            for index in range(len(dataset)):
                lengths.append(length(dataset[index]))
    found = _array(lengths, f"the lengths of {what}", np.int64)
    if len(found) != len(dataset) or found.min() < 0:
        raise DataError(
            f"the lengths of {what} do not fit the dataset",
            expected=f"{len(dataset)} lengths of at least 0",
            found=f"{len(found)} lengths from {found.min()} to {found.max()}",
        )
    return found


def _array(values: Any, name: str, dtype: type[np.generic]) -> np.ndarray[Any, Any]:
    try:
        array = np.asarray(values.cpu() if isinstance(values, Tensor) else values)
        if array.size and not np.can_cast(array.dtype, dtype, casting="same_kind"):
            raise TypeError(f"values of {array.dtype}")
        array = array.astype(dtype)
    except (TypeError, ValueError) as error:
        raise DataError(
            f"{name} cannot be used", expected=f"one axis of {np.dtype(dtype)}", found=str(error)
        ) from error
    if array.ndim != 1 or not len(array):
        raise DataError(
            f"{name} cannot be used",
            expected=f"one axis of {np.dtype(dtype)}, not empty",
            found=f"shape {array.shape}",
        )
    return array


def digest_of(array: np.ndarray[Any, Any]) -> str:
    """Return what tells arrays apart, in a checkpoint."""
    return hashlib.blake2b(array.tobytes(), digest_size=8).hexdigest()


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
