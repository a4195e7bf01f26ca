"""The part of a rank in each batch: `batch_size` is that of the whole batch, whatever the number of ranks."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from torch import Tensor

from burnt.data import Batch
from burnt.data.batch import digest
from burnt.data.loading.loader import Part, read_parts
from burnt.errors import RankError
from burnt.inspect.specs import tensors_in
from burnt.train.checkpoints.rng import RandomStates

_SAME = "an iterable of batches gives each rank the same ones; seed what draws its order"


class Peers(Protocol):
    """What reading a part needs of `Ranks`."""

    rank: int
    size: int

    def every(self, value: Any) -> list[Any]:
        """Return the values of all ranks."""
        ...

    def totals(self, values: Sequence[float]) -> list[float]:
        """Return the sums of some numbers over the ranks."""
        ...

    def check_same(self, values: Mapping[str, Any], hint: str | None = None) -> None:
        """Raise on all ranks if a value differs."""
        ...


class PartLoader:
    """Reads a rank's part of each batch of a loader; its other attributes are the loader's.

    A `burnt.data.Loader` reads only these items, and a `StreamLoader` transforms only these. Of other loaders
    each rank reads whole batches and takes a slice. One that draws its order from the global random states,
    such as a DataLoader, has rank 0's.
    """

    def __init__(self, loader: Any, ranks: Peers) -> None:
        self.loader, self._ranks = loader, ranks

    def __getattr__(self, name: str) -> Any:
        if name == "loader" or name.startswith("__"):  # asked for by copy, before there is a loader
            raise AttributeError(name)
        return getattr(self.loader, name)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Part]:
        """Return the parts of an epoch's batches, from the batch numbered `start` on."""
        return self._read(epoch, start)

    def resume(self, epoch: int, start: int, state: Mapping[str, Any]) -> Iterator[Part]:
        """Return the parts from a position on that an iterator's `state` returned."""
        return self._read(epoch, start, state=state)

    def _read(self, epoch: int, start: int, **position: Any) -> Iterator[Part]:
        loader, ranks = self.loader, self._ranks

        def parts() -> Iterator[Part] | None:
            return read_parts(loader, epoch, start, ranks.rank, ranks.size, **position)

        def batches() -> Iterator[Any]:
            read: Iterator[Any] = (
                loader.resume(epoch, start, **position) if position else loader.epoch(epoch, start)
            )
            return read

        if loader.num_batches() is not None and (known := parts()) is not None:
            return known
        own = RandomStates.capture()
        states = ranks.every(own if ranks.rank == 0 else None)
        if states[0] is not None:
            states[0].restore()
        read: Any = parts() or batches()
        state = getattr(read, "state", None)
        position_before = state() if callable(state) else None
        first = next(read, None)
        if ranks.rank:
            own.restore()
        found = digest(first) if not isinstance(first, Part) else first.digest
        ranks.check_same({"the first batch of an iterable": f"values of the digest {found}"}, _SAME)
        return _Slices(read, [] if first is None else [first], position_before, ranks)


class _Slices(Iterator[Part]):
    """The parts of a rank in what an iterator returns, batches or parts; it has its other attributes.

    `first` was read already, and the iterator's position before it is `position`.
    """

    def __init__(self, batches: Iterator[Any], first: list[Any], position: Any, ranks: Peers) -> None:
        self._batches, self._first, self._position, self._ranks = batches, first, position, ranks

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        found = getattr(self._batches, name)
        return (lambda: self._position) if name == "state" and self._first else found

    def __next__(self) -> Part:
        batch = self._first.pop() if self._first else next(self._batches, None)
        total = -1 if batch is None else batch.total if isinstance(batch, Part) else _size(batch)
        numbers, squares = self._ranks.totals([total, total**2])
        if numbers**2 != squares * self._ranks.size:  # they are equal if all numbers are
            found = "no further one" if batch is None else f"one of {total} items"
            self._ranks.check_same({"the next batch of an iterable": found}, _SAME)
        if batch is None:
            raise StopIteration
        if isinstance(batch, Part):
            return batch
        begin, end = (
            -(-total * edge // self._ranks.size) for edge in (self._ranks.rank, self._ranks.rank + 1)
        )
        taken = slice(begin, end) if begin < end else slice(0, 1)
        return Part(_sliced(batch, taken, total), end - begin, total)


def _size(batch: Any) -> int:
    """Return the number of items: the size of the first axis of its tensors."""
    sizes = {len(tensor) if tensor.dim() else None for tensor in tensors_in(batch)}
    if len(sizes) == 1 and None not in sizes:
        return int(sizes.pop() or 0)
    raise RankError(
        "a batch cannot be divided among the ranks",
        expected="tensors with a common first axis, the items",
        found=", ".join(str(list(tensor.shape)) for tensor in tensors_in(batch)) or type(batch).__name__,
        hint="a burnt.data.Loader gives each rank its own items",
    )


def _sliced(value: Any, part: slice, total: int) -> Any:
    """Return the items of a slice, of tensors and of lists and tuples with an entry for each item."""
    if isinstance(value, Tensor):
        return value[part]
    if isinstance(value, Batch):
        return Batch(**{name: _sliced(one, part, total) for name, one in vars(value).items()})
    if isinstance(value, Mapping):
        return {name: _sliced(one, part, total) for name, one in value.items()}
    if isinstance(value, tuple | list):
        if len(value) == total and not any(isinstance(one, Tensor | Mapping | tuple | list) for one in value):
            return value[part]
        items = [_sliced(one, part, total) for one in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {
            f.name: _sliced(getattr(value, f.name), part, total) for f in dataclasses.fields(value) if f.init
        }
        return dataclasses.replace(value, **fields)
    return value
