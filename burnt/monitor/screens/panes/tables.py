"""Recorded tables as rows of the table widget: the model's layers, kernels and plans; and checkpoints."""

from __future__ import annotations

import json
import math
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, NamedTuple

from textual import on
from textual.app import ComposeResult
from textual.content import Content
from textual.widgets import Static

from burnt.errors import clean
from burnt.monitor.data.runs import Checkpoint, RunView
from burnt.monitor.format import age_text, better_direction, parse_number, size_text, split_tuning_keys
from burnt.monitor.screens.panes.pane import Pane
from burnt.monitor.ui.dialogs import TextScreen
from burnt.monitor.ui.keybar import update_if_changed
from burnt.monitor.ui.table import Column, Row, Table, cell
from burnt.train.format import value_text

_FALLBACK_COLUMN = "fell back"
_SHOWN_SETTINGS = ("model", "parameters", "optimizer", "schedule", "precision", "device", "duration")
_MAX_FIXED_WIDTH = 24


def table_rows(table: dict[str, Any]) -> tuple[list[Column], list[Row]]:
    """Convert a table artefact to columns and rows; columns of numbers are right-aligned.

    Raises KeyError, TypeError or IndexError if the table does not have the documented format.
    """
    names = [clean(str(name)) for name in table["columns"]]
    rows = [[row[i] for i in range(len(names))] for row in table["rows"]]
    numeric = [
        all(value is None or _is_number(value) for value in column) and any(map(_is_number, column))
        for column in zip(*rows, strict=True)
    ] or [False] * len(names)
    # The widest text column shrinks if the table does not fit; otherwise the last text column expands.
    widths = [
        0 if numeric[i] else max((len(_value_text(row[i])) for row in rows), default=0)
        for i in range(len(names))
    ]
    last = max((i for i in range(len(names)) if not numeric[i]), default=0)
    grows = widths.index(max(widths)) if max(widths, default=0) > _MAX_FIXED_WIDTH else last
    columns = [Column(name, align_right=numeric[i], expands=i == grows) for i, name in enumerate(names)]
    return columns, [(number, [cell(_value_text(value)) for value in row]) for number, row in enumerate(rows)]


def _is_number(value: object) -> bool:
    numbers = ("NaN", "Infinity", "-Infinity")
    return (isinstance(value, int | float) and not isinstance(value, bool)) or value in numbers


def _value_text(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return value_text(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return value if isinstance(value, str) else json.dumps(value)


class _Table(NamedTuple):
    """A recorded table as it is shown."""

    data: dict[str, Any]
    machine: str  # of a table of kernels
    columns: list[Column]
    rows: list[Row]
    num_fallbacks: int | None = None


class _TablesPane(Pane):
    """Shows the newest table artefact of each of some names, below a line of facts."""

    TABLES: ClassVar[Mapping[str, str]]  # by name: what an empty table says

    def __init__(self, view: RunView) -> None:
        super().__init__(view)
        self._tables: dict[str, _Table] = {}

    def compose(self) -> ComposeResult:
        for name, empty_text in self.TABLES.items():
            yield Static(id=f"{name}-facts", classes="facts")
            yield Table([Column("")], empty_text=empty_text, id=name)

    def token(self) -> object:
        """Return the newest artefact and the attempts, as a resumed run may have another model."""
        return self.view.newest.artefact, len(self.view.attempts)

    def read(self) -> Callable[[], Any]:
        with self.view.reading() as reader:
            ids = {one.name: one.id for one in reader.artefact_names() if one.kind == "table"}
            found = {name: reader.artefact(ids[name]) for name in self.TABLES if name in ids}
        tables = {}
        for name, artefact in found.items():
            if artefact is not None:
                data, machine = split_tuning_keys(artefact.data)
                tables[name] = _Table(artefact.data, machine, *table_rows(data))
        return partial(self._show, tables)

    def _show(self, tables: dict[str, _Table]) -> None:
        self._tables = tables
        for name in self.TABLES:
            table = tables.get(name)
            facts = self.query_one(f"#{name}-facts", Static)
            update_if_changed(facts, Content.assemble(*self.facts(name, table)))
            if table is not None:
                self.query_one(f"#{name}", Table).show(table.rows, columns=table.columns)

    @abstractmethod
    def facts(self, name: str, table: _Table | None) -> list[tuple[str, str]]:
        """Return the line above a table as styled parts."""

    @on(Table.RowOpened)
    def row_opened(self, message: Table.RowOpened) -> None:
        table = self._tables.get(str(message.table.id))
        if table is not None and isinstance(message.key, int):
            row = zip(table.data["columns"], table.data["rows"][message.key], strict=False)
            lines = [f"{name}: {value}" for name, value in row if value is not None]
            self.app.push_screen(TextScreen(str(message.table.id), "\n".join(lines)))


class ModelPane(_TablesPane):
    """The model's layers, output shapes and parameters, below its settings in the configuration."""

    TITLE = "Model"
    TABLES: ClassVar[Mapping[str, str]] = {"model": "The run has not recorded a model summary."}

    def facts(self, name: str, table: _Table | None) -> list[tuple[str, str]]:
        parts: list[tuple[str, str]] = []
        for setting in _SHOWN_SETTINGS:
            if (value := (self.view.config or {}).get(setting)) is not None:
                text = f"{value:,}" if isinstance(value, int) else str(value)
                parts += [(f" {setting} ", "$dim"), (f"{clean(text)} ", "")]
        return parts


class KernelsPane(_TablesPane):
    """The kernels and plans in use, and which fell back to PyTorch."""

    TITLE = "Kernels"
    SHORT = "Kern"
    TABLES: ClassVar[Mapping[str, str]] = {
        "plans": "No function has been traced.",
        "kernels": "No kernel has been chosen.",
    }
    DEFAULT_CSS = """
    KernelsPane .facts { height: 1; padding: 0 1; }
    KernelsPane #kernels-facts { margin-top: 1; }
    """

    def on_resize(self) -> None:
        self._set_heights()

    def _show(self, tables: dict[str, _Table]) -> None:
        super()._show({name: _mark_fallbacks(table) for name, table in tables.items()})
        self._set_heights()

    def _set_heights(self) -> None:
        """Give the plans, which are fewer, the height they need, up to half of the pane."""
        plans = self.query_one("#plans", Table)
        plans.styles.height = min(len(plans.row_keys) + 1, max(self.size.height // 2 - 2, 3))

    def facts(self, name: str, table: _Table | None) -> list[tuple[str, str]]:
        if table is None:
            return [(name, "bold"), (" none recorded", "$dim")]
        facts = f" {len(table.rows):,}" + (f", on {clean(table.machine)}" if table.machine else "")
        if table.num_fallbacks is not None:
            fallbacks = f"{table.num_fallbacks:,} of them" if table.num_fallbacks else "none"
            facts += f", {fallbacks} fell back" + (" to PyTorch" if table.num_fallbacks else "")
        return [(name, "bold"), (facts, "$dim")]


def _mark_fallbacks(table: _Table) -> _Table:
    if _FALLBACK_COLUMN not in table.data["columns"]:
        return table
    column = table.data["columns"].index(_FALLBACK_COLUMN)
    rows: list[Row] = []
    num_fallbacks = 0
    for key, cells in table.rows:
        fell_back = cells[column] != (("-", ""),)
        num_fallbacks += fell_back
        rows.append((key, [((one[0][0], "$warning"),) for one in cells] if fell_back else cells))
    return table._replace(rows=rows, num_fallbacks=num_fallbacks)


_RESCAN_SECONDS = 5


class CheckpointsPane(Pane):
    """The checkpoints from which the run can be resumed."""

    TITLE = "Checkpoints"
    SHORT = "Ckpts"

    def compose(self) -> ComposeResult:
        columns = (
            Column("checkpoint"),
            Column("step", align_right=True),
            Column("", drop_priority=0),
            Column("values", expands=True),
            Column("size", align_right=True),
            Column("age", align_right=True),
        )
        yield Table(columns, empty_text="There are no checkpoints.")

    def token(self) -> object:
        """Change every few seconds, as checkpoints may be deleted by hand."""
        num_events = sum(event.kind == "checkpoint" for event in self.view.events)
        return num_events, self.view.is_live, int(time.monotonic() / _RESCAN_SECONDS)

    def read(self) -> Callable[[], Any]:
        checkpoints = self.view.checkpoints()
        best, key = best_checkpoint(checkpoints, self.view.config)
        rows = [_row(checkpoint, key, is_best=checkpoint is best) for checkpoint in reversed(checkpoints)]
        return lambda: self.query_one(Table).show(rows)


def _row(checkpoint: Checkpoint, key: str, *, is_best: bool) -> Row:
    """Return a checkpoint's row; `key` is the value that decides which one is the best."""
    # The deciding value, other validation values, the rest; the last may be cut off.
    values = sorted(
        checkpoint.values.items(), key=lambda one: (one[0] != key, not one[0].startswith("valid/"))
    )
    return checkpoint.name, (
        cell(checkpoint.name, "bold" if is_best else ""),
        cell("" if checkpoint.step is None else f"{checkpoint.step:,}"),
        cell("★ best" if is_best else "", "$success"),
        tuple(
            (f"{clean(name)} {_number_text(value)}  ", "$success" if is_best and name == key else "")
            for name, value in values
        ),
        cell(size_text(checkpoint.bytes), "$dim"),
        cell(age_text(time.time() - checkpoint.written), "$dim"),
    )


def best_checkpoint(
    checkpoints: Sequence[Checkpoint], config: Mapping[str, Any] | None = None
) -> tuple[Checkpoint | None, str]:
    """Return the best checkpoint, the oldest of equals as a training keeps it, and the name of its value.

    It is the best by the metric that ranks the run's checkpoints, else by the validation loss, else by the
    first value with a known better direction; None and an empty name if no checkpoint has such a value.
    """
    names = list(dict.fromkeys(name for checkpoint in checkpoints for name in checkpoint.values))
    comparable = [name for name in names if better_direction(name, config) is not None]
    ranked_by = config.get("ranked_by") if isinstance(config, Mapping) else None
    for name in (
        *[n for n in comparable if n == ranked_by],
        "valid/loss",
        *[n for n in comparable if n.startswith("valid/")],
        *comparable,
    ):
        candidates = [
            (value, checkpoint)
            for checkpoint in checkpoints
            if (value := parse_number(checkpoint.values.get(name))) is not None and not math.isnan(value)
        ]
        if candidates:
            sign = -1 if better_direction(name, config) == "lower" else 1
            return max(candidates, key=lambda candidate: sign * candidate[0])[1], name
    return None, ""


def _number_text(value: object) -> str:
    parsed = parse_number(value)
    return clean(str(value)) if parsed is None else value_text(parsed)
