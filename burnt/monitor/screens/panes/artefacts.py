"""Recorded artefacts: confusion matrices, scores by class, histograms, images, texts and other tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, NamedTuple

from rich.cells import cell_len
from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.widgets import Static

from burnt.errors import clean
from burnt.monitor.artefacts.render import (
    Image,
    Lines,
    PngError,
    StyledText,
    decode,
    draw_class_scores,
    draw_confusion_matrix,
    draw_curves,
    draw_histogram,
    draw_image,
    draw_text,
    is_class_scores,
    is_confusion_matrix,
    is_curves,
)
from burnt.monitor.artefacts.widgets import DrawFunction, Picture, Slider
from burnt.monitor.data.runs import RunView
from burnt.monitor.data.series_order import splits_in_order
from burnt.monitor.format import natural_key
from burnt.monitor.screens.panes.pane import FilterPane
from burnt.monitor.screens.panes.tables import KernelsPane, ModelPane, table_rows
from burnt.monitor.ui.dialogs import TextScreen
from burnt.monitor.ui.filter_input import FilterInput
from burnt.monitor.ui.keybar import update_if_changed
from burnt.monitor.ui.keymap import ARTEFACTS, bindings
from burnt.monitor.ui.table import Column, Table, cell
from burnt.store import ArtefactName
from burnt.store.reader import text_of
from burnt.store.search import setting_text

_SHOWN_ELSEWHERE = (*ModelPane.TABLES, *KernelsPane.TABLES)  # tables that other panes show
_KINDS = ("table", "image", "histogram")
_COUNT_WIDTH, _MIN_NAME_WIDTH = 9, 10  # cells next to a name for the number of steps, and for the name
_MAX_HISTOGRAMS = 200  # drawn together for one name
_CACHE_BYTES = 128 * 2**20  # of cached artefacts, so that moving between steps does not read them again


class _Selection(NamedTuple):
    """The artefacts by kind and name, and the selected one."""

    groups: dict[tuple[str, str], list[ArtefactName]]
    selected: tuple[str, str] | None
    step_index: int
    draw: DrawFunction | None
    table: dict[str, Any] | None


class ArtefactsPane(FilterPane):
    """A list of artefact names, the selected artefact, and a slider over its steps."""

    TITLE = "Artefacts"
    SHORT = "Data"
    KEYS = ARTEFACTS
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(ARTEFACTS)]
    DEFAULT_CSS = """
    ArtefactsPane #names { width: 30%; max-width: 38; min-width: 22; border-right: solid $border; }
    ArtefactsPane #shown-name { height: 1; padding: 0 1; }
    ArtefactsPane #table { display: none; }
    ArtefactsPane.table #table { display: block; }
    ArtefactsPane.table Picture { display: none; }
    """

    def __init__(self, view: RunView) -> None:
        super().__init__(view)
        self._selected: tuple[str, str] | None = None
        self._step_index: int | None = None  # None follows the newest step
        self._num_steps = 0
        self._table: dict[str, Any] | None = None  # as shown
        self._groups: dict[tuple[str, str], list[ArtefactName]] = {}  # artefacts by kind and name
        self._read_until = self._read_attempts = 0  # the newest artefact and the attempts in `_groups`
        self._data_cache: dict[int, tuple[Any, int]] = {}  # (data, approximate bytes) by id
        self._last_draw: tuple[int, DrawFunction] | None = None  # id and draw function of the last matrix

    def compose(self) -> ComposeResult:
        with Horizontal():
            yield Table(
                [Column("name", expands=True), Column("", align_right=True)],
                empty_text="No artefacts have been recorded.",
                id="names",
            )
            with Vertical():
                yield Static(id="shown-name")
                yield Picture()
                yield Table([Column("")], empty_text="The table is empty.", id="table")
                yield Slider()
        yield FilterInput(self.FILTER_HINT)

    def on_resize(self) -> None:
        self.request_read()

    # --- in the reader thread

    def token(self) -> object:
        return self.view.newest.artefact, len(self.view.attempts), self._num_requests

    def read(self) -> Callable[[], Any]:
        self._read_names()
        matches = self.matches
        groups = {key: names for key, names in self._groups.items() if matches(key[1])}
        selected = self._selected if self._selected in groups else next(iter(groups), None)
        if selected is None:
            return partial(self._show, _Selection({}, None, 0, None, None))
        names = groups[selected]
        index = len(names) - 1 if self._step_index is None else min(self._step_index, len(names) - 1)
        draw, table = self._prepare(names, index)
        return partial(self._show, _Selection(groups, selected, index, draw, table))

    def _read_names(self) -> None:
        """Read the names of new artefacts; a run may have many thousands. A resume hides earlier ones."""
        if len(self.view.attempts) != self._read_attempts:
            self._groups, self._read_until, self._read_attempts = {}, 0, len(self.view.attempts)
        num_groups = len(self._groups)
        with self.view.reading() as reader:
            new_names = reader.artefact_names(after=self._read_until)
        for name in new_names:
            self._read_until = name.id
            if name.kind in _KINDS and not (name.kind == "table" and name.name in _SHOWN_ELSEWHERE):
                self._groups.setdefault((name.kind, name.name), []).append(name)
        if len(self._groups) != num_groups:
            splits = splits_in_order(self.view.series())
            keys = sorted(self._groups, key=lambda key: _sort_key(key[0], key[1], splits))
            self._groups = {key: self._groups[key] for key in keys}

    def _prepare(
        self, names: Sequence[ArtefactName], index: int
    ) -> tuple[DrawFunction | None, dict[str, Any] | None]:
        """Return the draw function of an artefact, or the data of a table."""
        kind = names[index].kind
        try:
            if kind == "histogram":
                first = max(min(index - _MAX_HISTOGRAMS // 2, len(names) - _MAX_HISTOGRAMS), 0)
                nearby = names[first : first + _MAX_HISTOGRAMS]
                data = [(name.step, self._load_data(name)) for name in nearby]
                return partial(draw_histogram, data, index - first), None
            content = self._load_data(names[index])
            if kind == "image":
                return partial(_draw_image, content), None
            if self._last_draw is not None and self._last_draw[0] == names[index].id:
                return self._last_draw[1], None
            draw: DrawFunction | None = None
            if is_confusion_matrix(content):
                draw = partial(draw_confusion_matrix, content)
            elif is_class_scores(content):
                draw = partial(draw_class_scores, content)
            elif is_curves(content):
                draw = partial(draw_curves, content)
            elif (only_text := text_of(content)) is not None:
                draw = partial(draw_text, only_text)
            if draw is not None:
                self._last_draw = names[index].id, draw
                return draw, None
            table_rows(content)
            return None, content
        except PngError as error:
            return partial(_draw_message, str(error)), None
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            # Other programs may write to a run's file, so an artefact can have any format.
            return partial(_draw_message, f"this {kind} has an unknown format: {error!r}"), None

    def _load_data(self, name: ArtefactName) -> Any:
        if name.id in self._data_cache:
            self._data_cache[name.id] = self._data_cache.pop(name.id)  # move to the end: most recently used
            return self._data_cache[name.id][0]
        with self.view.reading() as reader:
            artefact = reader.artefact(name.id)
        if artefact is None:
            raise ValueError("it has just been superseded")
        data = decode(artefact.data) if artefact.kind == "image" else artefact.data
        self._data_cache[name.id] = data, _memory_bytes(data)
        used = sum(size for _, size in self._data_cache.values())
        while used > _CACHE_BYTES and len(self._data_cache) > 1:
            used -= self._data_cache.pop(next(iter(self._data_cache)))[1]
        return data

    # --- in the app's thread

    def _show(self, selection: _Selection) -> None:
        names_table = self.query_one("#names", Table)
        names_table.empty_text = (
            "No artefact matches the filter." if self._groups else "No artefacts have been recorded."
        )
        room = max(names_table.size.width - _COUNT_WIDTH, _MIN_NAME_WIDTH)
        names_table.show(
            [
                (key, (cell(_shorten_start(key[1], room)), cell(f"{len(group)}", "$dim")))
                for key, group in selection.groups.items()
            ]
        )
        if selection.selected is None:
            update_if_changed(self.query_one("#shown-name", Static), Content(""))
            self.remove_class("table")
            text = "" if self._groups else "Metrics, trainings and steps record artefacts."
            self.query_one(Picture).show(partial(_draw_message, text))
            self.query_one(Slider).show(0, 0, "")
            return
        self._selected = selection.selected
        names_table.move_to(selection.selected)
        group = selection.groups[selection.selected]
        self._num_steps = len(group)
        kind, name = selection.selected
        update_if_changed(
            self.query_one("#shown-name", Static),
            Content.assemble((clean(name), "bold"), (f"   {kind}", "$dim")),
        )
        self._table = selection.table
        self.set_class(selection.table is not None, "table")
        if selection.table is not None:
            columns, rows = table_rows(selection.table)
            self.query_one("#table", Table).show(rows, columns=columns)
        elif selection.draw is not None:
            self.query_one(Picture).show(selection.draw)
        step = group[selection.step_index].step
        self.query_one(Slider).show(
            selection.step_index, len(group), "" if step is None else f"step {step:,}"
        )

    @on(Table.CursorMoved, "#names")
    def cursor_moved(self, message: Table.CursorMoved) -> None:
        message.stop()
        if message.key != self._selected and isinstance(message.key, tuple):
            self._selected, self._step_index = message.key, None
            self.request_read()

    @on(Table.RowOpened, "#table")
    def row_opened(self, message: Table.RowOpened) -> None:
        message.stop()
        if self._table is not None and isinstance(message.key, int):
            pairs = zip(self._table["columns"], self._table["rows"][message.key], strict=False)
            lines = [f"{name}: {setting_text(value)}" for name, value in pairs]
            self.app.push_screen(TextScreen(f"row {message.key + 1:,}", "\n".join(lines)))

    @on(Slider.Moved)
    def slider_moved(self, message: Slider.Moved) -> None:
        message.stop()
        self._go_to(message.position)

    # --- keys

    def _go_to(self, index: int) -> None:
        self._step_index = None if index >= self._num_steps - 1 else max(index, 0)
        self.request_read()

    def action_step(self, direction: int) -> None:
        self._go_to((self._num_steps - 1 if self._step_index is None else self._step_index) + direction)

    def action_jump(self, direction: int) -> None:
        """Go back (-1) or forward (1) by a tenth of the steps."""
        self.action_step(direction * max(self._num_steps // 10, 1))

    def action_end(self, end: int) -> None:
        """Go to the first step (0), or to the last and follow new ones (-1)."""
        self._go_to(end if end == 0 else self._num_steps)

    def action_scroll(self, direction: int) -> None:
        self.query_one(Picture).scroll_relative(y=direction * 4, animate=False)


def _sort_key(kind: str, name: str, splits: Sequence[str]) -> tuple[Any, ...]:
    """Return a sort key that puts an artefact of a step next to the validations' ones, ``valid/name``."""
    split, _, rest = name.partition("/")
    if rest and split in splits:
        return _KINDS.index(kind), natural_key(rest), 1 + splits.index(split)
    return _KINDS.index(kind), natural_key(name), 0


def _shorten_start(name: str, width: int) -> str:
    """Shorten a name at its start: names such as ``weights/layer10`` differ at their ends."""
    name = clean(name)
    return name if cell_len(name) <= width else f"…{name[-(width - 1) :]}"


def _memory_bytes(data: Any) -> int:
    if isinstance(data, Image):
        return len(data.rgb)
    lists = [part for part in data.values() if isinstance(part, list)] if isinstance(data, dict) else []
    return 64 * sum(len(one) if isinstance(one, list) else 1 for part in lists for one in part)


def _draw_image(image: Image, width: int, height: int, colors: bool) -> Lines:
    size = f"{image.width} x {image.height} pixels"
    return [*draw_image(image, width, max(height - 1, 1), colors=colors), [StyledText(size, "$dim")]]


def _draw_message(text: str, width: int, height: int, colors: bool) -> Lines:
    return [[StyledText(clean(text)[:width], "$dim")]]
