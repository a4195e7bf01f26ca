"""Loaders: batches in an order that depends only on (seed, epoch), so that each can be reproduced."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from burnt._hints import explain_arguments
from burnt.data.batch import collate
from burnt.data.dataset import Dataset
from burnt.errors import DataError

__all__ = ["EpochLoader", "IterableLoader", "Loader", "as_loader"]

if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault

    B = TypeVarWithDefault("B", default=Any)
else:
    B = TypeVar("B")
B_co = TypeVar("B_co", covariant=True)

_NO_WORKERS = (
    "not needed: items are loaded in this process. For worker processes, "
    "give the training a torch.utils.data.DataLoader in place of this Loader"
)
_NO_SAMPLER = "use shuffle=, or give the training a torch.utils.data.DataLoader in place of this Loader"


class EpochLoader(Protocol[B_co]):
    """The interface that the Learner needs of a loader."""

    def epoch(self, epoch: int, start: int = 0) -> Iterator[B_co]:
        """Return the batches of an epoch, from the batch numbered `start` on."""
        ...

    def num_batches(self) -> int | None:
        """Return the number of batches of an epoch; None if unknown."""
        ...

    def state(self) -> dict[str, Any]:
        """Return the settings that determine the order; checkpoints store them and compare them on resume."""
        ...


class Loader(Generic[B]):
    """Batches from a dataset, optionally shuffled.

    The order depends neither on the global random state nor on earlier epochs: batch `k` of epoch `e` is the
    same in every run with the same seed, and can be loaded without the ones before it.

    Args:
        dataset: the items; if it has a method ``take(indices)``, that returns whole batches.
        batch_size: the number of items in a batch.
        batcher: turns a list of items into a batch; `collate` by default. If the dataset has ``take``, it
            gets that batch instead.
        shuffle: use a new order in every epoch.
        seed: the seed of the order and of `transform`.
        drop_last: drop a last batch that is not full.
        transform: ``transform(batch, generator)`` returns the changed batch. The generator is seeded by
            (seed, epoch, batch), so that a resumed run repeats its augmentation exactly.

    Raises:
        DataError: an empty dataset, a batch size below 1, or no batch in an epoch.

    >>> loader = Loader(range(5), batch_size=2, shuffle=True, seed=1)
    >>> len(loader), [len(batch) for batch in loader]
    (3, [2, 2, 1])
    >>> [batch.tolist() for batch in loader.epoch(4)] == [batch.tolist() for batch in loader.epoch(4)]
    True
    """

    @explain_arguments(
        num_workers=_NO_WORKERS,
        prefetch_factor=_NO_WORKERS,
        persistent_workers=_NO_WORKERS,
        multiprocessing_context=_NO_WORKERS,
        worker_init_fn=_NO_WORKERS,
        timeout=_NO_WORKERS,
        pin_memory="not needed: transform= may pin batches, which are then moved asynchronously",
        pin_memory_device="not needed, as pin_memory",
        sampler=_NO_SAMPLER,
        batch_sampler=_NO_SAMPLER,
        generator="the order depends on seed=",
        in_order="not needed: batches always come in order",
    )
    def __init__(
        self,
        dataset: Dataset[Any],
        batch_size: int,
        *,
        batcher: Callable[[list[Any]], B] | None = None,
        shuffle: bool = False,
        seed: int = 0,
        drop_last: bool = False,
        transform: Callable[[B, torch.Generator], B] | None = None,
    ) -> None:
        if batch_size < 1:
            raise DataError("batch_size is too small", expected="batch_size of at least 1", found=batch_size)
        if len(dataset) == 0:
            raise DataError(
                "the dataset is empty",
                found=f"a {type(dataset).__name__} of length 0",
                hint="check the path, filter or split that it is built from",
            )
        if drop_last and len(dataset) < batch_size:
            raise DataError(
                "an epoch would have no batch",
                expected=f"at least {batch_size} items, with drop_last",
                found=f"{len(dataset)} items",
            )
        self.dataset = dataset
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.seed = seed
        self.drop_last = drop_last
        self._batcher = batcher
        self._transform = transform
        self._served = 0

    def __len__(self) -> int:
        full, rest = divmod(len(self.dataset), self.batch_size)
        return full if self.drop_last or not rest else full + 1

    def __iter__(self) -> Iterator[B]:
        """Iterate over the next epoch, starting with 0."""
        self._served += 1
        return self.epoch(self._served - 1)

    def num_batches(self) -> int:
        """Return the number of batches of an epoch."""
        return len(self)

    def order(self, epoch: int) -> Tensor:
        """Return the indices of an epoch in their order, ``[n]`` of int64."""
        if not self.shuffle:
            return torch.arange(len(self.dataset))
        return torch.from_numpy(_random(self.seed, epoch).permutation(len(self.dataset)))

    def samples(self, epoch: int, batch: int) -> list[int]:
        """Return the indices of the items in a batch, by the numbers of its epoch and batch, from 0."""
        start = batch * self.batch_size
        indices: list[int] = self.order(epoch)[start : start + self.batch_size].tolist()
        return indices

    def epoch(self, epoch: int, start: int = 0) -> Iterator[B]:
        """The batches of an epoch.

        Args:
            epoch: its number, from 0.
            start: the number of the first batch wanted; none of the items before it is touched.
        """
        take = getattr(self.dataset, "take", None)
        order = self.order(epoch)
        for number in range(start, len(self)):
            indices = order[number * self.batch_size : (number + 1) * self.batch_size]
            batch: Any
            if take is not None:
                batch = take(indices)
                if self._batcher is not None:
                    batch = self._batcher(batch)
            else:
                items = [self.dataset[index] for index in indices.tolist()]
                batch = collate(items) if self._batcher is None else self._batcher(items)
            if self._transform is not None:
                generator = torch.Generator().manual_seed(_seed(self.seed, epoch, number))
                batch = self._transform(batch, generator)
            yield batch

    def state(self) -> dict[str, Any]:
        """What decides the order: compared when a run is resumed."""
        return {
            "seed": self.seed,
            "shuffle": self.shuffle,
            "batch_size": self.batch_size,
            "drop_last": self.drop_last,
            "items": len(self.dataset),
        }


class IterableLoader(Generic[B]):
    """Any iterable of batches, such as torch's DataLoader, as the Learner wants it.

    A resumed run goes through the batches that it has had, since an iterable cannot skip. A DataLoader gives
    them as it did, since the Learner puts the global random states back for it; one with a ``generator`` of
    its own need not. ``set_epoch`` of the iterable or its samplers is called where there is one.

    >>> list(IterableLoader([10, 20, 30]).epoch(0, start=1))
    [20, 30]
    """

    def __init__(self, batches: Iterable[B]) -> None:
        self.batches = batches

    def epoch(self, epoch: int, start: int = 0) -> Iterator[B]:
        """The batches of an epoch, those before `start` served and dropped at once."""
        parts: list[Any] = [self.batches]
        parts += [getattr(self.batches, name, None) for name in ("sampler", "batch_sampler")]
        for part in parts:
            if hasattr(part, "set_epoch"):
                part.set_epoch(epoch)
        batches = iter(self.batches)
        for _ in itertools.islice(batches, start):
            pass
        return batches

    def num_batches(self) -> int | None:
        """How many batches an epoch has, if the iterable has a length."""
        try:
            return len(self.batches)  # type: ignore[arg-type]
        except TypeError:
            return None

    def state(self) -> dict[str, Any]:
        """The number of batches, all that is known of an iterable."""
        return {"batches": self.num_batches()}


def as_loader(source: Any, name: str) -> EpochLoader[Any]:
    """A loader, or any iterable of batches, as the Learner wants it.

    Args:
        source: what the user gave.
        name: what it is called in messages, ``"train"``.

    Raises:
        DataError: an iterator, which ends after one epoch, or nothing that can be iterated; or no batches.
    """
    if callable(getattr(source, "epoch", None)) and callable(getattr(source, "num_batches", None)):
        loader: EpochLoader[Any] = source
    elif isinstance(source, Iterator):
        raise DataError(
            f"{name}= is an iterator, which can be gone through only once",
            expected="a burnt.data.Loader, a DataLoader or a list of batches",
            found=type(source).__name__,
        )
    elif isinstance(source, Iterable) and not isinstance(source, str):
        loader = IterableLoader(source)
    else:
        raise DataError(
            f"{name}= gives no batches",
            expected="a burnt.data.Loader, a DataLoader or a list of batches",
            found=type(source).__name__,
        )
    if loader.num_batches() == 0:
        raise DataError(f"{name}= has no batches", hint="is its dataset empty?")
    return loader


def _sequence(*keys: int) -> np.random.SeedSequence:
    return np.random.SeedSequence([key & 0xFFFF_FFFF_FFFF_FFFF for key in keys])


def _random(*keys: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(_sequence(*keys)))


def _seed(*keys: int) -> int:
    words: Sequence[int] = _sequence(*keys).generate_state(1, np.uint64).tolist()
    return words[0] >> 1  # torch wants a seed that fits a signed 64-bit integer
