"""StreamLoader: batches from iterables and shards, whose position can be stored and resumed.

A stream is read in lanes: a fixed number of them, each of which reads its own shards and makes its own
batches; the loader takes batches from the lanes in turn. Workers share the lanes among them, so that their
number does not show in the batches.

Shuffling reads a block of items and hands them out in a random order, then the next block. A position is then
where the block starts and how many of its items were handed out: a resumed run reads that block again, where
a buffer that is refilled item by item could hold items from anywhere before.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import os
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic

import torch

from burnt._hints import explain_arguments
from burnt.data.batch import collate, copy_item, digest
from burnt.data.batch import pin as pin_memory
from burnt.data.loading.iterable_loader import decode_state, encode_state, has_state
from burnt.data.loading.loader import B, Part
from burnt.data.loading.pack import is_changed
from burnt.data.loading.workers import Cell, WorkerPool, naming
from burnt.data.seeds import numpy_generator, torch_generator
from burnt.data.transforms.transform import as_transform
from burnt.errors import DataError

Position = dict[str, Any]


class Shards:
    """A stream in parts, such as files, which a `StreamLoader` reads in any order and side by side.

    Args:
        shards: what tells the parts apart: paths, URLs, numbers.
        read: ``read(shard)`` returns an iterable of its items, the same ones at every call. What is
            expensive, such as decoding, belongs into the loader's `item_transform`: after a resume, items
            that were handed out before are read again up to the position in the shard, but not transformed.

    Raises:
        DataError: no shards.

    >>> shards = Shards([10, 20], lambda shard: [shard + 1, shard + 2])
    >>> list(shards)
    [11, 12, 21, 22]
    """

    def __init__(self, shards: Iterable[Any], read: Callable[[Any], Iterable[Any]]) -> None:
        self.shards = list(shards)
        self.read = read
        if not self.shards:
            raise DataError("there are no shards", hint="check the pattern or folder that they come from")

    def __iter__(self) -> Iterator[Any]:
        for shard in self.shards:
            yield from self.read(shard)

    def state(self) -> dict[str, Any]:
        """Return the number of the shards and, of paths, texts and integers, a digest of their names.

        The folders of paths are left out: the data may be somewhere else when a run is resumed.
        """
        names = [os.path.basename(s) if isinstance(s, str | os.PathLike) else s for s in self.shards]
        if not all(isinstance(name, str | int) for name in names):
            return {"count": len(names)}
        digest = hashlib.blake2b("\0".join(map(str, names)).encode("utf-8", "surrogateescape"), digest_size=8)
        return {"count": len(names), "names": digest.hexdigest()}


START: Position = {
    "shard": 0, "item": 0, "items": 0, "given": 0, "batches": 0, "source": None, "ended": False
}  # fmt: skip
"""The position of a lane: the shard (counted in the lane's order) and item where a block starts, the items of
the lane before it, the items given of it and the batches given in all; the state of the dataset; and whether
the dataset has ended, since its state may then be that of a new start."""


_Drawn = tuple[int, str, Any]
"""The number of an item in its lane, its place for messages, and the item as it was read."""


@dataclasses.dataclass(eq=False)
class StreamReader:
    """Reads the batches of a `StreamLoader`, in this process or in a worker's.

    A task is the number of the iterator, the epoch, the lane and the number of the batch in it; and if it is
    the iterator's first of the lane, the position to start from, the iterators that are in use, and which of
    how many processes reads its part of each batch.
    """

    dataset: Iterable[Any]
    batch_size: int
    batcher: Callable[[list[Any]], Any] | None
    shuffle: int
    seed: int
    drop_last: bool
    item_transform: Callable[[Any, torch.Generator], Any] | None
    transform: Callable[[Any, torch.Generator], Any] | None
    lanes: int
    initial_state: Any = None
    restored_epoch: int | None = None
    is_midway: bool = False  # whether the dataset, which has a state, was left before its end
    _open: dict[tuple[int, int], _ShardReader] = dataclasses.field(default_factory=dict)

    def __call__(self, task: tuple[int, int, int, int, Any], cell: Cell) -> Any:
        """Return a batch and the position after it; None at the end of the lane."""
        iterator, epoch, lane, number, opening = task
        with naming(lambda: self.describe(task, -1), "a batch of a stream could not be loaded"):
            if opening is not None:
                position, in_use, process = opening
                # Only of this lane: other threads may be ahead, with iterators that are not in the list yet.
                for key in [key for key in list(self._open) if key[1] == lane and key[0] not in in_use]:
                    self._open.pop(key, None)
                self._open[iterator, lane] = _ShardReader(self, epoch, lane, position, process, cell)
            elif (iterator, lane) not in self._open:
                return None  # the lane has ended
            shards = self._open[iterator, lane]
            drawn, position = shards.take(self.batch_size, cell)
            if not drawn or (self.drop_last and len(drawn) < self.batch_size):
                del self._open[iterator, lane]
                return None
            rank, size = shards.process
            own = drawn[rank::size]
            batch = (self.batcher or collate)(shards.transformed(own or drawn[:1], cell))
            if self.transform is not None:
                batch = self.transform(batch, torch_generator(self.seed, epoch, lane, number))
            found = digest([item for _, _, item in drawn]) if opening is not None and size > 1 else None
            return Part(batch, len(own), len(drawn), found), {**position, "batches": number + 1}

    def key(self, task: tuple[int, int, int, int, Any]) -> tuple[int, ...]:
        """Return what seeds the global random states of a worker."""
        return self.seed, *task[1:4]

    def describe(self, task: tuple[int, int, int, int, Any], index: int) -> str:
        """Return which part of the stream is read."""
        _, epoch, lane, number, _ = task
        batch = f"batch {number} of lane {lane} in epoch {epoch}, counted from 0"
        return f"item {index} of the lane, {batch}" if index >= 0 else batch

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": {}}


class _ShardReader:
    """One lane of an epoch, from a position on."""

    def __init__(
        self,
        reader: StreamReader,
        epoch: int,
        lane: int,
        position: Position,
        process: tuple[int, int],
        cell: Cell,
    ) -> None:
        self._reader = reader
        self.process = process
        self._epoch = epoch
        self._lane = lane
        self._dataset: Any = reader.dataset
        self._shards: list[Any] = []
        if isinstance(reader.dataset, Shards):
            order = list(range(len(reader.dataset.shards)))
            if reader.shuffle:
                order = numpy_generator(reader.seed, epoch).permutation(len(order)).tolist()
            self._shards = [reader.dataset.shards[index] for index in order[lane :: reader.lanes]]
        self._at = {**position, "given": 0}  # the next item to read
        self._cell = cell
        self._source = self._items()
        self._has_read = False
        self._block: list[_Drawn] = []
        self._start = self._at
        self._given = 0
        if position["given"]:
            self._read_block()
            self._given = position["given"]
            if len(self._block) < self._given:
                raise DataError(
                    "the stream is shorter than when its position was stored",
                    where=self._place(),
                    expected=f"at least {self._given} items more than at the last position",
                    found=len(self._block),
                )

    def take(self, count: int, cell: Cell) -> tuple[list[_Drawn], Position]:
        """Return up to `count` items, before they are transformed, and the position after them."""
        self._cell = cell
        items: list[_Drawn] = []
        while len(items) < count:
            if self._given == len(self._block):
                self._read_block()
                if not self._block:
                    break
            first, self._given = self._given, min(self._given + count - len(items), len(self._block))
            items += self._block[first : self._given]
        if self._given == len(self._block):
            return items, self._now()
        return items, {**self._start, "given": self._given}

    def transformed(self, items: Sequence[_Drawn], cell: Cell) -> list[Any]:
        """Return what `item_transform` makes of items."""
        reader = self._reader
        is_copied = is_changed(reader.item_transform, reader.batcher)
        changed = []
        for number, place, item in items:
            if is_copied:
                item = copy_item(item)
            if reader.item_transform is not None:
                cell[0] = number
                generator = torch_generator(reader.seed, self._epoch, self._lane, number)
                with naming(place):
                    item = reader.item_transform(item, generator)
            changed.append(item)
        return changed

    def _read_block(self) -> None:
        """Read the next items, and shuffle them."""
        self._start, self._given, self._block = self._now(), 0, []
        for _ in range(self._reader.shuffle or self._reader.batch_size):
            self._cell[0], place = self._at["items"], self._place()
            with naming(place):
                try:
                    self._block.append((self._at["items"], place, next(self._source)))
                except StopIteration:
                    self._at["ended"] = True
                    break
        self._has_read = True
        if self._reader.shuffle:
            generator = numpy_generator(self._reader.seed, self._epoch, self._lane, self._start["items"])
            self._block = [self._block[place] for place in generator.permutation(len(self._block)).tolist()]

    def _now(self) -> Position:
        """Return the position of the next item that is read."""
        if not self._has_read or self._at["ended"] or not has_state(self._dataset):
            return dict(self._at)
        return {**self._at, "source": encode_state(self._dataset.state_dict(), self._dataset)}

    def _items(self) -> Iterator[Any]:
        """Iterate over the items of the lane, before they are transformed, and keep `_at`."""
        dataset, at = self._dataset, self._at
        if at["ended"]:
            return
        if not isinstance(dataset, Shards):
            if hasattr(dataset, "set_epoch"):
                dataset.set_epoch(self._epoch)
            skipped = at["items"]
            if has_state(dataset):
                self._restore(dataset)
                skipped = 0
            self._reader.is_midway = True
            for item in itertools.islice(dataset, skipped, None):
                at["items"] += 1
                yield item
            self._reader.is_midway = False
            return
        while at["shard"] < len(self._shards):
            for item in itertools.islice(dataset.read(self._shards[at["shard"]]), at["item"], None):
                at["item"] += 1
                at["items"] += 1
                yield item
            at["shard"], at["item"] = at["shard"] + 1, 0

    def _restore(self, dataset: Any) -> None:
        """Put a dataset that knows its position to where the lane starts."""
        reader, source = self._reader, self._at["source"]
        if reader.initial_state is None:
            reader.initial_state = encode_state(dataset.state_dict(), dataset)
        if source is None and (reader.is_midway or reader.restored_epoch == self._epoch):
            # One that was left midway may go on there. Those of Hugging Face start every iteration from the
            # state that they were given, in its epoch.
            source = reader.initial_state
        if source is not None:
            dataset.load_state_dict(decode_state(source))
            reader.restored_epoch = self._epoch

    def _place(self) -> str:
        """Return what is read next, for messages."""
        if self._shards:
            shard = self._shards[min(self._at["shard"], len(self._shards) - 1)]
            return f"item {self._at['item']} of shard {shard!r}"
        return f"item {self._at['items']} of {type(self._dataset).__name__}"


class StreamLoader(Generic[B]):
    """Batches from an iterable of items, or from `Shards`, for data that has no length or no items by index.

    As with `Loader`, the batches of an epoch depend only on the seed and the epoch, with any number of
    workers. A checkpoint holds the position in the stream, and a resumed run continues there: of `Shards`,
    and of datasets with ``state_dict`` and ``load_state_dict``, such as the iterable datasets of Hugging
    Face. Other iterables are gone through again up to the position (`replays`).

    Args:
        dataset: `Shards`, or an object that can be iterated once per epoch. ``set_epoch`` is called if it has
            one. One with a state belongs to one loader: those of Hugging Face keep a position that they were
            put to. An epoch begins where the dataset was at first, also if the one before was left midway.
        batch_size: the number of items in a batch.
        batcher: turns a list of items into a batch; `collate` by default.
        shuffle: the number of items that are read and shuffled at a time; 0 keeps the order. The order of the
            shards is shuffled too.
        seed: the seed of the order and of the transforms.
        drop_last: drop a last batch that is not full, of every lane.
        item_transform: ``item_transform(item, generator)`` returns the changed item. The generator is seeded
            by (seed, epoch, lane, number of the item in its lane).
        transform: ``transform(batch, generator)`` returns the changed batch. The generator is seeded by
            (seed, epoch, lane, number of the batch in its lane).
        lanes: the number of shards that are read side by side, by default at most 8; batches come from the
            lanes in turn. It changes the order, and more workers than lanes have nothing to do.
        workers: the number of worker processes; ``"4 threads"`` are threads of this process.
        prefetch: the number of batches that each worker is ahead, 2 by default.
        pin: copy batches to pinned memory, from which they go to CUDA next to the computation.

    Raises:
        DataError: settings that are invalid, or a dataset that can be iterated only once.

    >>> shards = Shards([0, 100], lambda shard: range(shard, shard + 5))
    >>> loader = StreamLoader(shards, 2)
    >>> batches = loader.epoch(0)
    >>> [next(batches).tolist() for _ in range(3)]
    [[0, 1], [100, 101], [2, 3]]
    >>> [batch.tolist() for batch in loader.resume(0, 3, batches.state())]
    [[102, 103], [4], [104]]
    """

    @explain_arguments(
        num_workers="workers= is the number of worker processes; workers='4 threads' are threads",
        prefetch_factor="prefetch= is the number of batches that each worker is ahead",
        buffer_size="shuffle= is the number of items that are shuffled at a time",
        sampler="a stream is read in its order; shuffle= shuffles it in parts",
    )
    def __init__(
        self,
        dataset: Iterable[Any],
        batch_size: int,
        *,
        batcher: Callable[[list[Any]], B] | None = None,
        shuffle: int = 0,
        seed: int = 0,
        drop_last: bool = False,
        item_transform: Callable[[Any, torch.Generator], Any] | None = None,
        transform: Callable[[B, torch.Generator], B] | None = None,
        lanes: int | None = None,
        workers: int | str = 0,
        prefetch: int | None = None,
        pin: bool = False,
    ) -> None:
        if isinstance(dataset, Iterator) or not isinstance(dataset, Iterable):
            raise DataError(
                "a StreamLoader needs an object that can be iterated once per epoch",
                expected="an object with __iter__, or Shards",
                found=type(dataset).__name__,
                hint="wrap a generator function: Shards([0], lambda _: generator())",
            )
        shards = len(dataset.shards) if isinstance(dataset, Shards) else 1
        for name, value, is_valid, expected in (
            ("batch_size", batch_size, isinstance(batch_size, int) and batch_size >= 1, "at least 1"),
            ("shuffle", shuffle, shuffle is not True and shuffle >= 0, "a number of items, such as 1000"),
            ("lanes", lanes, lanes is None or 1 <= lanes <= shards, f"1 to {shards}, the number of shards"),
        ):
            if not is_valid:
                raise DataError(
                    "a setting of a StreamLoader is invalid", where=name, expected=expected, found=value
                )
        self.dataset = dataset
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.seed = seed
        self.drop_last = drop_last
        self.lanes = lanes or min(shards, 8)
        self.pin = pin
        given = item_transform, transform
        item_transform, transform = (None if f is None else as_transform(f) for f in given)
        reader = StreamReader(
            dataset, batch_size, batcher, shuffle, seed, drop_last, item_transform, transform, self.lanes
        )
        self._pool = WorkerPool(reader, workers, prefetch)
        self._iterators: weakref.WeakSet[_StreamIterator[B]] = weakref.WeakSet()
        self._numbers = itertools.count()
        self._served = 0

    def __iter__(self) -> Iterator[B]:
        """Iterate over the next epoch, starting with 0."""
        self._served += 1
        return self.epoch(self._served - 1)

    @property
    def replays(self) -> bool:
        """Whether a resumed run goes through the earlier items of its epoch again."""
        return not isinstance(self.dataset, Shards) and not has_state(self.dataset)

    def num_batches(self) -> None:
        """Return None: how long a stream is shows at its end."""

    def epoch(self, epoch: int, start: int = 0) -> _StreamIterator[B]:
        """The batches of an epoch, as an iterator that knows its position.

        Args:
            epoch: its number, from 0.
            start: the number of the first batch wanted; those before it are read and dropped, which `resume`
                does without.
        """
        return self._iterate(epoch, start)

    def resume(self, epoch: int, start: int, state: Mapping[str, Any]) -> _StreamIterator[B]:
        """The batches of an epoch from a position on that its iterator's `state` returned.

        Raises:
            DataError: the position is of a loader with another number of lanes.
        """
        return self._iterate(epoch, start, state)

    def parts(
        self, epoch: int, start: int, rank: int, size: int, state: Mapping[str, Any] | None = None
    ) -> _StreamIterator[Part]:
        """The part of one of `size` processes in each batch, from a position on, as `epoch` or `resume`.

        Each process reads all items, which decides the batches, but transforms and collates only its own.
        """
        return self._iterate(epoch, start, state, (rank, size))

    def _iterate(
        self,
        epoch: int,
        start: int,
        state: Mapping[str, Any] | None = None,
        process: tuple[int, int] | None = None,
    ) -> _StreamIterator[Any]:
        if state is None:
            batches: _StreamIterator[Any] = _StreamIterator(self, epoch, [START] * self.lanes, 0, process)
            for _ in itertools.islice(batches, start):
                pass
            return batches
        if len(state["lanes"]) != self.lanes:
            raise DataError(
                "the position in the stream is of a loader with other lanes",
                expected=f"lanes={len(state['lanes'])}",
                found=f"lanes={self.lanes}",
                hint="resume with the same shards and lanes=, or start a new run",
            )
        return _StreamIterator(self, epoch, state["lanes"], state["turn"], process)

    def state(self) -> dict[str, Any]:
        """What decides the order: compared when a run is resumed."""
        return {
            "seed": self.seed,
            "shuffle": self.shuffle,
            "batch_size": self.batch_size,
            "drop_last": self.drop_last,
            "lanes": self.lanes,
            "shards": self.dataset.state() if isinstance(self.dataset, Shards) else None,
        }

    def close(self) -> None:
        """End the workers. They start again when the next batch is wanted."""
        self._pool.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_iterators": weakref.WeakSet()}


class _StreamIterator(Generic[B]):
    """The batches of an epoch, from all lanes in turn."""

    def __init__(
        self,
        loader: StreamLoader[Any],
        epoch: int,
        positions: Sequence[Position | None],
        turn: int,
        process: tuple[int, int] | None,
    ) -> None:
        self.number = next(loader._numbers)
        self._loader = loader
        self._epoch = epoch
        self._positions = list(positions)  # None: the lane is at its end
        self._turn = turn
        self._process = process  # None: whole batches
        self._asked: deque[int] = deque()
        self._results = loader._pool.run(self._tasks())
        loader._iterators.add(self)

    def __iter__(self) -> _StreamIterator[B]:
        return self

    def __next__(self) -> B:
        for result in self._results:
            lane = self._asked.popleft()
            if result is None:
                self._positions[lane] = None
                continue
            part, self._positions[lane] = result
            self._turn = (lane + 1) % len(self._positions)
            given = part.batch if self._process is None else part
            batch: B = pin_memory(given) if self._loader.pin else given
            return batch
        raise StopIteration

    def state(self) -> dict[str, Any]:
        """The position after the last batch, as JSON."""
        return {"lanes": list(self._positions), "turn": self._turn}

    def _tasks(self) -> Iterator[tuple[int, Any]]:
        numbers = [0 if position is None else position["batches"] for position in self._positions]
        begun: set[int] = set()
        lanes = itertools.islice(itertools.cycle(range(len(numbers))), self._turn, None)
        for lane in lanes:
            if all(position is None for position in self._positions):
                return
            if self._positions[lane] is None:
                continue
            opening = None
            if lane not in begun:
                begun.add(lane)
                in_use = [iterator.number for iterator in self._loader._iterators]
                opening = (self._positions[lane], in_use, self._process or (0, 1))
            self._asked.append(lane)
            yield lane, (self.number, self._epoch, lane, numbers[lane], opening)
            numbers[lane] += 1
