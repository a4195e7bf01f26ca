"""Datasets of Hugging Face's `datasets`, with batches of tensors. The package itself is never imported."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from burnt._hints import explain_arguments
from burnt.data.batch import Batch
from burnt.data.files.schema import RowItems, check_entry, check_name, unfit_cell
from burnt.data.fitting import misfits
from burnt.errors import DataError

_WIDE = re.compile(r"\b(u?int32|u?int64|float64)\b")  # features that float32 does not hold
_SAMPLED = 1000


class HuggingFaceDataset(RowItems):
    """A `datasets.Dataset`, whose rows become dicts of tensors and texts.

    It reads in the dataset's format of torch (integers become int64, floats float32), unless it has another
    format or transform of its own. `take` reads a whole batch at once; there is none if a column holds
    lists, images or the like, whose items may differ in shape, or if the dataset has a transform. `classes`
    are the names of its `ClassLabel`.

    Args:
        dataset: one split; it is read from its Arrow file when rows are used.
        columns: the columns to keep; or a mapping from each entry of an item to its column.
        label: the column of type `ClassLabel` that `classes` are of, if there are several.

    Raises:
        DataError: it is not a `datasets.Dataset`, or has no such column.

    >>> import datasets
    >>> posts = datasets.Dataset.from_dict({"text": ["hello", "bye", "no"], "stars": [3, 5, 1]})
    >>> data = HuggingFaceDataset(posts, columns={"text": "text", "labels": "stars"})
    >>> data[1]
    {'text': 'bye', 'labels': tensor(5)}
    """

    @explain_arguments()
    def __init__(
        self,
        dataset: Any,
        *,
        columns: Sequence[str] | Mapping[str, str] | None = None,
        label: str | None = None,
    ) -> None:
        if not hasattr(dataset, "select_columns") or not hasattr(dataset, "features"):
            splits = list(dataset) if isinstance(dataset, Mapping) else []
            raise DataError(
                "this is not a dataset of Hugging Face",
                expected="a datasets.Dataset",
                found=type(dataset).__name__,
                hint=f"take one of its splits: dataset[{splits[0]!r}]" if splits else None,
            )
        if not hasattr(dataset, "__len__"):
            raise DataError(
                "a stream has no items by index",
                expected="a datasets.Dataset",
                found=type(dataset).__name__,
                hint="load it without streaming=True",
            )
        if isinstance(columns, Mapping):
            self._fields = dict(columns)
        else:
            self._fields = {name: name for name in columns or dataset.column_names}
        for name in [*self._fields.values(), *([label] if label else [])]:
            check_name(name, dataset.column_names, "the dataset", "label" if name == label else "columns")
        features = dataset.features or {}
        names = {name: getattr(features.get(name), "names", None) for name in self._fields.values()}
        labels = [name for name in names if names[name]] if label is None else [label]
        self._classes: list[str] | None = names[labels[0]] if len(labels) == 1 else None
        if label is not None and not self._classes:
            raise DataError(
                "the label has no class names",
                where=f"column {label!r}",
                expected="a ClassLabel",
                found=features.get(label),
                hint=f"dataset.class_encode_column({label!r}) makes it one",
            )
        scalar = {"Value", "ClassLabel"}
        is_custom = dataset.format["type"] == "custom"
        # In another format, such as numpy's, whole columns are not tensors.
        self._has_take = dataset.format["type"] in (None, "torch") and all(
            type(features.get(name)).__name__ in scalar for name in self._fields.values()
        )
        if not is_custom:
            dataset = dataset.select_columns(list(dict.fromkeys(self._fields.values())))
        self.dataset = dataset.with_format("torch") if dataset.format["type"] is None else dataset
        self._wide = {} if is_custom else {n: f for n, f in features.items() if _WIDE.search(repr(f))}
        self._stored: dict[str, tuple[Any, bool]] = {}  # by column: its cells in Arrow, whether of fractions

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self._entries(self.dataset[index], [index])

    @property
    def __getitems__(self) -> Callable[[list[int]], list[dict[str, Any]]]:
        """``__getitems__(indices)`` returns a list of items, read at once. There is none next to `take`."""
        if self._has_take:
            raise AttributeError("take returns whole batches")
        return self._getitems

    def _getitems(self, indices: list[int]) -> list[dict[str, Any]]:
        rows = zip(self.dataset.__getitems__(indices), indices, strict=True)
        return [self._entries(row, [index]) for row, index in rows]

    def _entries(self, row: Mapping[str, Any], indices: Sequence[int]) -> dict[str, Any]:
        for name in set(self._fields.values()) & self._wide.keys():
            self._check(name, row[name], indices)
        return {entry: row[name] for entry, name in self._fields.items()}

    def _check(self, name: str, value: Any, indices: Sequence[int]) -> None:
        """Raise a DataError if `datasets` has changed a number.

        float64 becomes float32, as integers next to nulls do, and uint64 becomes int64.
        """
        parts = value if isinstance(value, list) else [value]
        parts = [np.asarray(part) for part in parts if isinstance(part, Tensor | np.ndarray | np.number)]
        has_unsigned = "uint64" in repr(self._wide[name])
        dtype = next((part.dtype for part in parts if _may_be_rounded(part, has_unsigned)), None)
        if dtype is None:
            return
        if name not in self._stored:
            cells = self.dataset.select_columns([name]).with_format("arrow")
            head = _numbers(cells[:_SAMPLED][name])
            is_measured = head.dtype.kind == "f" and bool((np.floor(head) != head).any())
            self._stored[name] = cells, is_measured
        cells, is_measured = self._stored[name]
        if not misfits(_numbers(cells[list(indices)][name]), dtype, is_measured=is_measured).any():
            return
        for index in indices:
            numbers = _numbers(cells[[index]][name])
            wrong = misfits(numbers, dtype, is_measured=is_measured)
            if wrong.any():
                hint = "dataset.with_format('torch', dtype=torch.float64) has a larger range"
                raise unfit_cell(self.place(index), name, dtype, numbers[wrong][0].item(), hint)

    def column(self, name: str) -> Any:
        """Return a whole column: a tensor ``[n, ...]``, or a list of other cells.

        Raises:
            DataError: there is no such column.
        """
        check_entry(name, self._fields)
        values = self.dataset[self._fields[name]][:]
        if self._fields[name] in self._wide:
            self._check(self._fields[name], values, range(len(self)))
        return values

    def _take(self, indices: Tensor) -> Batch:
        rows = indices.tolist()
        return Batch(**self._entries(self.dataset[rows], rows))

    def place(self, index: int) -> str:
        """Return the place of an item, counted from 0, ``"row 7 of the dataset"``."""
        return f"row {index} of the dataset"


def _may_be_rounded(values: NDArray[Any], has_unsigned: bool) -> bool:
    """Whether others may have become these numbers: large floats, or negative integers that were uint64."""
    if values.dtype.kind != "f":
        return has_unsigned and values.dtype.kind == "i" and bool((values < 0).any())
    return bool((np.abs(values) >= 2.0 ** (np.finfo(values.dtype).nmant + 1)).any())


def _numbers(cells: Any) -> NDArray[Any]:
    """Return the numbers in a column of Arrow, of any depth."""
    array = cells.combine_chunks()
    while hasattr(array, "flatten") and array.type.num_fields:
        array = array.flatten()
    return np.asarray(array.drop_null().to_numpy(zero_copy_only=False))
