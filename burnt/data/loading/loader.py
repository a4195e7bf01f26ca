"""Loaders: batches in an order that depends only on (seed, epoch), to be reproduced; small runs."""

from __future__ import annotations

import copy
import dataclasses
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from burnt._hints import explain_arguments
from burnt.data.batch import clone, collate, copy_item
from burnt.data.batch import pin as pin_memory
from burnt.data.dataset import Dataset
from burnt.data.loading.pack import Pack, is_changed
from burnt.data.loading.samplers import Buckets, Sampler, as_sampler
from burnt.data.loading.workers import Cell, WorkerPool, naming, user_error
from burnt.data.operations import as_dataset
from burnt.data.seeds import numpy_generator, seeded_globally, torch_generator
from burnt.data.transforms.transform import as_transform
from burnt.errors import BurntError, DataError, quantity

if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault

    B = TypeVarWithDefault("B", default=Any)
else:
    B = TypeVar("B")
B_co = TypeVar("B_co", covariant=True)


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


@dataclasses.dataclass(frozen=True)
class Part:
    """The part of one of several processes in a batch: `count` of its `total` items.

    A process without items has the batch's first item in their place, so that it takes part in what the
    processes compute together; what comes of it counts nothing. `digest` is that of all items as they were
    read, of a stream's first batches, which must be the same in all processes.

    >>> next(Loader(range(5), batch_size=3).parts(0, 0, rank=1, size=2))
    Part(batch=tensor([1]), count=1, total=3, digest=None)
    """

    batch: Any
    count: int
    total: int
    digest: str | None = None


def read_parts(
    loader: Any, epoch: int, start: int, rank: int, size: int, **position: Any
) -> Iterator[Part] | None:
    """Return one process's parts of an epoch's batches, by the loader's `parts`; None if it has none.

    A class that defines `epoch` below the one that defines `parts` has none: it changes the batches.
    """
    for kind in type(loader).__mro__:
        if "parts" in vars(kind):
            found: Iterator[Part] | None = loader.parts(epoch, start, rank, size, **position)
            return found
        if "epoch" in vars(kind):
            break
    return None


class Loader(Generic[B]):
    """Batches from a dataset, optionally shuffled, sampled, bucketed or packed, loaded here or by workers.

    The order depends neither on the global random state nor on earlier epochs: batch `k` of epoch `e` is the
    same in every run with the same seed, and can be loaded without the ones before it. Workers change neither
    the order nor what the transforms draw.

    Args:
        dataset: the items: anything with a length and items by index, a tensor or array, whose items are its
            rows, or a dataframe. A method ``__getitems__(indices)`` returns a list of items, and otherwise
            ``take(indices)`` whole batches, if it has one of these.
        batch_size: the number of items in a batch; of rows, with `pack`.
        batcher: turns a list of items into a batch; `collate` by default, `Pad` for items of different
            lengths. If the dataset has ``take``, it gets that batch instead.
        shuffle: use a new order in every epoch.
        seed: the seed of the order and of the transforms.
        drop_last: drop a last batch that is not full.
        item_transform: ``item_transform(item, generator)`` returns the changed item, which is a copy if the
            dataset may hold it. The generator is seeded by (seed, epoch, index of the item).
        transform: ``transform(batch, generator)`` returns the changed batch. The generator is seeded by
            (seed, epoch, batch). A resumed run repeats both exactly.
        sampler: decides which items an epoch has, in place of `shuffle`: a `Sampler` such as
            `WeightedSampler`, one of torch, or a list of indices.
        buckets: `Buckets`, or the lengths of the items: batches have items of similar length.
        pack: a `Pack`: items are documents, which are packed into rows of a fixed length.
        workers: the number of worker processes, which load batches ahead; ``"4 threads"`` are threads of this
            process, for datasets that wait, or release Python's lock while they decode; where these draw from
            global random states, they load one batch at a time. They start at the first batch and stay until
            `close`, or until the loader is gone: changes of the dataset after that do not reach processes.
        prefetch: the number of batches that each worker is ahead, 2 by default.
        pin: copy batches to pinned memory, from which they go to CUDA next to the computation.

    Raises:
        DataError: an empty dataset, no batch in an epoch, or settings that are invalid or exclude each other.

    An item that cannot be read raises a DataError that names it, with the dataset's exception as its cause,
    and so does a worker process that is killed.

    >>> loader = Loader(range(5), batch_size=2, shuffle=True, seed=1)
    >>> len(loader), [len(batch) for batch in loader]
    (3, [2, 2, 1])
    >>> [batch.tolist() for batch in loader.epoch(4)] == [batch.tolist() for batch in loader.epoch(4)]
    True
    """

    @explain_arguments(
        num_workers="workers= is the number of worker processes; workers='4 threads' are threads",
        prefetch_factor="prefetch= is the number of batches that each worker is ahead",
        persistent_workers="not needed: workers stay until the loader is closed or gone",
        multiprocessing_context="multiprocessing.set_start_method() decides how worker processes start",
        worker_init_fn="not needed: the global random states of a worker are seeded for every batch",
        timeout="not needed: a worker that dies is reported, with the item that it was reading",
        pin_memory="pin=True",
        pin_memory_device="not needed, as pin=True is for CUDA",
        batch_sampler="sampler= decides the items, and buckets= makes batches of items of similar length",
        generator="the order depends on seed=",
        in_order="not needed: batches always come in order",
    )
    def __init__(
        self,
        dataset: Dataset[Any],
        batch_size: int,
        *,
        batcher: Callable[[Any], B] | None = None,
        shuffle: bool = False,
        seed: int = 0,
        drop_last: bool = False,
        item_transform: Callable[[Any, torch.Generator], Any] | None = None,
        transform: Callable[[B, torch.Generator], B] | None = None,
        sampler: Sampler | Iterable[int] | None = None,
        buckets: Buckets | Sequence[int] | Tensor | Callable[[Any], int] | None = None,
        pack: Pack | None = None,
        workers: int | str = 0,
        prefetch: int | None = None,
        pin: bool = False,
    ) -> None:
        if not isinstance(batch_size, int) or batch_size < 1:
            raise DataError(
                "batch_size is not a number of items",
                expected="batch_size of at least 1",
                found=repr(batch_size),
            )
        if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
            raise DataError(
                "a Loader needs a dataset with a length and items by index",
                found=type(dataset).__name__,
                hint="StreamLoader is for what can only be iterated",
            )
        if not hasattr(dataset, "__getitems__"):  # datasets of Hugging Face have it; their items stay
            dataset = as_dataset(dataset)
        if len(dataset) == 0:
            raise DataError(
                "the dataset is empty",
                found=f"a {type(dataset).__name__} of length 0",
                hint="check the path, filter or split that it is built from",
            )
        self.dataset = dataset
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.seed = seed
        self.drop_last = drop_last
        self.sampler = None if sampler is None else as_sampler(sampler, seed)
        self.buckets = (
            None
            if buckets is None
            else copy.copy(buckets if isinstance(buckets, Buckets) else Buckets(buckets))
        )
        self.pack = None if pack is None else copy.copy(pack)
        self.pin = pin
        self._check_combination(batcher)
        # Both learn the lengths of this dataset, and the user may give them to other loaders, too.
        if self.buckets is not None:
            self.buckets.prepare(dataset, batch_size)
        if self.pack is not None:
            self.pack.prepare(dataset)
        given = item_transform, transform
        # The last one first.
        options = {"pack": pack, "transform": transform, "batcher": batcher, "item_transform": item_transform}
        self.changes = [(f"{name}= of the loader", f) for name, f in options.items() if f is not None]
        item_transform, transform = (None if f is None else as_transform(f) for f in given)
        reader = _Reader(dataset, batcher, item_transform, transform, self.pack, seed)
        self._pool = WorkerPool(reader, workers, prefetch)
        self._served = 0
        if len(self) == 0:
            raise DataError(
                "an epoch would have no batch",
                expected=f"at least {quantity(batch_size, 'row' if pack else 'item')}, with drop_last",
                found=quantity(self._size(), "row" if pack else "item"),
            )

    def _check_combination(self, batcher: object) -> None:
        if self.shuffle and self.sampler is not None:
            hint = "the sampler decides the order: SubsetSampler(indices, shuffle=True)"
            raise DataError("shuffle= and sampler= exclude each other", hint=hint)
        if self.pack is not None and (self.buckets is not None or self.sampler is not None):
            hint = "select the documents in the dataset"
            raise DataError("pack= cannot be combined with buckets= or sampler=", hint=hint)
        if self.pack is not None and (batcher is not None or _takes(self.dataset)):
            hint = "use transform= to change them" if batcher else "give it documents, without take()"
            raise DataError("pack= makes the batches itself", hint=hint)
        has_budget = self.buckets is not None and self.buckets.tokens is not None
        if has_budget and (self.drop_last or self.sampler is not None):
            hint = "without them, every epoch has the same number of batches"
            raise DataError("tokens= of buckets cannot be combined with drop_last= or sampler=", hint=hint)

    def __len__(self) -> int:
        if self.buckets is not None:
            return self.buckets.num_batches(len(self._epoch_part(range(self._size()))), self.batch_size)
        full, rest = divmod(self._size(), self.batch_size)
        return full if self.drop_last or not rest else full + 1

    def __iter__(self) -> Iterator[B]:
        """Iterate over the next epoch, starting with 0."""
        self._served += 1
        return self.epoch(self._served - 1)

    @property
    def replays(self) -> bool:
        """Whether a resumed run goes through the earlier batches of its epoch again: never."""
        return False

    def num_batches(self) -> int:
        """Return the number of batches of an epoch."""
        return len(self)

    def order(self, epoch: int) -> Tensor:
        """Return the indices of an epoch in their order, ``[n]`` of int64; of documents, with `pack`."""
        return self._arrange(epoch)[0] if self.pack is None else self._items(epoch)

    def indices(self, epoch: int, batch: int) -> Tensor:
        """Return the indices of a batch's items, ``[n]`` of int64; with `pack`, the indices of its pieces."""
        indices: Tensor = next(self._tasks(epoch, batch))[1][2]
        return indices

    def samples(self, epoch: int, batch: int) -> list[int]:
        """Return the indices of the items in a batch, by the numbers of its epoch and batch, from 0."""
        _, (_, _, part) = next(self._tasks(epoch, batch))
        if self.pack is not None:  # pieces of documents: row, column, document, ...
            return list(dict.fromkeys(part[:, 2].tolist()))
        indices: list[int] = part.tolist()
        return indices

    def read(self, indices: Tensor) -> B:
        """Return a batch of these items, ``[n]`` of int64, read in this process; not with `pack`."""
        batch: B = self._pool.target((0, 0, indices), [-1])
        return batch

    def epoch(self, epoch: int, start: int = 0) -> Iterator[B]:
        """The batches of an epoch.

        Args:
            epoch: its number, from 0.
            start: the number of the first batch wanted; none of the items before it is touched.
        """
        batches = self._pool.run(self._tasks(epoch, start))
        return map(pin_memory, batches) if self.pin else batches

    def parts(self, epoch: int, start: int, rank: int, size: int) -> Iterator[Part]:
        """The part of one of `size` processes in each batch of an epoch, from the batch numbered `start` on.

        The parts are read with the generators of the batch, and together have its items.
        """
        counts: deque[tuple[int, int]] = deque()

        def tasks() -> Iterator[tuple[int, Any]]:
            for number, (_, _, items) in self._tasks(epoch, start):
                if self.pack is None:
                    total = len(items)
                    own = range(rank, total, size)
                    count, items = len(own), items[rank::size] if own else items[:1]
                else:  # pieces of documents, whose first column is the row
                    rows = items[:, 0] - items[0, 0]
                    total = int(rows[-1]) + 1
                    begin, end = (-(-total * edge // size) for edge in (rank, rank + 1))
                    count = end - begin
                    items = items[(rows >= begin) & (rows < end)] if count else items[rows == 0]
                counts.append((count, total))
                yield number, (epoch, number, items)

        batches = self._pool.run(tasks())
        return (
            Part(batch, *counts.popleft()) for batch in (map(pin_memory, batches) if self.pin else batches)
        )

    def close(self) -> None:
        """End the workers. They start again when the next batch is wanted."""
        self._pool.close()

    def state(self) -> dict[str, Any]:
        """What decides the order: compared when a run is resumed."""
        state: dict[str, Any] = {
            "seed": self.seed,
            "shuffle": self.shuffle,
            "batch_size": self.batch_size,
            "drop_last": self.drop_last,
            "items": len(self.dataset),
        }
        # Only where they are used: checkpoints of burnt 0.1.0 lack them.
        if self.sampler is not None:
            own = getattr(self.sampler, "state", None)
            state["sampler"] = {"type": type(self.sampler).__qualname__, **(own() if own is not None else {})}
        if self.buckets is not None:
            state["buckets"] = self.buckets.state()
        if self.pack is not None:
            state["pack"] = self.pack.state()
        return state

    def _size(self) -> int:
        """Return the number of items or rows of an epoch, those that `drop_last` drops included."""
        if self.pack is not None:
            return self.pack.num_rows
        return len(self.dataset if self.sampler is None else self.sampler)

    def _epoch_part(self, items: Any) -> Any:
        """Return the items that make full batches, with `drop_last`."""
        return items[: len(items) // self.batch_size * self.batch_size] if self.drop_last else items

    def _items(self, epoch: int) -> Tensor:
        """Return the indices of an epoch before they are put into buckets or rows."""
        if self.sampler is None:
            if not self.shuffle:
                return torch.arange(len(self.dataset))
            return torch.from_numpy(numpy_generator(self.seed, epoch).permutation(len(self.dataset)))
        indices = torch.as_tensor(self.sampler.indices(epoch))
        if len(indices) != len(self.sampler):
            raise DataError(
                f"{type(self.sampler).__name__} gives another number of indices than its length",
                expected=len(self.sampler),
                found=f"{len(indices)} in epoch {epoch}",
            )
        low, high = (int(bound) for bound in torch.aminmax(indices))
        if low < 0 or high >= len(self.dataset):
            raise DataError(
                f"{type(self.sampler).__name__} gives an index that the dataset lacks",
                expected=f"0 to {len(self.dataset) - 1}",
                found=low if low < 0 else high,
            )
        return indices

    def _arrange(self, epoch: int) -> tuple[Tensor, Sequence[int] | np.ndarray[Any, Any]]:
        """Return what the readers get, in the order of an epoch, and where the batches start in it."""
        items = self._items(epoch)
        is_random = self.shuffle or self.sampler is not None
        generator = numpy_generator(self.seed, epoch, 1) if is_random else None
        if self.pack is not None:
            pieces, first_of_row = self.pack.arrange(items.numpy(), generator)
            return pieces, first_of_row[:: self.batch_size]
        if self.buckets is not None:
            order, starts = self.buckets.arrange(self._epoch_part(items.numpy()), self.batch_size, generator)
            return torch.from_numpy(order), starts
        return items, range(0, len(items), self.batch_size)

    def _tasks(self, epoch: int, start: int) -> Iterator[tuple[int, Any]]:
        order, starts = self._arrange(epoch)
        for number in range(start, len(self)):
            end = int(starts[number + 1]) if number + 1 < len(starts) else len(order)
            yield number, (epoch, number, order[int(starts[number]) : end])


@dataclasses.dataclass(eq=False)
class _Reader:
    """Reads the batches of a `Loader`, in this process or in a worker's.

    A task is the epoch, the number of the batch, and the indices of its items, or the pieces of its rows.
    """

    dataset: Any
    batcher: Callable[[Any], Any] | None
    item_transform: Callable[[Any, torch.Generator], Any] | None
    transform: Callable[[Any, torch.Generator], Any] | None
    pack: Pack | None
    seed: int

    def __call__(self, task: tuple[int, int, Tensor], cell: Cell) -> Any:
        epoch, number, indices = task
        batch: Any
        try:
            if self.pack is not None:
                row = indices[:, 0] - indices[0, 0]
                documents = torch.unique(indices[:, 2])
                items = dict(zip(documents.tolist(), self._items(epoch, documents, cell), strict=True))
                pieces = torch.cat([row.unsqueeze(1), indices[:, 1:]], dim=1)
                batch = self.pack.batch(items, pieces, int(row[-1]) + 1)
            elif _takes(self.dataset) and self.item_transform is None:
                batch = self.dataset.take(indices)
                if self.batcher is not None:
                    batch = self.batcher(batch)
            else:
                batch = (self.batcher or collate)(self._items(epoch, indices, cell))
            cell[0] = -1
            if self.transform is not None:
                batch = self.transform(batch, torch_generator(self.seed, epoch, number))
            return batch
        except BurntError as error:
            if cell[0] == -1 and not error.origin:
                error.origin += (self.describe(task, -1),)
            raise
        except Exception as error:
            raise user_error("a batch could not be loaded", self.describe(task, -1), error) from error

    def key(self, task: tuple[int, int, Tensor]) -> tuple[int, ...]:
        """Return what seeds the global random states of a worker."""
        return self.seed, task[0], task[1]

    def describe(self, task: tuple[int, int, Tensor], index: int) -> str:
        """Return which item of which batch is read, or which items the batch has."""
        epoch, number, indices = task
        name = type(self.dataset).__name__
        batch = f"batch {number} of epoch {epoch}, counted from 0"
        if index >= 0:
            return f"item {index} of {name}, in {batch}"
        items = (indices if self.pack is None else torch.unique(indices[:, 2])).tolist()
        shown = ", ".join(str(item) for item in items[:20]) + (", ..." if len(items) > 20 else "")
        return f"{batch}: items {shown} of {name}"

    def _items(self, epoch: int, indices: Tensor, cell: Cell) -> list[Any]:
        several = getattr(self.dataset, "__getitems__", None)
        items: list[Any] | None = None
        if several is not None:
            try:
                items = several(indices.tolist())
            except Exception:
                self._read(epoch, indices, cell, None)  # one by one, to name the item
                raise
        return self._read(epoch, indices, cell, items)

    def _read(self, epoch: int, indices: Tensor, cell: Cell, items: Sequence[Any] | None) -> list[Any]:
        read = []
        is_copied = is_changed(self.item_transform, self.batcher)
        with naming(lambda: f"item {cell[0]} of {type(self.dataset).__name__}"):
            for place, index in enumerate(indices.tolist()):
                cell[0] = index
                item = self.dataset[index] if items is None else items[place]
                if is_copied:
                    item = copy_item(item)
                if self.item_transform is not None:
                    item = self.item_transform(item, torch_generator(self.seed, epoch, index))
                read.append(item)
        cell[0] = -1
        return read


def _takes(dataset: object) -> bool:
    # Datasets of Hugging Face have __getitems__, and a take() that returns the first items.
    return hasattr(dataset, "take") and not hasattr(dataset, "__getitems__")


class LimitedLoader(Generic[B]):
    """The first batches of each epoch of a loader.

    A shuffled loader gives others in each epoch. The other attributes are the loader's.

    Args:
        loader: any loader of `burnt.data`.
        limit: the number of batches, from 1 on; or as a float above 0 and up to 1.0, a fraction of
            an epoch's, rounded down to at least one batch.
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

    def parts(self, epoch: int, start: int, rank: int, size: int, **position: Any) -> Iterator[Part] | None:
        """Return one process's parts of these batches, as `read_parts` of the loader."""
        parts = read_parts(self.loader, epoch, start, rank, size, **position)
        return None if parts is None else _First(parts, self.limit - start)

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
        self._read: dict[tuple[int, ...], list[Any]] = {}

    def num_batches(self) -> int:
        """Return the number of batches; of a loader that does not know its own, the first call reads them."""
        batches = self.loader.num_batches()
        return len(self._batches()) if batches is None else min(batches, self.limit)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[B]:
        """Return the batches, which are the same in every epoch, from the batch numbered `start` on."""
        # Copies, since a step may change its batch in place.
        return map(clone, self._batches()[start:])

    def parts(self, epoch: int, start: int, rank: int, size: int) -> Iterator[Part] | None:
        """Return one process's parts of these batches, as `read_parts` of the loader."""
        if self.loader.num_batches() is None:
            return None  # whole batches have been read, to know their number
        parts = self._batches(rank, size)
        return map(clone, parts[start:]) if parts else None

    def state(self) -> dict[str, Any]:
        """Return the loader's settings, and the number of batches."""
        return {**self.loader.state(), "repeated": self.limit}

    def _batches(self, *part: int) -> list[Any]:
        """Return the batches, or the parts of one of several processes in them; empty if it has no parts."""
        if part not in self._read:
            with seeded_globally(0):
                batches = read_parts(self.loader, 0, 0, *part) if part else self.loader.epoch(0)
                self._read[part] = list(itertools.islice(batches or (), self.limit))
        return self._read[part]


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
