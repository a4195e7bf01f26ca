"""Which columns of a table become which entries of an item: selection, types, class names, missing values."""

from __future__ import annotations

import fnmatch
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from burnt.data.batch import Batch, copy_item
from burnt.errors import DataError, did_you_mean, quantity


@dataclass(frozen=True)
class Vector:
    """Lists of numbers, of any depth, which become tensors of a dtype."""

    dtype: np.dtype[Any]


Kind = np.dtype[Any] | type | Vector
"""What the cells of a column are: a NumPy dtype; str; vectors; or object, for values left as they are."""

_FEW_ROWS = 50  # in fewer, each may have a class of its own

Columns = Sequence[str] | Mapping[str, str | Sequence[str]]
Types = Mapping[str, Any]  # int, list[int], torch.int32 ...
CategoryNames = Sequence[str] | Mapping[str, Sequence[Any]]

FLOAT = np.dtype(np.float32)
INT = np.dtype(np.int64)
BOOL = np.dtype(np.bool_)
TEXT: Kind = str
OBJECT: Kind = object

SCALARS: dict[Any, Kind] = {float: FLOAT, int: INT, bool: BOOL, str: TEXT}
"""Types that users may declare -> what they are here."""
SCALARS |= {
    dtype: torch.empty(0, dtype=dtype).numpy().dtype
    for dtype in (
        torch.float64, torch.float32, torch.float16, torch.int64, torch.int32, torch.int16, torch.int8,
        torch.uint8, torch.bool,
    )
}  # fmt: skip
_KINDS: dict[Any, Kind] = {**SCALARS, list[float]: Vector(FLOAT), list[int]: Vector(INT), object: OBJECT}


def name_of(kind: Kind) -> str:
    """Return what messages call a kind."""
    if isinstance(kind, np.dtype):
        return {"f": "a number", "b": "true or false"}.get(kind.kind, "an integer")
    if isinstance(kind, Vector):
        return "a list of integers" if kind.dtype.kind == "i" else "a list of numbers"
    return "text" if kind is TEXT else "a value"


def bad_cell(
    place: str, column: str | None, expected: object, found: object, hint: str | None = None
) -> DataError:
    """Return the error for a cell or row that cannot be read; `place` is ``"houses.csv, line 7"``."""
    where = place if column is None else f"{place}, column {column!r}"
    return DataError("a row cannot be read", where=where, expected=expected, found=shorten(found), hint=hint)


def unfit_cell(
    place: str, column: str | None, dtype: np.dtype[Any], found: object, hint: str | None = None
) -> DataError:
    """Return the error for a number that a column's dtype does not hold."""
    if hint is None and dtype.kind == "f":
        hint = f"types={{{column!r}: int}} holds integers of 64 bits"
        if dtype.itemsize < 8:
            hint = f"types={{{column!r}: torch.float64}} has a larger range, and int holds 64 bits"
    return bad_cell(place, column, f"{name_of(dtype)} that fits {dtype}", found, hint)


def repeated(names: Sequence[Any]) -> Any:
    """Return the first name that occurs twice, or None."""
    counts = Counter(names)
    return next((name for name in names if counts[name] > 1), None)


def shorten(value: object) -> str:
    """Return a value as a message shows it."""
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


class Categories:
    """The distinct values of a column in their order; the number of a value is what a model sees.

    Those that `found` finds are sorted; others are in the user's order.
    """

    def __init__(self, values: Iterable[Any]) -> None:
        self.values = list(values)
        self.index = {value: number for number, value in enumerate(self.values)}

    @classmethod
    def found(cls, values: Iterable[Any]) -> Categories:
        """Return the categories of values found in a column: integers by size, others by their text."""
        distinct = set(values)

        # Values that are equal as numbers or as text need a further key: the order of a set of texts is
        # another one in each process.
        def by_text(value: Any) -> Any:
            return str(value), type(value).__name__

        try:
            return cls(sorted(distinct, key=lambda value: (int(value), *by_text(value))))
        except (TypeError, ValueError, OverflowError):
            return cls(sorted(distinct, key=by_text))

    @property
    def names(self) -> list[str]:
        """The values as text."""
        return [str(value) for value in self.values]

    def number(self, place: Callable[[], str], column: str, value: Any) -> int:
        """Return the number of a value."""
        try:
            return self.index[value]
        except (KeyError, TypeError):
            raise self.unknown(place(), column, value) from None

    def unknown(self, place: str, column: str, value: object) -> DataError:
        """Return the error for a value that is none of the categories."""
        return bad_cell(
            place,
            column,
            f"one of {shorten(', '.join(self.names))}",
            value,
            did_you_mean(value, self.names, "categories={column: names} names them all"),
        )


@dataclass(frozen=True)
class Options:
    """The options that the datasets of tables have in common, as the user gave them."""

    columns: Columns | None
    types: Types | None
    label: str | None
    categories: CategoryNames
    missing: str | Mapping[str, Any]


@dataclass
class Schema:
    """Which columns of a table are read, and what they become.

    `fields` maps each entry of an item to its column, or to the columns that are stacked to a vector.
    `kinds` are the declared types, `categories` the columns of class names with their values (None: those
    that are found).
    """

    fields: dict[str, str | list[str]]
    kinds: dict[str, Kind]
    categories: dict[str, Categories | None]
    label: str | None
    missing: str | Mapping[str, Any]

    @classmethod
    def create(
        cls,
        options: Options,
        names: Collection[str],
        where: str,
        policies: Sequence[str] = ("error", "nan"),
        kinds: Mapping[Any, Kind] = _KINDS,
    ) -> Schema:
        """Check the options of a dataset against the names of its columns."""
        names = dict.fromkeys(names)
        fields = _fields(names, where, options.columns)
        label = options.label
        if not isinstance(label, str | None):
            raise DataError("label= must be the name of one column", where=where, found=repr(label))
        if label is not None and label not in _used(fields):
            fields[label] = label
        categories = [options.categories] if isinstance(options.categories, str) else options.categories
        known: dict[str, Categories | None]
        if isinstance(categories, Mapping):
            known = {column: Categories(values) for column, values in categories.items()}
            for column, given in categories.items():
                if len(set(given)) != len(given):
                    raise DataError(
                        "categories= names a value twice", where=f"column {column!r}", found=given
                    )
        else:
            known = dict.fromkeys(categories)
        if label is not None:
            known.setdefault(label, None)
        declared = options.types or {}
        for column, type_ in declared.items():
            if type_ not in kinds:
                raise DataError(
                    "types= has a type that columns cannot have",
                    where=f"types[{column!r}]",
                    expected=f"{', '.join(_type_name(known_type) for known_type in kinds)}",
                    found=_type_name(type_),
                )
        missing = options.missing
        if isinstance(missing, str) and missing not in policies:
            raise DataError(
                "missing= has an unknown value",
                expected=f"{', '.join(map(repr, policies))} or a mapping from columns to values",
                found=repr(missing),
                hint="burnt.data.filter drops items" if missing == "drop" else None,
            )
        fills = () if isinstance(missing, str) else missing
        labels = () if label is None else (label,)
        options_by_name = (("label", labels), ("types", declared), ("categories", known), ("missing", fills))
        for option, mentioned in options_by_name:
            for column in mentioned:
                check_name(column, names, where, option)
        if both := declared.keys() & known.keys():
            raise DataError("a column has both a type and categories", where=f"column {min(both)!r}")
        # `categories=train.categories` may name more columns than this dataset selects.
        used = set(_used(fields))
        known = {column: values for column, values in known.items() if column in used}
        return cls(fields, {column: kinds[declared[column]] for column in declared}, known, label, missing)

    @property
    def used(self) -> list[str]:
        """The columns that are read, each once."""
        return _used(self.fields)

    def check_columns(self, names: Collection[str], where: str, first: str) -> None:
        """Raise a DataError if a file lacks a column that is read of the first one."""
        known = set(names)
        absent = [name for name in self.used if name not in known]
        if absent:
            raise DataError(
                "the files have different columns",
                where=where,
                expected=f"{', '.join(self.used)}, as in {first}",
                found=f"no column {absent[0]!r} in {', '.join(names)}",
            )

    def fill(self, place: Callable[[], str], column: str, kind: Kind | None) -> Any:
        """Return the value for a missing cell, of which `place` is called only for the message."""
        if not isinstance(self.missing, str) and column in self.missing:
            value = self.missing[column]
            if isinstance(kind, np.dtype) and not isinstance(
                value, bool | int | float | np.number | np.bool_
            ):
                raise bad_cell(place(), column, f"{name_of(kind)} in missing=", value)
            if kind is TEXT and not isinstance(value, str):
                raise bad_cell(place(), column, "text in missing=", value)
            return copy_item(value)
        type_ = kind.kind if isinstance(kind, np.dtype) and column not in self.categories else ""
        if self.missing == "nan" and type_ == "f":
            return np.nan
        expected = "a category" if column in self.categories else "a value" if kind is None else name_of(kind)
        hint = f"missing={{{column!r}: value}} fills in a value"
        if type_ in ("f", "i") and self.missing == "error":
            hint += ", missing='nan' NaN"
        raise bad_cell(place(), column, expected, "nothing", hint)

    def find_categories(
        self, distinct: Callable[[str], Iterable[Any]], num_rows: int, where: str
    ) -> dict[str, Categories]:
        """Return the categories of columns: the given ones, or those in ``distinct(column)``."""
        known = {}
        for column, given in self.categories.items():
            known[column] = Categories.found(distinct(column)) if given is None else given
            if given is None and column == self.label:
                _check_classes(column, known[column].names, num_rows, where)
        return known

    def class_names(self, categories: Mapping[str, Categories]) -> list[str] | None:
        """Return the names of the classes of `label`."""
        return None if self.label is None else categories[self.label].names


def _check_classes(column: str, names: list[str], num_rows: int, where: str) -> None:
    """Raise a DataError if values look like the target of a regression."""
    are_numbers = all(map(is_number, names))
    are_floats = are_numbers and not all(name.strip().lstrip("+-").isdigit() for name in names)
    if are_floats or (num_rows >= _FEW_ROWS and len(names) > num_rows / 2):
        raise DataError(
            "label= names a column whose values are not classes",
            where=f"{where}, column {column!r}",
            expected="a class for each row: text or integers, fewer than half as many classes as rows",
            found=(
                "numbers with a decimal point: "
                if are_floats
                else f"{len(names):,} classes in {num_rows:,} rows: "
            )
            + shorten(", ".join(names[:10])),
            hint=f"leave out label= to predict numbers; categories={{{column!r}: [...]}} names the classes",
        )


def is_number(value: Any) -> bool:
    """Whether a value is a number, or the text of one."""
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


class RowItems:
    """A dataset whose items are rows, with names of classes if one of its columns is the label."""

    _classes: list[str] | None
    _has_take = False

    def __len__(self) -> int:
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"{type(self).__name__}({quantity(len(self), 'row')})"

    @property
    def take(self) -> Callable[[Tensor], Batch]:
        """``take(indices)`` returns the items at indices, ``[n]`` of int64, as one batch.

        There is none if cells differ in shape: a loader's `batcher` then gets the items, to pad them.
        """
        if not self._has_take:
            raise AttributeError("the cells of a column may differ in shape")
        return self._take

    def _take(self, indices: Tensor) -> Batch:
        raise NotImplementedError

    @property
    def classes(self) -> list[str]:
        """The names of the classes by their number, if there is a column of classes."""
        if self._classes is None:
            raise AttributeError("there are no classes: label= names their column")
        return self._classes


def _fields(names: Collection[str], where: str, columns: Columns | None) -> dict[str, str | list[str]]:
    if columns is None:
        return {name: name for name in names}
    if isinstance(columns, str):
        columns = [columns]
    if not isinstance(columns, Mapping):
        columns = {name: name for name in columns}
    fields: dict[str, str | list[str]] = {}
    for entry, wanted in columns.items():
        if isinstance(wanted, str):
            matching = [] if wanted in names else fnmatch.filter(names, wanted)
            fields[entry] = matching if matching and "*" in wanted else wanted
        else:
            fields[entry] = list(wanted)
    if not fields or [] in fields.values():
        raise DataError("columns= selects no columns", where=where, expected=f"some of {', '.join(names)}")
    for column in _used(fields):
        check_name(column, names, where, "columns")
    return fields


def _used(fields: Mapping[str, str | list[str]]) -> list[str]:
    groups = ([column] if isinstance(column, str) else column for column in fields.values())
    return list(dict.fromkeys(column for group in groups for column in group))


def _type_name(declared: Any) -> str:
    return declared.__name__ if type(declared) is type else str(declared)


def not_numeric(entry: str, column: str, where: str, found: object) -> DataError:
    """Return the error for a vector of which a column holds no numbers."""
    return DataError(
        f"the entry {entry!r} stacks a column that is not numeric",
        where=where,
        expected="numbers, true and false, or categories",
        found=found,
        hint=f"give it an entry of its own, or categories=[{column!r}]",
    )


def check_entry(name: str, entries: Iterable[str]) -> None:
    """Raise a DataError if items have no such entry."""
    if name not in entries:
        raise DataError("there is no such column", expected=f"one of {', '.join(entries)}", found=repr(name))


def check_name(column: str, names: Collection[str], where: str, option: str) -> None:
    """Raise a DataError if an option names a column that does not exist."""
    if column not in names:
        raise DataError(
            f"{option}= names a column that does not exist",
            where=where,
            expected=f"one of {shorten(', '.join(names))}",
            found=repr(column),
            hint=did_you_mean(column, names),
        )
