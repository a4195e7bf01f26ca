"""Output of the commands: coloured tables for terminals, aligned plain columns for pipes, JSON, errors.

In a terminal, rich draws tables that fit its width. In a pipe, a file or with ``TERM=dumb``, each row is one
line with every cell in full and columns at least two spaces apart, for grep and awk. ``NO_COLOR`` and
``FORCE_COLOR`` are respected.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from burnt.errors import BurntError, clean, nearest, quantity

if TYPE_CHECKING:
    from rich.progress import Progress

_MAX_ROWS = 20  # rows of an abbreviated table in a terminal
_LONG_BYTES = 200_000_000  # less is read before a bar would be seen
_MIN_FOLDED_WIDTH = 20  # minimum readable width of a folded column


class UsageError(BurntError):
    """An invalid command line, detected before anything was done; exit code 2."""


@contextmanager
def usage_errors(
    *kinds: type[BurntError], where: str | None = None, hint: str | None = None
) -> Iterator[None]:
    """Context in which errors of these kinds, about what the user gave, become `UsageError`s.

    `where` replaces the error's own place, `hint` stands where the error has none.
    """
    try:
        yield
    except kinds as error:
        raise UsageError(
            error.what,
            where=where or error.where,
            expected=error.expected,
            found=error.found,
            origin=error.origin,
            hint=error.hint or hint,
        ) from error


def require_folder(folder: str, hint: str) -> None:
    """Raise a UsageError with a hint if there is no such folder."""
    if not os.path.isdir(folder):
        raise UsageError(
            f"there is no folder {folder!r}",
            where=os.getcwd(),
            found="a file" if os.path.exists(folder) else None,
            hint=hint,
        )


def check_target(path: Path, *, replace: bool = True) -> None:
    """Raise a UsageError if the folder of a file or folder to write is missing, or it may not be replaced."""
    if not path.parent.is_dir():
        above = next(folder for folder in (path.parent, *path.parents) if folder.exists())
        raise UsageError(
            "there is no folder for the file" if above.is_dir() else "the path is below a file",
            where=str(path),
            expected=f"the folder {path.parent}",
            found="none" if above.is_dir() else str(above),
            hint=f"mkdir -p {shlex.quote(str(path.parent))}" if above.is_dir() else None,
        )
    if path.exists() and not replace:
        raise UsageError(
            "the file exists", found=str(path), hint="--force replaces it, --out writes another one"
        )


def report(error: BurntError) -> None:
    """Print an error to standard error, with a hint how to get its traceback."""
    text = "\n".join([str(error), *getattr(error, "__notes__", ())])
    lines = [clean(line) for line in text.splitlines()]
    print("error:", "\n".join(lines), file=sys.stderr)
    if not isinstance(error, UsageError):
        print("(set BURNT_DEBUG=1 to see the traceback)", file=sys.stderr)


def print_json(value: object) -> None:
    """Print a value as JSON; non-finite numbers become strings, as in the run store's exports."""
    from burnt.store.schema import to_json

    print(json.dumps(json.loads(to_json(value)), indent=2))


@contextmanager
def progress_bar(text: str, total: int | None = None) -> Iterator[Callable[[int, int], None]]:
    """Show a bar on standard error while a block reads many bytes, where that is a terminal.

    Yields:
        a function of the bytes that were read, and of those that will be.
    """
    if not sys.stderr.isatty() or (total is not None and total < _LONG_BYTES):
        yield lambda done, total: None
        return
    from rich.progress import BarColumn, DownloadColumn, TimeRemainingColumn

    columns = ("{task.description}", BarColumn(), DownloadColumn(binary_units=True), TimeRemainingColumn())
    with _bar(*columns) as bar:
        task = bar.add_task(text, total=total, visible=total is not None)
        yield lambda done, total: bar.update(task, completed=done, total=total, visible=total >= _LONG_BYTES)


def _bar(*columns: Any) -> Progress:
    from rich.console import Console
    from rich.progress import Progress

    return Progress(*columns, console=Console(stderr=True), transient=True)


@contextmanager
def step_bar() -> Iterator[Callable[[str, int, int], None]]:
    """Show a bar on standard error for work in countable steps, where that is a terminal.

    Yields:
        a function of a text, the steps that are done, and how many there are; 0 if that is not known.
    """
    if not sys.stderr.isatty():
        yield lambda text, done, total: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn

    with _bar(
        BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}")
    ) as bar:
        task = bar.add_task("", total=None)
        yield lambda text, done, total: bar.update(
            task, description=clean(text), completed=done, total=total or None
        )


class Cell(NamedTuple):
    """A text with a rich style, such as ``"red"``."""

    text: str
    style: str = ""


class Page:
    """Writes to standard output: styled for a terminal, plain otherwise or if asked to."""

    def __init__(self, *, styled: bool = True) -> None:
        is_terminal = sys.stdout.isatty() or bool(os.environ.get("FORCE_COLOR"))
        self.is_styled = styled and is_terminal and os.environ.get("TERM") not in ("dumb", "unknown", "")
        if self.is_styled:
            from rich.console import Console

            self._console = Console(highlight=False, markup=False, emoji=False)

    @property
    def width(self) -> int | None:
        """Columns of the terminal; None if lines may have any length."""
        return self._console.width if self.is_styled else None

    def line(self, *parts: str | Cell) -> None:
        """Print a line of text from its parts."""
        cells = [Cell(part) if isinstance(part, str) else part for part in parts]
        if self.is_styled:
            from rich.text import Text

            self._console.print(Text.assemble(*((clean(text), style) for text, style in cells)))
        else:
            print("".join(clean(cell.text) for cell in cells))

    def heading(self, text: str) -> None:
        """Print an empty line and a heading."""
        self.line("")
        self.line(Cell(text, "bold cyan"))

    def pairs(self, pairs: Mapping[str, str | Cell]) -> None:
        """Print names and values, one pair per line."""
        rows = [[Cell(name, "dim"), value] for name, value in pairs.items()]
        self.table(["name", "value"], rows, header=False)

    def table(
        self,
        columns: Sequence[str],
        rows: Sequence[Sequence[str | Cell]],
        *,
        align_right: Sequence[str] = (),
        fold_column: str | None = None,
        droppable: Sequence[str] = (),
        header: bool = True,
    ) -> None:
        """Print a table; empty cells are shown as ``-``.

        In a narrow terminal, `fold_column` wraps, by default the last one, and the `droppable` columns are
        omitted in this order.
        """
        columns, align_right, droppable = (list(map(clean, it)) for it in (columns, align_right, droppable))
        cells = [[_to_cell(cell) for cell in row] for row in rows]
        if self.is_styled:
            fold_column = clean(fold_column) if fold_column else columns[-1]
            kept = self._columns_to_keep(columns, cells, fold_column, droppable)
            cells = [[row[i] for i in kept] for row in cells]
            self._draw_table([columns[i] for i in kept], cells, align_right, fold_column, header)
        else:
            _print_aligned(columns, cells, align_right, header)

    def excerpt(
        self, columns: Sequence[str], rows: Sequence[Sequence[str]], align_right: Sequence[str]
    ) -> None:
        """Print a table of any size: in a terminal the first rows and the columns that fit, which it says."""
        if not self.is_styled:
            return self.table(columns, rows, align_right=align_right)
        columns, align_right = list(map(clean, columns)), list(map(clean, align_right))
        cells = [[_to_cell(cell) for cell in row] for row in rows[:_MAX_ROWS]]
        widths = _column_widths(columns, cells)
        fold_column = max(zip(widths, columns, strict=True))[1]
        if fold_column in align_right:
            fold_column = columns[-1]
        kept = self._columns_to_keep(columns, cells, fold_column, columns[:0:-1])
        shown = [[row[i] for i in kept] for row in cells]
        self._draw_table([columns[i] for i in kept], shown, align_right, fold_column, header=True)
        num_hidden = [(len(rows) - _MAX_ROWS, "row"), (len(columns) - len(kept), "column")]
        if more := " and ".join(quantity(count, what) for count, what in num_hidden if count > 0):
            self.line(Cell(f"... {more} more: use --json or a pipe to get all", "dim"))

    def _draw_table(
        self,
        columns: Sequence[str],
        rows: Sequence[Sequence[Cell]],
        align_right: Sequence[str],
        fold_column: str | None,
        header: bool,
    ) -> None:
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=header, header_style="bold")
        for column in columns:
            # Long texts are wrapped, not truncated, so that names of runs can be copied.
            table.add_column(
                Text(column),
                justify="right" if column in align_right else "left",
                overflow="fold",
                no_wrap=column != fold_column,
            )
        for row in rows:
            table.add_row(*(Text(cell.text, cell.style) for cell in row))
        self._console.print(table)

    def _columns_to_keep(
        self,
        columns: Sequence[str],
        rows: Sequence[Sequence[Cell]],
        fold_column: str,
        droppable: Sequence[str],
    ) -> list[int]:
        """Return the indices of the columns to show, leaving the folded column a readable width."""
        widths = dict(zip(columns, _column_widths(columns, rows), strict=True))
        widths[fold_column] = min(widths[fold_column], _MIN_FOLDED_WIDTH)
        for column in droppable:
            if sum(width + 2 for width in widths.values()) > self._console.width + 2:
                widths.pop(column, None)
        return [i for i, column in enumerate(columns) if column in widths]


def _to_cell(cell: str | Cell) -> Cell:
    text, style = (cell, "") if isinstance(cell, str) else cell
    return Cell(clean(text) or "-", style)


def _column_widths(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> list[int]:
    """Return the width of each column in terminal cells; a character may take two."""
    from rich.cells import cell_len

    texts = [columns, *([cell.text for cell in row] for row in rows)]
    return [max(map(cell_len, column)) for column in zip(*texts, strict=True)]


def _print_aligned(
    columns: Sequence[str], rows: Sequence[Sequence[Cell]], align_right: Sequence[str], header: bool
) -> None:
    from rich.cells import cell_len

    shown = [[Cell(column) for column in columns], *rows][not header :]
    widths = _column_widths(columns if header else [""] * len(columns), rows)
    for row in shown:
        padded = []
        for cell, width, column in zip(row, widths, columns, strict=True):
            space = " " * (width - cell_len(cell.text))
            padded.append(space + cell.text if column in align_right else cell.text + space)
        print("  ".join(padded).rstrip())


def closest_path(name: str, paths: Iterable[str], separator: str) -> str | None:
    """Return the path closest to a mistyped one, compared as a whole or by the last part; None if none is.

    >>> closest_path("digit", ["runs/mnist", "runs/digits"], "/")
    'runs/digits'
    """
    candidates = list(paths)
    ends = {candidate.rpartition(separator)[2]: candidate for candidate in candidates}
    last_part = nearest(name.rpartition(separator)[2], ends)
    return nearest(name, candidates) or (None if last_part is None else ends[last_part])
