"""Lanes of a stream: each reads its own shards, makes its own batches, and has a position.

Shuffling reads a block of items and hands them out in a random order, then the next block. A position is then
where the block starts and how many of its items were handed out: a resumed run reads that block again, where
a buffer that is refilled item by item could hold items from anywhere before.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from burnt.data.batch import collate, copy_item
from burnt.data.loading.iterable_loader import decode_state, encode_state, has_state
from burnt.data.loading.pad import is_changed
from burnt.data.loading.workers import Cell, naming
from burnt.data.seeds import numpy_generator, torch_generator
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


@dataclasses.dataclass(eq=False)
class StreamReader:
    """Reads the batches of a `StreamLoader`, in this process or in a worker's.

    A task is the number of the iterator, the epoch, the lane and the number of the batch in it; and if it is
    the iterator's first of the lane, the position to start from and the iterators that are in use.
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
                position, in_use = opening
                # Of this lane alone: other threads may be ahead, with iterators that are not in the list yet.
                for key in [key for key in list(self._open) if key[1] == lane and key[0] not in in_use]:
                    self._open.pop(key, None)
                self._open[iterator, lane] = _ShardReader(self, epoch, lane, position, cell)
            elif (iterator, lane) not in self._open:
                return None  # the lane has ended
            items, position = self._open[iterator, lane].take(self.batch_size, cell)
            if not items or (self.drop_last and len(items) < self.batch_size):
                del self._open[iterator, lane]
                return None
            batch = (self.batcher or collate)(items)
            if self.transform is not None:
                batch = self.transform(batch, torch_generator(self.seed, epoch, lane, number))
            return batch, {**position, "batches": number + 1}

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

    def __init__(self, reader: StreamReader, epoch: int, lane: int, position: Position, cell: Cell) -> None:
        self._reader = reader
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
        self._block: list[tuple[int, str, Any]] = []
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

    def take(self, count: int, cell: Cell) -> tuple[list[Any], Position]:
        """Return up to `count` items, and the position after them."""
        reader, self._cell = self._reader, cell
        items: list[Any] = []
        is_copied = is_changed(reader.item_transform, reader.batcher)
        while len(items) < count:
            if self._given == len(self._block):
                self._read_block()
                if not self._block:
                    break
            number, place, item = self._block[self._given]
            self._given += 1
            if is_copied:
                item = copy_item(item)
            if reader.item_transform is not None:
                cell[0] = number
                generator = torch_generator(reader.seed, self._epoch, self._lane, number)
                with naming(place):
                    item = reader.item_transform(item, generator)
            items.append(item)
        if self._given == len(self._block):
            return items, self._now()
        return items, {**self._start, "given": self._given}

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
