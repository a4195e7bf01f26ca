"""Batch: named tensors with a common batch axis; collate items to batches and move them to a device."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from burnt.data.decoding import STORED
from burnt.errors import ArgumentError, DataError, did_you_mean

_UNCHANGEABLE = frozenset((type(None), bool, int, float, complex, str, bytes))
_OF_PICTURES = ("tile", "format", "filename", STORED)  # which copies of Pillow's pictures lack
_ARRAYS = ("__array__", "__array_interface__")  # of NumPy, Pillow, pandas ...


class Batch:
    """Named tensors with a common leading axis; ``batch["images"]`` is ``batch.images``.

    >>> import torch
    >>> batch = Batch(images=torch.zeros(4, 1, 8, 8), labels=torch.zeros(4, dtype=torch.int64))
    >>> len(batch), batch.images.shape, list(batch)
    (4, torch.Size([4, 1, 8, 8]), ['images', 'labels'])
    >>> batch["labels"] is batch.labels, "masks" in batch
    (True, False)
    """

    def __init__(self, **columns: Any) -> None:
        self.__dict__.update(columns)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"this batch has no {name!r}, it has: {', '.join(self.__dict__)}")

    def __getitem__(self, name: str) -> Any:
        if not isinstance(name, str):
            raise ArgumentError(
                "a batch is indexed by the name of a field",
                expected=", ".join(map(repr, self.__dict__)) or "no fields",
                found=f"{type(name).__name__} {name!r}"[:80],
                hint=f"items by index: batch.{next(iter(self.__dict__), 'x')}[...]",
            )
        if name not in self.__dict__:
            raise DataError(
                f"this batch has no {name!r}",
                expected=", ".join(self.__dict__) or "no fields",
                found=repr(name),
                hint=did_you_mean(name, self.__dict__),
            )
        return self.__dict__[name]

    def __contains__(self, name: object) -> bool:
        return name in self.__dict__

    def __len__(self) -> int:
        for column in self.__dict__.values():
            return len(column)
        return 0

    def __iter__(self) -> Iterator[str]:
        return iter(self.__dict__)

    def __repr__(self) -> str:
        shapes = (
            f"{name}: {tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__}"
            for name, value in self.__dict__.items()
        )
        return f"Batch({', '.join(shapes)})"

    def replace(self, **columns: Any) -> Batch:
        """Return a batch with some columns changed or added."""
        return Batch(**{**self.__dict__, **columns})


def collate(items: Sequence[Any]) -> Any:
    """Collate items to a batch: tensors and numbers are stacked, containers are collated by element.

    Dicts and dataclasses become a `Batch`; tuples and lists keep their type.

    Raises:
        DataError: the items have different shapes or types.

    >>> collate([{"x": 1.0, "y": 0}, {"x": 2.0, "y": 1}])
    Batch(x: (2,), y: (2,))
    """
    first = items[0]
    try:
        if dataclasses.is_dataclass(first):
            names = [field.name for field in dataclasses.fields(first)]
            return Batch(**{name: collate([getattr(item, name) for item in items]) for name in names})
        if isinstance(first, Batch):
            return collate([vars(item) for item in items])
        if isinstance(first, Mapping):
            names = list(first)
            other = next((item for item in items if item.keys() != first.keys()), None)
            if other is not None:
                raise KeyError(f"{', '.join(names)} in one item, {', '.join(other)} in another")
            return Batch(**{name: collate([item[name] for item in items]) for name in names})
        if isinstance(first, tuple | list):
            columns = [collate(column) for column in zip(*items, strict=True)]
            return type(first)(*columns) if hasattr(first, "_fields") else type(first)(columns)
        return torch.utils.data.default_collate(list(items))
    except (RuntimeError, TypeError, KeyError, AttributeError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        hint = "pad them, or pass your own batcher= to the loader"
        if "batch must contain tensors" in str(error):  # such as dates
            hint = (
                "leave the entry out, convert it in item_transform=, or pass your own batcher= to the loader"
            )
        raise DataError(
            "the items of a batch do not fit together",
            found=error.args[0] if isinstance(error, KeyError) else str(error),
            hint=hint,
        ) from error


def move(value: Any, device: torch.device) -> Any:
    """Move a batch, or any container of tensors, to a device; tensors that are already there are not copied.

    Copies from pinned memory to an accelerator are asynchronous; those to the CPU are complete on return.
    """
    is_async = device.type != "cpu"  # nothing else would wait for an asynchronous copy to the CPU
    return _apply(value, lambda part: part.to(device, non_blocking=is_async), lambda part: part.to(device))


def clone(value: Any) -> Any:
    """Copy the tensors of a batch, or of any container of tensors."""
    return _apply(value, Tensor.clone, lambda part: part)


def copy_item(item: Any) -> Any:
    """Copy an item for a function that may change it in place, because its dataset may hold it, too.

    Tensors, containers, dataclasses, and arrays, pictures and frames that can be written to are copied, and
    keep their types. Other objects, and those that do not allow copies, are returned as they are.
    """
    try:
        return item if type(item) in _UNCHANGEABLE else _copied(item)
    except (TypeError, AttributeError):  # such as a group of an HDF5 file
        return item


def _copied(item: Any) -> Any:
    if isinstance(item, Tensor):
        return item.clone()
    if isinstance(item, np.ndarray) and not item.flags.writeable:  # perhaps a file that is mapped into memory
        return item
    copied: Any
    if isinstance(item, tuple):
        copied = tuple.__new__(type(item), map(copy_item, item))  # `__new__` of a subclass may take others
    elif isinstance(item, set | bytearray) or any(hasattr(type(item), name) for name in _ARRAYS):
        if getattr(item, "tile", None):  # a picture that is not decoded yet, unlike its copy
            return item
        copied = item.copy()
        for name in _OF_PICTURES if hasattr(item, "tile") else ():
            if hasattr(item, name):
                setattr(copied, name, getattr(item, name))
        return copied
    elif isinstance(item, Batch | list | Mapping) or (
        dataclasses.is_dataclass(item) and not isinstance(item, type)
    ):
        copied = copy.copy(item)
    else:
        return item
    if isinstance(item, list) and not set(map(type, item)) <= _UNCHANGEABLE:
        copied[:] = map(copy_item, item)
    elif isinstance(item, dict):
        for name, value in item.items():
            copied[name] = copy_item(value)
    names = [field.name for field in dataclasses.fields(item)] if dataclasses.is_dataclass(item) else []
    for name in {*names, *getattr(item, "__dict__", ())}:
        object.__setattr__(copied, name, copy_item(getattr(item, name)))  # of frozen dataclasses, too
    return copied


def digest(value: Any) -> str:
    """Return what tells apart values that several processes should share.

    Containers, dataclasses, tensors, arrays, numbers, texts and bytes count; of other objects, their types.
    """
    found = hashlib.blake2b(digest_size=8)
    for part in _bytes_of(value):
        found.update(part)
    return found.hexdigest()


def _bytes_of(value: Any) -> Iterator[bytes]:
    if isinstance(value, Tensor):
        value = value.detach().cpu()
        yield f"{value.dtype} {tuple(value.shape)}".encode()
        yield value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    elif isinstance(value, np.ndarray | np.generic) and value.dtype != object:
        yield f"{value.dtype} {value.shape}".encode()
        yield value.tobytes()
    elif isinstance(value, bytes | bytearray):
        yield bytes(value)
    elif value is None or isinstance(value, str | int | float | complex):
        yield repr(value).encode()
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield repr(name).encode()
            yield from _bytes_of(item)
    elif isinstance(value, Batch):
        yield from _bytes_of(vars(value))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield from _bytes_of({f.name: getattr(value, f.name) for f in dataclasses.fields(value)})
    elif isinstance(value, tuple | list):
        yield str(len(value)).encode()
        for item in value:
            yield from _bytes_of(item)
    else:
        yield type(value).__qualname__.encode()


def pin(value: Any) -> Any:
    """Copy a batch, or any container of tensors, to pinned memory.

    From there, `move` copies to CUDA asynchronously. Without CUDA, the batch is returned as it is.
    """
    if not torch.cuda.is_available():
        return value
    return _apply(value, lambda part: part if part.is_cuda else part.pin_memory(), lambda part: part)


class Mover:
    """Moves batches to a device, as `move`; to CUDA next to the computations that are still running there.

    Copies from pinned memory (`Loader` with ``pin=True``) run on a stream of their own, while the GPU
    computes the step before; the next step waits for them.

    Args:
        device: where the batches go.

    >>> Mover(torch.device("cpu"))(Batch(x=torch.zeros(2)))
    Batch(x: (2,))
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            self.device = self._stream.device  # with its index, as tensors have it

    def __call__(self, value: Any) -> Any:
        """Return the batch on the device; what is there already takes no stream."""
        if self._stream is None:
            return move(value, self.device)
        copies: list[Tensor] = []

        def copy(part: Tensor) -> Tensor:
            if part.device == self.device:
                return part
            with torch.cuda.stream(self._stream):
                copies.append(part.to(self.device, non_blocking=True))
            return copies[-1]

        # Objects with tensors inside are copied on the computing stream, as theirs cannot be recorded.
        moved = _apply(value, copy, lambda part: part.to(self.device))
        if copies:
            current = torch.cuda.current_stream(self.device)
            current.wait_stream(self._stream)
            # Their memory came from the copying stream, and is not free before the computing one has read it.
            for part in copies:
                part.record_stream(current)
        return moved


def _apply(value: Any, function: Callable[[Tensor], Tensor], other: Callable[[Any], Any]) -> Any:
    """Rebuild containers with `function` of their tensors, and `other` of what has a method `to` as those."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, Batch):
        return Batch(**{name: _apply(getattr(value, name), function, other) for name in value})
    if isinstance(value, Mapping):
        return {name: _apply(item, function, other) for name, item in value.items()}
    if isinstance(value, tuple | list):
        items = [_apply(item, function, other) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {
            f.name: _apply(getattr(value, f.name), function, other)
            for f in dataclasses.fields(value)
            if f.init
        }
        return dataclasses.replace(value, **fields)
    if callable(getattr(value, "to", None)) and not isinstance(value, torch.nn.Module):
        return other(value)
    return value
