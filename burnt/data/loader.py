"""Loaders: batches in an order that depends only on (seed, epoch), so that each can be reproduced."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from burnt._hints import explain_arguments
from burnt.data.batch import collate
from burnt.data.dataset import Dataset
from burnt.data.seeds import numpy_generator, torch_generator
from burnt.data.state import decode_state, encode_state
from burnt.errors import DataError

__all__ = ["EpochLoader", "IterableLoader", "Loader", "ResumableIterator", "ResumableLoader", "as_loader"]

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


class ResumableIterator(Protocol[B_co]):
    """An iterator over the batches of an epoch that knows its position."""

    def __iter__(self) -> Iterator[B_co]:
        """Return the iterator itself."""
        ...

    def __next__(self) -> B_co:
        """Return the next batch."""
        ...

    def state(self) -> dict[str, Any]:
        """Return the position after the last batch that was returned, whatever was loaded ahead, as JSON."""
        ...


class ResumableLoader(EpochLoader[B_co], Protocol[B_co]):
    """A loader whose position in an epoch is more than the number of the batch, such as a stream.

    `epoch` returns a `ResumableIterator`. Its `state` goes into the checkpoint, and `resume` continues there.
    """

    def resume(self, epoch: int, start: int, state: Mapping[str, Any]) -> Iterator[B_co]:
        """Return the batches of an epoch from the batch numbered `start` on, which is where `state` was."""
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
        return torch.from_numpy(numpy_generator(self.seed, epoch).permutation(len(self.dataset)))

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
                generator = torch_generator(self.seed, epoch, number)
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

    A resumed run continues where it was if the iterable has ``state_dict`` and ``load_state_dict``, as
    torchdata's StatefulDataLoader and the datasets of Hugging Face do. With others it goes through the
    batches that it has had (`replays`), since an iterable cannot skip. A DataLoader gives them as it did,
    since the Learner puts the global random states back for it; one with a ``generator`` of its own need not.
    ``set_epoch`` of the iterable or its samplers is called where there is one.

    >>> list(IterableLoader([10, 20, 30]).epoch(0, start=1))
    [20, 30]
    """

    def __init__(self, batches: Iterable[B]) -> None:
        self.batches = batches

    @property
    def replays(self) -> bool:
        """Whether a resumed run goes through the earlier batches of its epoch again."""
        # A list needs no reading, and neither does what stands for one.
        return not _has_state(self.batches) and not isinstance(self.batches, list | tuple)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[B]:
        """The batches of an epoch, those before `start` served and dropped at once."""
        self._set_epoch(epoch)
        batches = self._iterator()
        for _ in itertools.islice(batches, start):
            pass
        return batches

    def resume(self, epoch: int, start: int, state: Mapping[str, Any]) -> Iterator[B]:
        """The batches of an epoch from a position on that its iterator's `state` returned.

        Raises:
            DataError: the iterable has no ``load_state_dict``, unlike the one that the state is of.
        """
        if not _has_state(self.batches):
            raise DataError(
                f"{type(self.batches).__name__} cannot continue from a stored position",
                expected="the methods state_dict and load_state_dict, as when the position was stored",
                hint="resume with the same loader, or start a new run",
            )
        self._set_epoch(epoch)
        self.batches.load_state_dict(decode_state(dict(state)))  # type: ignore[attr-defined]
        return self._iterator()

    def num_batches(self) -> int | None:
        """How many batches an epoch has, if the iterable has a length."""
        try:
            return len(self.batches)  # type: ignore[arg-type]
        except TypeError:
            return None

    def state(self) -> dict[str, Any]:
        """The number of batches, all that is known of an iterable."""
        return {"batches": self.num_batches()}

    def _set_epoch(self, epoch: int) -> None:
        parts: list[Any] = [self.batches]
        parts += [getattr(self.batches, name, None) for name in ("sampler", "batch_sampler")]
        for part in parts:
            if hasattr(part, "set_epoch"):
                part.set_epoch(epoch)

    def _iterator(self) -> Iterator[B]:
        if not _has_state(self.batches):
            return iter(self.batches)
        batches = _StatefulIterator(self.batches)
        batches.state()  # what a checkpoint cannot hold is an error now, not at the first checkpoint
        return batches


class _StatefulIterator(Generic[B]):
    """Batches of an iterable that knows its position."""

    def __init__(self, source: Iterable[B]) -> None:
        self._source: Any = source
        self._batches = iter(source)

    def __iter__(self) -> Iterator[B]:
        return self

    def __next__(self) -> B:
        return next(self._batches)

    def state(self) -> dict[str, Any]:
        """The position after the last batch, as JSON."""
        state: dict[str, Any] = encode_state(self._source.state_dict(), self._source)
        return state


def _has_state(source: object) -> bool:
    return all(callable(getattr(source, name, None)) for name in ("state_dict", "load_state_dict"))


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
