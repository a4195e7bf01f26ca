"""Small runs: the first batches of each epoch, or the same few batches in every epoch."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any, Generic, TypeVar

from burnt.data.batch import clone
from burnt.data.loading.loader import EpochLoader
from burnt.data.seeds import seeded_globally
from burnt.errors import DataError

B = TypeVar("B")


class LimitedLoader(Generic[B]):
    """The first batches of each epoch of a loader.

    A shuffled loader gives others in each epoch. The other attributes are those of the loader.

    Args:
        loader: any loader of `burnt.data`.
        limit: the number of batches, from 1 on; or as a float above 0 and up to 1.0, a fraction of those of
            an epoch, rounded down to at least one batch.
        name: the argument's name, for messages.

    Raises:
        DataError: the limit is neither, or a fraction of a loader without a length.

    >>> from burnt.data import Loader
    >>> list(LimitedLoader(Loader(range(10), batch_size=2), 0.5).epoch(0))
    [tensor([0, 1]), tensor([2, 3])]
    """

    def __init__(self, loader: EpochLoader[B], limit: float, name: str = "limit") -> None:
        self.loader = loader
        self.limit = _number_of_batches(limit, loader.num_batches(), name)

    def __getattr__(self, name: str) -> Any:
        if name == "loader" or name.startswith("__"):  # asked for by copy, before there is a loader
            raise AttributeError(name)
        return getattr(self.loader, name)

    def num_batches(self) -> int | None:
        """Return the number of batches of an epoch; None if the loader does not know its own."""
        batches = self.loader.num_batches()
        return None if batches is None else min(batches, self.limit)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[B]:
        """Return the batches of an epoch, from the batch numbered `start` on."""
        return _First(self.loader.epoch(epoch, start), self.limit - start)

    def resume(self, epoch: int, start: int, state: Mapping[str, Any]) -> Iterator[B]:
        """Return the batches from a position on that an iterator's `state` returned."""
        loader: Any = self.loader  # it gave the state
        return _First(loader.resume(epoch, start, state), self.limit - start)

    def state(self) -> dict[str, Any]:
        """Return the loader's settings, and the limit."""
        return {**self.loader.state(), "limit": self.limit}


class _First(Iterator[B]):
    """The next `count` batches of an iterator, whose other attributes, such as `state`, it has."""

    def __init__(self, batches: Iterator[B], count: int) -> None:
        self._batches = batches
        self._left = count

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._batches, name)

    def __next__(self) -> B:
        if self._left <= 0:
            raise StopIteration
        self._left -= 1
        return next(self._batches)


class RepeatedLoader(Generic[B]):
    """The same few batches in every epoch: the first of a loader's first epoch, held in memory.

    They are read once, with Python's, NumPy's and torch's global random states set to a fixed seed meanwhile,
    so that a loader that draws from these gives the same batches in another process.

    Args:
        loader: any loader of `burnt.data`.
        limit: how many batches, as in `LimitedLoader`.
        name: the argument's name, for messages.

    Raises:
        DataError: as in `LimitedLoader`.

    >>> from burnt.data import Loader
    >>> loader = RepeatedLoader(Loader(range(10), batch_size=2, shuffle=True), 1)
    >>> [batch.tolist() for batch in loader.epoch(0)] == [batch.tolist() for batch in loader.epoch(7)]
    True
    """

    def __init__(self, loader: EpochLoader[B], limit: float, name: str = "limit") -> None:
        self.loader = loader
        self.limit = _number_of_batches(limit, loader.num_batches(), name)
        self._read: list[B] = []

    def num_batches(self) -> int:
        """Return the number of batches; the first call reads them."""
        return len(self._batches())

    def epoch(self, epoch: int, start: int = 0) -> Iterator[B]:
        """Return the batches, which are those of every epoch, from the batch numbered `start` on."""
        # Copies, since a step may change its batch in place.
        return (clone(batch) for batch in self._batches()[start:])

    def state(self) -> dict[str, Any]:
        """Return the loader's settings, and the number of batches."""
        return {**self.loader.state(), "repeated": self.limit}

    def _batches(self) -> list[B]:
        if not self._read:
            with seeded_globally(0):
                self._read = list(itertools.islice(self.loader.epoch(0), self.limit))
        return self._read


def _number_of_batches(limit: float, batches: int | None, name: str) -> int:
    if isinstance(limit, int) and not isinstance(limit, bool) and limit >= 1:
        return limit
    if not isinstance(limit, float) or not 0 < limit <= 1:
        raise DataError(
            "a limit is neither a number of batches nor a fraction of an epoch",
            where=name,
            expected="an int from 1 on, or a float above 0 and up to 1.0",
            found=repr(limit),
        )
    if batches is None:
        raise DataError(
            "a fraction of an epoch of unknown length",
            where=name,
            expected="a number of batches, for a loader without a length",
            found=repr(limit),
        )
    return max(int(batches * limit), 1)
