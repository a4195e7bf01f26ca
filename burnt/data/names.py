"""The names that numbers in a dataset stand for: those of its classes, and of its columns of categories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from burnt.errors import DataError


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
