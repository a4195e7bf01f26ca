"""Files of JSON lines as datasets: an index of line offsets, and rows that are parsed when they are used."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from io import FileIO
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from burnt._hints import explain_arguments
from burnt.data.files.opening import Handle, Paths, find_files
from burnt.data.files.rows import RowDataset
from burnt.data.files.schema import Options, bad_cell
from burnt.errors import DataError

_BLOCK = 1 << 23


class JsonLinesDataset(RowDataset):
    """Rows of files with one JSON object a line, each parsed when it is used; 8 bytes a row stay in memory.

    An item is a dict with an entry for each column: NumPy scalars for numbers, `str` for text, tensors for
    lists of numbers, and whatever JSON holds for anything else. Types are inferred from the first 1,000 rows:
    integers become int64, numbers float32, true and false bool. A row that does not fit is an error when it
    is read. Lists of different lengths need a loader's `batcher` that pads them.

    Args:
        path: a file, a pattern such as ``"part-*.jsonl"``, or a list of these.
        columns: the keys to keep, by default the keys of the first 1,000 rows; or a mapping from each entry
            of an item to its key, or to several keys whose numbers are stacked to one tensor ``[k]``.
        types: types of columns, in place of the inferred ones: int, float, bool, str, a dtype of torch,
            dates as in `CsvDataset`, ``list[int]`` or ``list[float]`` for lists that become tensors, object
            for values left as they are. Names keys, too, that the first 1,000 rows lack.
        label, categories, unknown: as in `CsvDataset`. All rows are parsed once to find classes, unless
            `categories` has them.
        missing: what to do, as in `DataframeDataset`, where a key is absent or null.

    Raises:
        DataError: a file is missing, or a row cannot be read; the message names file, line and column.

    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp(), "posts.jsonl")
    >>> _ = path.write_text('{"text": "hello", "ids": [3, 1]}\\n{"text": "bye", "ids": [2]}\\n')
    >>> posts = JsonLinesDataset(path)
    >>> len(posts), posts[1]
    (2, {'text': 'bye', 'ids': tensor([2])})
    """

    @explain_arguments()
    def __init__(
        self,
        path: Paths,
        *,
        columns: Sequence[str] | Mapping[str, str | Sequence[str]] | None = None,
        types: Mapping[str, Any] | None = None,
        label: str | None = None,
        categories: Sequence[str] | Mapping[str, Sequence[Any]] = (),
        missing: str | Mapping[str, Any] = "error",
        unknown: bool | Sequence[str] = False,
    ) -> None:
        self._paths = find_files(path)
        self._files = [Handle(_open, file) for file in self._paths]
        self._starts = [_line_starts(file) for file in self._paths]
        self._bounds = np.cumsum([0, *(len(starts) - 1 for starts in self._starts)])
        if len(self) == 0:
            raise DataError("there are no rows", where=self._paths[0], expected="a JSON object a line")
        options = Options(columns, types, label, categories, missing, unknown)
        self._prepare(self._paths[0], options, more_columns=types or ())

    def __len__(self) -> int:
        return int(self._bounds[-1])

    def read(self, index: int) -> Mapping[str, Any]:
        """Return the values of a row."""
        number, start, end = self._range(index)
        try:
            file = self._files[number].get()
            file.seek(start)
            data = file.read(end - start)
        except OSError as error:
            raise DataError(
                "the file cannot be read", where=self.place(index), found=error.strerror
            ) from error
        try:
            row = msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise self._unreadable(index, data, error) from None
        if not isinstance(row, dict):
            raise bad_cell(self.place(index), None, "a JSON object", data.decode().strip())
        return row

    def _unreadable(self, index: int, data: bytes, error: Exception) -> DataError:
        """Return the error for a row that is not JSON."""
        number, start, _ = self._range(index)
        if os.path.getsize(self._paths[number]) != self._starts[number][-1]:
            return DataError(
                "the file was changed after it was opened",
                where=self.place(index),
                hint="make a new dataset of it",
            )
        if isinstance(error, UnicodeDecodeError):
            return bad_cell(self.place(index), None, "text in UTF-8", repr(data.strip()))
        if isinstance(error, RecursionError):
            return bad_cell(self.place(index), None, "JSON of less depth", repr(data.strip()))
        hint = "a JSON array is not a file of JSON lines" if data[:1] == b"[" and start == 0 else None
        return bad_cell(self.place(index), None, "a JSON object", str(error), hint)

    def _range(self, index: int) -> tuple[int, int, int]:
        """Return the number of a row's file, and where the row starts and ends in it."""
        number = int(np.searchsorted(self._bounds, index, side="right")) - 1
        starts, row = self._starts[number], index - self._bounds[number]
        return number, int(starts[row]), int(starts[row + 1])

    def place(self, index: int) -> str:
        """Return the file and line of an item, ``"posts.jsonl, line 7"``."""
        number, start, _ = self._range(index)
        line = 1
        with open(self._paths[number], "rb") as file:
            while start > 0 and (block := file.read(min(start, _BLOCK))):
                line += block.count(b"\n")
                start -= len(block)
        return f"{self._paths[number]}, line {line}"


def _open(path: str) -> FileIO:
    return open(path, "rb", buffering=0)


def _line_starts(path: str) -> NDArray[np.int64]:
    """Return the offset of each line that is not empty, and the size of the file, ``[n + 1]``."""
    found, base = [np.zeros(1, np.int64)], 0
    with open(path, "rb") as file:
        prefix = file.read(3)
        if prefix[:2] == b"\x1f\x8b":
            raise DataError(
                "a compressed file has no access to single lines", where=path, hint="decompress it: gunzip"
            )
        if prefix == b"\xef\xbb\xbf":  # a byte order mark
            found[0] += 3
        file.seek(0)
        while block := file.read(_BLOCK):
            found.append(np.flatnonzero(np.frombuffer(block, np.uint8) == 10) + (base + 1))
            base += len(block)
        starts = np.concatenate([*found, [base]])
        # An empty line, or one of \r\n, belongs to the row before it: JSON ignores space around a value.
        is_empty = np.zeros(len(starts), np.bool_)
        for number in np.flatnonzero(np.diff(starts) <= 2):
            file.seek(starts[number])
            is_empty[number] = not file.read(starts[number + 1] - starts[number]).strip()
    return starts[~is_empty]
