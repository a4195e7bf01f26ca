"""Samplers: which items an epoch has, in which order, as a function of (seed, epoch)."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Sequence
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
        indices: ``[n]``, integers.
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
            expected="a sampler of indices, and batch_size= beside it",
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
