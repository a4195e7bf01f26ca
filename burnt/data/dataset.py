"""Datasets: items by index, and the names of classes and categories that their numbers stand for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from burnt.data.batch import Batch
from burnt.errors import DataError, quantity

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@runtime_checkable
class Dataset(Protocol[T_co]):
    """The interface that a loader needs: a length, and items by index, as of a list or torch's Dataset."""

    def __len__(self) -> int:
        """Return the number of items."""
        ...

    def __getitem__(self, index: int, /) -> T_co:
        """Return the item at an index below the length."""
        ...


def checked_index(index: int, length: int) -> int:
    """Return an index from 0 on; a negative one counts from the end. IndexError if there is no such item."""
    if not -length <= index < length:
        raise IndexError(f"index {index} of {quantity(length, 'item')}")
    return index + length if index < 0 else index


class InMemoryDataset(Generic[T]):
    """Items held in memory, of any type.

    >>> dataset = InMemoryDataset(range(5))
    >>> len(dataset), dataset[3]
    (5, 3)
    """

    def __init__(self, items: Iterable[T]) -> None:
        self._items = list(items)

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: int) -> T:
        return self._items[index]


class TensorDataset:
    """Named tensors of equal length; `take` indexes each of them once per batch.

    Args:
        columns: tensors of the fields, ``[n, ...]`` each.

    Raises:
        DataError: no columns, a column that is not a tensor, or columns of different lengths.

    >>> import torch
    >>> dataset = TensorDataset(images=torch.zeros(9, 1, 8, 8), labels=torch.arange(9))
    >>> len(dataset), dataset.take(torch.tensor([2, 5])).labels
    (9, tensor([2, 5]))
    """

    def __init__(self, **columns: Tensor) -> None:
        for name, column in columns.items():
            if not isinstance(column, Tensor) or column.dim() == 0:
                raise DataError(
                    "the columns of a TensorDataset must be tensors",
                    where=name,
                    expected="a tensor of at least one axis",
                    found="a scalar" if isinstance(column, Tensor) else type(column).__name__,
                    hint="torch.as_tensor turns arrays and lists into tensors",
                )
        lengths = {name: len(column) for name, column in columns.items()}
        if len(set(lengths.values())) != 1:
            raise DataError(
                "the columns of a TensorDataset differ in length",
                expected="equal lengths",
                found=", ".join(f"{name}: {length}" for name, length in lengths.items()) or "no columns",
            )
        self.columns = columns

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, index: int) -> Batch:
        return Batch(**{name: column[index] for name, column in self.columns.items()})

    def column(self, name: str) -> Tensor:
        """Return a whole column."""
        return self.columns[name]

    def take(self, indices: Tensor) -> Batch:
        """Return the items at indices, ``[n]`` of int64, as one batch on the columns' device."""
        columns = self.columns.items()
        return Batch(**{name: torch.index_select(c, 0, indices.to(c.device)) for name, c in columns})


def class_names(loader: Any) -> list[str] | None:
    """Return the names of the classes of a loader's dataset, which torchvision's have as `classes`; None
    without any.
    """
    names = _attribute(loader, "classes")
    return [str(name) for name in names] if isinstance(names, list | tuple) else None


def category_names(loader: Any) -> dict[str, list[str]]:
    """Return the names of the values of each column of categories of a loader's dataset, in their order."""
    columns = _attribute(loader, "categories")
    if not isinstance(columns, Mapping):
        return {}
    return {str(column): [str(name) for name in names] for column, names in columns.items()}


def check_same_names(
    loader: Any, where: str, classes: Sequence[str] | None, categories: Mapping[str, Sequence[str]]
) -> None:
    """Check that each number in a dataset means what it meant in the training data.

    A dataset that finds the names by itself numbers those that it has: without the rows of a class, the
    numbers of the next classes are others. Fewer or more names at the end are no difference.
    """
    found: dict[str, Sequence[str]] = {**category_names(loader)}
    pairs = [(f"column {column!r}", names, found.get(column)) for column, names in categories.items()]
    for what, expected, names in [("classes", classes, class_names(loader)), *pairs]:
        if expected is None or names is None:
            continue
        for number, (one, other) in enumerate(zip(expected, names, strict=False)):
            if one != other:
                raise DataError(
                    "a number means another name than in the training data",
                    where=f"{where}, {what}",
                    expected=f"{number} is {one!r}, of {_text(expected)}",
                    found=f"{number} is {other!r}, of {_text(names)}",
                    hint="pass on the names: categories=train.categories of tables, classes=train.classes "
                    "of folders",
                )


def _attribute(loader: Any, name: str) -> Any:
    owner = getattr(loader, "batches", loader)  # an IterableLoader holds torch's DataLoader
    # A Subset holds the dataset that has the names.
    while not hasattr(owner, name) and hasattr(owner, "dataset"):
        owner = owner.dataset
    return getattr(owner, name, None)


def _text(names: Sequence[str], most: int = 10) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
