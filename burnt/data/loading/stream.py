"""StreamLoader: batches from iterables and shards, whose position can be stored and resumed.

A stream is read in lanes: a fixed number of them, each of which reads its own shards and makes its own
batches; the loader takes batches from the lanes in turn. Workers share the lanes among them, so that their
number does not show in the batches.
"""

from __future__ import annotations

import itertools
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic

import torch

from burnt._hints import explain_arguments
from burnt.data.batch import pin as pin_memory
from burnt.data.loading.iterable_loader import has_state
from burnt.data.loading.loader import B
from burnt.data.loading.shard_reader import START, Position, Shards, StreamReader
from burnt.data.loading.workers import WorkerPool
from burnt.data.transforms.transform import as_transform
from burnt.errors import DataError


class StreamLoader(Generic[B]):
    """Batches from an iterable of items, or from `Shards`, for data that has no length or no items by index.

    As with `Loader`, the batches of an epoch depend on the seed and the epoch alone, with any number of
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
        pin: copy batches to pinned memory, from which they go to CUDA beside the computation.

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
        batches = _StreamIterator(self, epoch, [START] * self.lanes, 0)
        for _ in itertools.islice(batches, start):
            pass
        return batches

    def resume(self, epoch: int, start: int, state: Mapping[str, Any]) -> _StreamIterator[B]:
        """The batches of an epoch from a position on that its iterator's `state` returned.

        Raises:
            DataError: the position is of a loader with another number of lanes.
        """
        if len(state["lanes"]) != self.lanes:
            raise DataError(
                "the position in the stream is of a loader with other lanes",
                expected=f"lanes={len(state['lanes'])}",
                found=f"lanes={self.lanes}",
                hint="resume with the same shards and lanes=, or start a new run",
            )
        return _StreamIterator(self, epoch, state["lanes"], state["turn"])

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
        self, loader: StreamLoader[B], epoch: int, positions: Sequence[Position | None], turn: int
    ) -> None:
        self.number = next(loader._numbers)
        self._loader = loader
        self._epoch = epoch
        self._positions = list(positions)  # None: the lane is at its end
        self._turn = turn
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
            batch, self._positions[lane] = result
            self._turn = (lane + 1) % len(self._positions)
            given: B = pin_memory(batch) if self._loader.pin else batch
            return given
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
                opening = (self._positions[lane], [iterator.number for iterator in self._loader._iterators])
            self._asked.append(lane)
            yield lane, (self.number, self._epoch, lane, numbers[lane], opening)
            numbers[lane] += 1
