"""Which columns of a table become which entries of an item: selection, types, class names, missing values."""

from __future__ import annotations

import datetime
import fnmatch
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from burnt.data.batch import Batch, copy_item
from burnt.data.files.dates import DATE_PARTS, Date
from burnt.data.files.image_files import ImageFiles
from burnt.errors import DataError, did_you_mean, quantity


@dataclass(frozen=True)
class Vector:
    """Lists of numbers, of any depth, which become tensors of a dtype."""

    dtype: np.dtype[Any]


Kind = np.dtype[Any] | type | Vector | Date | ImageFiles
"""What the cells of a column are: a NumPy dtype; str; vectors; dates; images; or object, for any value."""

UNKNOWN = "<unknown>"
"""The category of missing values, and of those that are none of the others; the last one."""

_MAX_OTHERS = 1000  # values of which `Categories` remembers that they became `UNKNOWN`
_FEW_ROWS = 50  # in fewer, each may have a class of its own

Columns = Sequence[str] | Mapping[str, str | Sequence[str]]
Types = Mapping[str, Any]  # int, list[int], torch.int32 ...
GivenCategories = Sequence[str] | Mapping[str, Sequence[Any]]

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
SCALARS |= dict.fromkeys((datetime.date, datetime.datetime), Date())
KINDS: dict[Any, Kind] = {**SCALARS, list[float]: Vector(FLOAT), list[int]: Vector(INT), object: OBJECT}


def name_of(kind: Kind) -> str:
    """Return what messages call a kind."""
    if isinstance(kind, np.dtype):
        return {"f": "a number", "b": "true or false"}.get(kind.kind, "an integer")
    if isinstance(kind, Date | ImageFiles):
        return str(kind)
    if isinstance(kind, Vector):
        return "a list of integers" if kind.dtype.kind == "i" else "a list of numbers"
    return "text" if kind is TEXT else "a value"


def bad_cell(
    place: str, column: str | None, expected: object, found: object, hint: str | None = None
) -> DataError:
    """Return the error for a cell or row that cannot be read; `place` is ``"houses.csv, line 7"``."""
    where = place if column is None else f"{place}, column {column!r}"
    return DataError("a row cannot be read", where=where, expected=expected, found=shorten(found), hint=hint)


def bad_date(place: str, column: str, kind: Date, found: object) -> DataError:
    """Return the error for a value that is not a date."""
    hint = f"types={{{column.removesuffix(f'.{kind.part}')!r}: '%d.%m.%Y'}} is another format, as of strptime"
    return bad_cell(place, column, str(kind), found, hint)


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

    Those that `found` finds are sorted; others are in the user's order. With `has_unknown`, the last one is
    `UNKNOWN`, which is every value that is none of the others.
    """

    def __init__(self, values: Iterable[Any], has_unknown: bool = False) -> None:
        self.values = list(values)
        if has_unknown and UNKNOWN not in self.values:
            self.values.append(UNKNOWN)
        self.index = {value: number for number, value in enumerate(self.values)}
        for number, name in enumerate(self.names):  # of a CSV file, where all values are text
            self.index.setdefault(name, number)
        self.unknown = self.index[UNKNOWN] if has_unknown else None
        self.others: dict[Any, None] = {}  # values that became `unknown`, in their order; of many the first

    @classmethod
    def found(cls, values: Iterable[Any], has_unknown: bool = False) -> Categories:
        """Return the categories of values found in a column: integers by size, others by their text."""
        distinct = set(values) - ({UNKNOWN} if has_unknown else set())

        # Values that are equal as numbers or as text need a further key: the order of a set of texts is
        # another one in each process.
        def by_text(value: Any) -> Any:
            return str(value), type(value).__name__

        try:
            values = sorted(distinct, key=lambda value: (int(value), *by_text(value)))
        except (TypeError, ValueError, OverflowError):
            values = sorted(distinct, key=by_text)
        return cls(values, has_unknown)

    @property
    def names(self) -> list[str]:
        """The values as text."""
        return [str(value) for value in self.values]

    def find(self, value: Any) -> int | None:
        """Return the number of a value, or of its text; None if it is none of the categories."""
        number = self.index.get(value, self.index.get(str(value)))
        if number is None and self.unknown is not None and len(self.others) < _MAX_OTHERS:
            self.others[value] = None
        return self.unknown if number is None else number

    def number(self, place: Callable[[], str], column: str, value: Any) -> int:
        """Return the number of a value."""
        try:
            number = self.find(value)
        except TypeError:  # a list
            number = None
        if number is None:
            raise self.not_found(place(), column, value)
        return number

    def not_found(self, place: str, column: str, value: object) -> DataError:
        """Return the error for a value that is none of the categories."""
        return bad_cell(
            place,
            column,
            f"one of {shorten(', '.join(self.names))}",
            value,
            did_you_mean(
                value,
                self.names,
                "categories={column: names} names them all, unknown=True makes one of all others",
            ),
        )


class CategoryNames(dict[str, list[Any]]):
    """The names of the values of each column of categories; `label` is the column of the classes.

    Data without labels takes them too: ``categories=train.categories``.
    """

    label: str | None = None


@dataclass(frozen=True)
class Options:
    """The options that the datasets of tables have in common, as the user gave them."""

    columns: Columns | None
    types: Types | None
    label: str | None
    categories: GivenCategories
    missing: str | Mapping[str, Any]
    unknown: bool | Sequence[str] = False


@dataclass
class Schema:
    """Which columns of a table are read, and what they become.

    `fields` maps each entry of an item to its column, or to the columns that are stacked to a vector.
    `kinds` are the declared types, `categories` the columns of class names with their values (None: those
    that are found), `unknown` those of them with the category `UNKNOWN`. `parts` are columns such as
    ``"joined.month"``, with the column of dates that each is computed from.
    """

    fields: dict[str, str | list[str]]
    kinds: dict[str, Kind]
    categories: dict[str, Categories | None]
    label: str | None
    missing: str | Mapping[str, Any]
    unknown: Collection[str]
    parts: Mapping[str, str]

    @classmethod
    def create(
        cls,
        options: Options,
        names: Collection[str],
        where: str,
        policies: Sequence[str] = ("error", "nan"),
        kinds: Mapping[Any, Kind] = KINDS,
    ) -> Schema:
        """Check the options of a dataset against the names of its columns."""
        names = dict.fromkeys(names)
        declared = {
            column: _declared_kind(column, type_, kinds) for column, type_ in (options.types or {}).items()
        }
        declared |= {
            column: kind.below(os.path.dirname(where), column)
            for column, kind in declared.items()
            if isinstance(kind, ImageFiles)
        }
        dates = [column for column, kind in declared.items() if isinstance(kind, Date)]
        parts = {f"{column}.{part}": column for column in dates for part in DATE_PARTS}
        parts = {name: column for name, column in parts.items() if name not in names}
        fields = _fields(names, where, options.columns, parts)
        for entry, group in fields.items():
            for column in () if isinstance(group, str) else group:
                if isinstance(kind := declared.get(column), ImageFiles):
                    raise not_numeric(entry, column, f"column {column!r}", str(kind))
        label = options.label
        if not isinstance(label, str | None):
            raise DataError("label= must be the name of one column", where=where, found=repr(label))
        if label is not None and label not in _used(fields):
            fields[label] = label
        categories = [options.categories] if isinstance(options.categories, str) else options.categories
        unknown = _unknown_columns(options.unknown, categories, label)
        known: dict[str, Categories | None]
        if isinstance(categories, Mapping):
            # The classes of `train.categories` are of no use where there are no labels.
            absent = {getattr(categories, "label", None)} - names.keys()
            categories = {column: values for column, values in categories.items() if column not in absent}
            known = {
                column: Categories(values, column in unknown or (column != label and UNKNOWN in values))
                for column, values in categories.items()
            }
            for column, given in categories.items():
                if len(set(given)) != len(given):
                    raise DataError(
                        "categories= names a value twice", where=f"column {column!r}", found=given
                    )
        else:
            known = dict.fromkeys(categories)
        if label is not None:
            known.setdefault(label, None)
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
        unknown |= {column for column, given in known.items() if given and given.unknown is not None}
        declared |= {
            name: replace(kind, part=name.removeprefix(f"{column}."))
            for name, column in parts.items()
            if name in used and isinstance(kind := declared[column], Date)
        }
        return cls(fields, declared, known, label, missing, unknown, parts)

    @property
    def used(self) -> list[str]:
        """The columns of the items, each once."""
        return _used(self.fields)

    @property
    def sources(self) -> list[str]:
        """The columns that are read from the file, each once."""
        return list(dict.fromkeys(map(self.source, self.used)))

    def source(self, column: str) -> str:
        """Return the column of the file that a column is read from."""
        return self.parts.get(column, column)

    def check_columns(self, names: Collection[str], where: str, first: str) -> None:
        """Raise a DataError if a file lacks a column that is read of the first one."""
        known = set(names)
        absent = [name for name in self.sources if name not in known]
        if absent:
            raise DataError(
                "the files have different columns",
                where=where,
                expected=f"{', '.join(self.sources)}, as in {first}",
                found=f"no column {absent[0]!r} in {', '.join(names)}",
            )

    def fill(self, place: Callable[[], str], column: str, kind: Kind | None) -> Any:
        """Return the value for a missing cell, of which `place` is called only for the message."""
        if not isinstance(self.missing, str) and self.source(column) in self.missing:
            value = self.missing[self.source(column)]
            if isinstance(kind, Date) and kind.number(value) is None:
                raise bad_cell(place(), column, f"{kind} in missing=", value)
            if isinstance(kind, np.dtype) and not isinstance(
                value, bool | int | float | np.number | np.bool_
            ):
                raise bad_cell(place(), column, f"{name_of(kind)} in missing=", value)
            if (kind is TEXT or isinstance(kind, ImageFiles)) and not isinstance(value, str):
                raise bad_cell(place(), column, f"{name_of(kind)} in missing=", value)
            return copy_item(value)
        if column in self.unknown:
            return UNKNOWN
        kind = FLOAT if isinstance(kind, Date) else kind
        type_ = kind.kind if isinstance(kind, np.dtype) and column not in self.categories else ""
        if self.missing == "nan" and type_ == "f":
            return np.nan
        expected = "a category" if column in self.categories else "a value" if kind is None else name_of(kind)
        hint = f"missing={{{self.source(column)!r}: value}} fills in a value"
        if column in self.categories and column != self.label:
            hint += ", unknown=True makes a category of them"
        if type_ in ("f", "i") and self.missing == "error":
            hint += ", missing='nan' NaN"
        raise bad_cell(place(), column, expected, "nothing", hint)

    def find_categories(
        self, distinct: Callable[[str], Iterable[Any]], num_rows: int, where: str
    ) -> dict[str, Categories]:
        """Return the categories of columns: the given ones, or those in ``distinct(column)``."""
        known = {}
        for column, given in self.categories.items():
            known[column] = given or Categories.found(distinct(column), column in self.unknown)
            if given is None and column == self.label:
                _check_classes(column, known[column].names, num_rows, where)
        return known

    def class_names(self, categories: Mapping[str, Categories]) -> list[str] | None:
        """Return the names of the classes of `label`."""
        return None if self.label is None else categories[self.label].names

    def category_names(self, categories: Mapping[str, Categories]) -> CategoryNames:
        """Return the names of the values of each column of categories."""
        names = CategoryNames({column: known.values for column, known in categories.items()})
        names.label = self.label
        return names


def _declared_kind(column: str, type_: Any, kinds: Mapping[Any, Kind]) -> Kind:
    if isinstance(type_, str) and "%" in type_:
        return Date(type_)
    if isinstance(type_, ImageFiles):
        return type_
    if type_ not in kinds:
        raise DataError(
            "types= has a type that columns cannot have",
            where=f"types[{column!r}]",
            expected=f"{', '.join(map(_type_name, kinds))}, ImageFiles(), or the format of dates, '%d.%m.%Y'",
            found=_type_name(type_),
        )
    return kinds[type_]


def _unknown_columns(
    wanted: bool | Sequence[str], categories: GivenCategories, label: str | None
) -> set[str]:
    """Return the columns of categories that `unknown=` is about; never the label's."""
    if isinstance(wanted, bool):
        return set(categories) - {label} if wanted else set()
    columns = {wanted} if isinstance(wanted, str) else set(wanted)
    for column in columns:
        if column not in categories or column == label:
            raise DataError(
                "unknown= names a column without categories",
                expected=f"true, or some of {', '.join(set(categories) - {label}) or 'categories='}",
                found=repr(column),
                hint="a row of an unknown class has no label" if column == label else None,
            )
    return columns


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


@dataclass(frozen=True)
class Encoding:
    """How the columns of a table become the entries of items: for `burnt.data.description`.

    `kinds` has the kinds of all columns, `known` the categories, `ranges` the least and greatest finite value
    of columns of numbers, `csv` the options that only a CSV file has.
    """

    schema: Schema
    kinds: Mapping[str, Kind]
    known: Mapping[str, Categories]
    ranges: Mapping[str, tuple[float, float]]
    csv: Mapping[str, Any]


def find_range(values: NDArray[Any]) -> tuple[float, float] | None:
    """Return the least and greatest finite number; None if there is none, or no numbers."""
    values = values[np.isfinite(values)] if values.dtype.kind == "f" else values
    if values.dtype.kind not in "fiu" or not values.size:
        return None
    return float(str(values.min())), float(str(values.max()))  # 0.07, where float32 has 0.0700000003


class RowItems:
    """A dataset whose items are rows, with names of classes if one of its columns is the label."""

    _classes: list[str] | None
    _has_take = False

    def __len__(self) -> int:
        raise NotImplementedError

    def encoding(self) -> Encoding | None:
        """Return how columns become entries; None if that cannot be described, as of Hugging Face's."""
        return None

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


def _fields(
    names: Collection[str], where: str, columns: Columns | None, parts: Collection[str]
) -> dict[str, str | list[str]]:
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
        check_name(column, [*names, *parts] if column in parts else names, where, "columns")
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
        only = next(iter(names)) if len(names) == 1 else ""
        other = next((sign for sign in ";\t|" if sign in only), None)
        raise DataError(
            f"{option}= names a column that does not exist",
            where=where,
            expected=f"one of {shorten(', '.join(names))}",
            found=repr(column),
            hint=f"delimiter={other!r}?" if other else did_you_mean(column, names),
        )
