"""TableDescription: what the columns of a table become, as JSON that a run keeps to encode new rows.

The encoding itself is that of the datasets in `files`: this module gives them their options again. A folder
of images is a table with a column of their paths.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import msgspec
import numpy as np
import torch
from torch import Tensor

from burnt.data.batch import collate
from burnt.data.files.csv_files import CsvDataset, CsvFile
from burnt.data.files.dates import Date
from burnt.data.files.folders import find_files
from burnt.data.files.image_files import ImageFiles
from burnt.data.files.image_folder import IMAGE_SUFFIXES, ImageFolder, MultiLabelImageFolder
from burnt.data.files.json_lines import JsonLinesDataset
from burnt.data.files.opening import find_files as find_tables
from burnt.data.files.parquet import ParquetDataset
from burnt.data.files.rows import RowDataset
from burnt.data.files.schema import INT, UNKNOWN, Encoding, Kind, Options, RowItems, Vector, check_name
from burnt.data.transforms import stored
from burnt.data.views import Cached, Concatenation, Mapped, Selection
from burnt.errors import DataError, UnsupportedError
from burnt.inspect.signature import Column

_FOLDERS = ImageFolder, MultiLabelImageFolder
_MOST_CATEGORIES = 10_000  # of a column, in the config.json of a run

HINT = "--data module:loader gives batches as the training had them; in Python, burnt.predict takes them"


class ColumnDescription(msgspec.Struct, frozen=True, omit_defaults=True):
    """A column of the file.

    Args:
        kind: ``"category"``, ``"date"``, ``"text"``, a dtype such as ``"float32"``, ``"int64"`` or
            ``"bool"``, ``"list[float32]"``, ``"list[int64]"``, ``"image"`` for paths, or ``"object"`` for any
            value of JSON.
        categories: the values of a category by their number; the last one is `UNKNOWN` if it stands for
            missing and all other values.
        range: the least and greatest number in the training data, or in the first 1,000 rows or row group of
            files that are read row by row; of dates, days since 1970-01-01; None if there was none.
        format: of a date, as in ``datetime.strptime``; None is ISO 8601.
        image: of images, the arguments of `ImageFiles`.
    """

    kind: str
    categories: list[Any] | None = None
    range: tuple[float, float] | None = None
    format: str | None = None
    image: dict[str, Any] = {}


class TableDescription(msgspec.Struct, frozen=True, omit_defaults=True):
    """How the columns of the training's table become the entries of a batch, without the label.

    Args:
        entries: each entry of a batch, and its column, or the columns that are stacked to ``[n, k]``. Of a
            column of dates there are also parts, ``"joined.month"``.
        columns: the columns of the file by name, in the order of the entries.
        label: the column of classes in the training data, which new data need not have.
        missing: what is done about missing values, as in `CsvDataset`: ``"error"``, ``"nan"``, or the values
            that are filled in.
        csv: options of `CsvDataset` that the training's file needed, such as `delimiter`.
        transforms: what is done to the images of an item, as `burnt.data.transforms.stored` describes it.

    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp(), "flats.csv")
    >>> _ = path.write_text("rooms,city,kind\\n2,Bonn,flat\\n5,Kiel,house\\n")
    >>> flats = CsvDataset(path, label="kind", categories=["city"], unknown=True, missing="nan")
    >>> table = TableDescription.of(flats)
    >>> table.columns["rooms"].range, table.columns["city"].categories
    ((2.0, 5.0), ['Bonn', 'Kiel', '<unknown>'])
    >>> table.encode([{"rooms": 3, "city": "Rome"}, {"rooms": 4, "city": None}])
    {'rooms': array([3, 4]), 'city': array([2, 2])}
    """

    entries: dict[str, str | list[str]]
    columns: dict[str, ColumnDescription]
    label: str | None = None
    missing: str | dict[str, Any] = "error"
    csv: dict[str, Any] = {}
    transforms: list[dict[str, Any]] = []

    @classmethod
    def of(cls, dataset: RowItems | ImageFolder | MultiLabelImageFolder) -> Self:
        """Describe a dataset of this package that reads a table or a folder of images.

        Raises:
            UnsupportedError: a column has too many categories to be stored.
        """
        if not isinstance(dataset, RowItems):
            files = ImageFiles(mode=dataset.mode, dtype=dataset.dtype, background=dataset.background)
            column = ColumnDescription("image", image=stored.arguments_to_json(files))
            label = "labels" if isinstance(dataset, ImageFolder) else None
            return cls({"images": "path"}, {"path": column}, label)
        encoding = dataset.encoding()
        assert encoding is not None
        schema = encoding.schema
        entries = {entry: names for entry, names in schema.fields.items() if names != schema.label}
        columns: dict[str, ColumnDescription] = {}
        for names in entries.values():
            for name in [names] if isinstance(names, str) else names:
                source = schema.source(name)
                if source == name or source not in columns:
                    columns[source] = _describe_column(encoding, source, names)
        missing: Any = "error" if schema.missing == "drop" else schema.missing
        if not isinstance(missing, str):
            missing = {name: _as_json(value) for name, value in missing.items() if name in columns}
        return cls(entries, columns, schema.label, missing, dict(encoding.csv))

    def to_dict(self) -> dict[str, Any]:
        """Return the description as JSON values."""
        document: dict[str, Any] = msgspec.to_builtins(self)
        return document

    @classmethod
    def from_dict(cls, document: Any) -> Self:
        """Read what `to_dict` returned.

        Raises:
            ValueError: it is something else.
        """
        table = msgspec.convert(document, cls)
        stored.from_json(table.transforms)
        return table

    def is_required(self, column: str) -> bool:
        """Whether a column must have a value in every row."""
        described = self.columns[column]
        if described.categories is not None and described.categories[-1:] == [UNKNOWN]:
            return False
        if isinstance(self.missing, str):
            return self.missing != "nan" or not (
                described.kind == "date" or described.kind.startswith("float")
            )
        return column not in self.missing

    def columns_to_dict(self) -> dict[str, Any]:
        """Return the columns as JSON values, with ``"required"`` as `is_required` says."""
        return {
            name: {**msgspec.to_builtins(column), "required": self.is_required(name)}
            for name, column in self.columns.items()
        }

    def source(self, name: str) -> str:
        """Return the column of the file that ``"joined"`` or ``"joined.month"`` comes from."""
        return name if name in self.columns else name.rpartition(".")[0]

    def numbers(self, entry: str) -> tuple[Column, ...] | None:
        """Return what the numbers of an entry are, in order; None if it holds lists or text."""
        group = self.entries[entry]
        found = []
        for name in [group] if isinstance(group, str) else group:
            column = self.columns[self.source(name)]
            kind, limits = column.kind, column.range
            if name not in self.columns:
                limits = _part_range(name.rpartition(".")[2], limits)
            elif column.categories is not None or kind == "bool":
                limits = 0.0, float(len(column.categories or (False, True)) - 1)
            elif kind != "date" and not kind.startswith(("float", "int", "uint")):
                return None
            may_be_nan = self.missing == "nan" and (kind == "date" or kind.startswith("float"))
            is_whole = name not in self.columns or not (kind == "date" or kind.startswith("float"))
            found.append(Column(name, limits, is_whole, may_be_nan))
        return tuple(found)

    def only(self, entries: Iterable[str]) -> Self:
        """Return the description of some of the entries."""
        kept = {entry: self.entries[entry] for entry in entries if entry in self.entries}
        names = [name for group in kept.values() for name in ([group] if isinstance(group, str) else group)]
        used = set(map(self.source, names))
        columns = {name: column for name, column in self.columns.items() if name in used}
        return msgspec.structs.replace(self, entries=kept, columns=columns)

    def encode(self, rows: Sequence[Mapping[str, Any]], where: str = "the rows") -> dict[str, Any]:
        """Return the entries of rows of JSON: NumPy arrays, ``[n]`` or ``[n, k]``, and lists of text.

        Args:
            rows: a dict for each row, of which other columns are ignored. A missing value is None, and dates
                are text.
            where: what error messages call the rows.

        Raises:
            DataError: there is no row, a column is missing, or a value does not fit; it names row and column.
        """
        if not rows:
            raise DataError("there are no rows", where=where, expected="a row or more")
        dataset = _Rows(rows, self._options(), where)
        batch = collate([dataset[index] for index in range(len(dataset))])
        return {
            entry: values.numpy() if isinstance(values := getattr(batch, entry), Tensor) else values
            for entry in self.entries
        }

    def transformed(self, dataset: Any) -> Any:
        """Return a dataset that `open` returned with the transforms of its images."""
        return Mapped(dataset, stored.from_json(self.transforms)) if self.transforms else dataset

    def open(self, path: str | os.PathLike[str]) -> RowItems:
        """Return a file or a folder of images as a dataset, whose items are as in the training's dataset.

        They lack the label, and the changes of `transformed`.

        Raises:
            DataError: the file is missing, damaged or of another kind, lacks a column, or has a value that
                does not fit.
        """
        name = os.fspath(path).lower().removesuffix(".gz")
        suffix = os.path.splitext(name)[1]
        exists = os.path.exists(path)
        if os.path.isdir(path) or (exists and suffix in IMAGE_SUFFIXES):
            return self._open_images(Path(path))
        options = {key: value for key, value in self._options().__dict__.items() if key != "label"}
        if suffix in (".csv", ".tsv", ".tab", ".txt"):
            return CsvDataset(path, **options, **self._csv_options(path))
        if suffix in (".parquet", ".pq"):
            return ParquetDataset(path, **options)
        if suffix in (".jsonl", ".ndjson"):
            lines = JsonLinesDataset(path, **options)
            # Declared columns may be absent from the first rows of a file; one that has another name may not.
            for column in self.columns:
                check_name(column, lines.columns, os.fspath(path), "columns")
            return lines
        raise DataError(
            "the kind of a file is not known by its name" if exists else "there is no such file or folder",
            where=os.fspath(path),
            expected=".csv, .tsv, .parquet, .jsonl, .csv.gz, or a folder of images",
            found=(suffix or "no suffix") if exists else None,
        )

    def _open_images(self, path: Path) -> RowItems:
        """Return an image, or those in a folder and below it, as rows with their paths."""
        column, *others = self.columns
        is_folder = path.is_dir()
        if others or self.columns[column].kind != "image":
            raise DataError(
                "the model takes more than images",
                where=str(path),
                expected=f"a file with the columns {', '.join(self.columns)}",
                found="a folder" if is_folder else "an image",
            )
        found, rest = find_files(path, IMAGE_SUFFIXES) if is_folder else ([path.name], [])
        if not found:
            raise DataError(
                "a folder has no images",
                where=str(path),
                expected=f"files that end in {', '.join(IMAGE_SUFFIXES)}",
                found=", ".join(rest[:3]) or "an empty folder",
            )
        options = self._options()
        types = {column: replace((options.types or {})[column], folder="")}
        where = os.path.join(path if is_folder else path.parent, "")
        return _Rows([{column: name} for name in found], replace(options, types=types), where)

    def _csv_options(self, path: str | os.PathLike[str]) -> dict[str, Any]:
        """Return the options for a CSV file; one without a header may lack the label's column."""
        names = self.csv.get("header")
        if not isinstance(names, list) or self.label not in names:
            return self.csv
        options = {"delimiter": None, "skip": 0, "encoding": "utf-8", **self.csv, "header": False}
        count = len(CsvFile(find_tables(path)[0], **options).names)
        names = [name for name in names if name != self.label] if count == len(names) - 1 else names
        return {**self.csv, "header": names}

    def _options(self) -> Options:
        """Return the options that encode the columns as in the training."""
        types = {name: _type_of(column) for name, column in self.columns.items() if column.kind != "category"}
        categories = {name: column.categories or [] for name, column in self.columns.items()}
        categories = {name: values for name, values in categories.items() if name not in types}
        return Options(self.entries, types, None, categories, self.missing)


class _Rows(RowDataset):
    """Rows in memory."""

    def __init__(self, rows: Sequence[Mapping[str, Any]], options: Options, where: str) -> None:
        self._rows, self._where = rows, where
        self._prepare(where, options)

    def __len__(self) -> int:
        return len(self._rows)

    def read(self, index: int) -> Mapping[str, Any]:
        return self._rows[index]

    def place(self, index: int) -> str:
        return f"{self._where}, row {index}"


def _describe_column(encoding: Encoding, name: str, group: str | list[str]) -> ColumnDescription:
    """Describe a column; `group` is what its entry is made of."""
    if name in encoding.known:
        values = encoding.known[name].values
        if len(values) > _MOST_CATEGORIES:
            raise UnsupportedError(
                "a column has too many categories to keep them with the run",
                where=f"column {name!r}",
                expected=f"at most {_MOST_CATEGORIES:,}",
                found=f"{len(values):,}",
            )
        return ColumnDescription("category", [_as_json(value) for value in values])
    kind = encoding.schema.kinds.get(name) or encoding.kinds[name]
    if kind is INT and name not in encoding.schema.kinds and not isinstance(group, str):
        # Stacked with others that are floats, it may have fractions and gaps, too.
        others = (encoding.kinds[other] for other in group if other not in encoding.known)
        floats = [other for other in others if isinstance(other, np.dtype) and other.kind == "f"]
        kind = np.result_type(*floats) if floats else kind
    if isinstance(kind, ImageFiles):
        return ColumnDescription("image", image=stored.arguments_to_json(kind))
    text = kind.format if isinstance(kind, Date) else None
    return ColumnDescription(_kind_text(kind), None, encoding.ranges.get(name), text)


def _part_range(part: str, days: tuple[float, float] | None) -> tuple[float, float] | None:
    if part != "year":
        return {"month": (1, 12), "day": (1, 31), "weekday": (0, 6), "hour": (0, 23)}[part]
    if days is None:
        return None
    low, high = ((datetime.date(1970, 1, 1) + datetime.timedelta(n // 1)).year for n in days)
    return low, high


def _kind_text(kind: Kind) -> str:
    if isinstance(kind, Date):
        return "date"
    if isinstance(kind, Vector):
        return f"list[{kind.dtype}]"
    return str(kind) if isinstance(kind, np.dtype) else "text" if kind is str else "object"


def _type_of(column: ColumnDescription) -> Any:
    """Return the type by which the options of a dataset declare a column."""
    if column.kind == "date":
        return column.format or datetime.date
    if column.kind == "image":
        return stored.from_arguments(ImageFiles, column.image)
    others = {"text": str, "object": object, "list[float32]": list[float], "list[int64]": list[int]}
    return others.get(column.kind) or getattr(torch, column.kind)


def _as_json(value: Any) -> Any:
    value = value.item() if isinstance(value, np.generic) else value
    return value if value is None or isinstance(value, str | bool | int | float) else str(value)


def describe(loader: Any, valid: Iterable[Any] = ()) -> dict[str, Any] | None:
    """Return the description of the table or folder of images that a loader's batches come from, for a run.

    None if they come from neither. ``{"unknown": reason}`` if code that a description cannot hold changes
    items or batches. What changes them in the first loader in `valid` that reads a table counts, since what
    only the training does is random as a rule.
    """
    table, changes = _find_table(loader)
    if table is None:
        return None
    for other in valid:
        found, others = _find_table(other)
        if found is not None:
            table, changes = found if isinstance(found, _FOLDERS) else table, others
            break
    try:
        described = TableDescription.of(table)
    except UnsupportedError as error:
        return {"unknown": f"{error.what}: {error.found}, {error.where}"}
    has_images = any(column.kind == "image" for column in described.columns.values())
    transforms: list[dict[str, Any]] = []
    unknown = []
    for name, function in reversed(changes):  # the innermost one, which was found last, is applied first
        documents = stored.to_json(function) if has_images else None
        transforms += documents or ()
        unknown += [name] if documents is None else []
    if unknown:
        return {"unknown": f"items are changed by {', '.join(unknown)}"}
    return msgspec.structs.replace(described, transforms=transforms).to_dict()


def _find_table(owner: Any) -> tuple[Any, list[tuple[str, Any]]]:
    """Return the table or folder below loaders and views, and what changes its items, by its name."""
    changes: list[tuple[str, Any]] = []
    while owner is not None:
        own = getattr(owner, "__dict__", {})  # a LimitedLoader has the attributes of the loader below
        changes += own.get("changes", ())
        collate_fn = own.get("collate_fn")
        if collate_fn not in (torch.utils.data.default_collate, None):
            changes.append((f"collate_fn={_name(collate_fn)}", None))
        is_table = isinstance(owner, RowItems) and owner.encoding() is not None
        if is_table or type(owner) in _FOLDERS:  # a subclass may have other items
            return owner, changes
        if isinstance(owner, Mapped):
            changes.append((f"data.map(..., {_name(owner.function)})", owner.function))
        if isinstance(owner, Concatenation | torch.utils.data.ConcatDataset):
            owner = owner.datasets[0]
            continue
        below = next((name for name in ("batches", "loader", "dataset") if hasattr(owner, name)), None)
        is_plain = isinstance(
            owner, Selection | Cached | Mapped | torch.utils.data.Subset | torch.utils.data.DataLoader
        )
        if below == "dataset" and not is_plain and not hasattr(owner, "epoch"):
            changes.append((type(owner).__name__, None))
        owner = None if below is None else getattr(owner, below)
    return None, changes


def _name(function: Any) -> str:
    return getattr(function, "__name__", type(function).__name__)
