"""What a training recorded to be looked at: confusion matrices, classes, histograms, images, other tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, NamedTuple

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.widgets import Static

from burnt.monitor.artefacts.png import Image, PngError, decode
from burnt.monitor.artefacts.render import (
    Lines,
    StyledText,
    draw_class_scores,
    draw_confusion_matrix,
    draw_histogram,
    draw_image,
    is_class_scores,
    is_confusion_matrix,
)
from burnt.monitor.artefacts.widgets import DrawFunction, Picture, Slider
from burnt.monitor.data.runs import RunView
from burnt.monitor.format import clean
from burnt.monitor.screens.panes.kernels import TABLES as KERNEL_TABLES
from burnt.monitor.screens.panes.pane import Pane
from burnt.monitor.screens.panes.tables import table_rows
from burnt.monitor.ui.keymap import ARTEFACTS, bindings
from burnt.monitor.ui.status_line import update_if_changed
from burnt.monitor.ui.table import Column, Table, cell
from burnt.train.store import Artefact, ArtefactName

__all__ = ["ArtefactsPane"]

_SHOWN_ELSEWHERE = ("model", *KERNEL_TABLES)  # tables that other panes show
_KINDS = ("table", "image", "histogram")
_MAX_HISTOGRAMS = 200  # of a name, at most so many are shown together
_CACHE_BYTES = 128 * 2**20  # of artefacts that are remembered, so that moving along steps reads nothing twice


class _Selection(NamedTuple):
    """What is there, and the one that is shown."""

    groups: dict[tuple[str, str], list[ArtefactName]]
    chosen: tuple[str, str] | None
    at: int
    draw: DrawFunction | None
    table: dict[str, Any] | None


class ArtefactsPane(Pane):
    """A list of names, the one under the cursor drawn, and a slider over its steps."""

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
        self._chosen: tuple[str, str] | None = None
        self._at: int | None = None  # None is the newest, also when there is a newer one
        self._count = 0
        self._read: dict[int, tuple[Any, int]] = {}  # data and about how many bytes they take, by id
        self._draw: tuple[int, DrawFunction] | None = None  # the last matrix or table of classes, by its id

    def compose(self) -> ComposeResult:
        """The list to the left, what is chosen to the right."""
        with Horizontal():
            yield Table(
                [Column("name", grows=True), Column("", right=True)],
                empty="nothing was recorded",
                id="names",
            )
            with Vertical():
                yield Static(id="shown-name")
                yield Picture()
                yield Table([Column("")], empty="the table is empty", id="table")
                yield Slider()

    # --- in the reading thread

    def token(self) -> object:
        """Artefacts, and what was chosen."""
        return self.view.newest.artefact, len(self.view.attempts), self._asked

    def read(self) -> Callable[[], Any]:
        """The names, and the data of what is shown."""
        groups: dict[tuple[str, str], list[ArtefactName]] = {}
        for found in self.view.artefact_names():
            if found.kind in _KINDS and not (found.kind == "table" and found.name in _SHOWN_ELSEWHERE):
                groups.setdefault((found.kind, found.name), []).append(found)
        groups = dict(sorted(groups.items(), key=lambda group: (_KINDS.index(group[0][0]), group[0][1])))
        chosen = self._chosen if self._chosen in groups else next(iter(groups), None)
        if chosen is None:
            return partial(self._show, _Selection({}, None, 0, None, None))
        names = groups[chosen]
        at = len(names) - 1 if self._at is None else min(self._at, len(names) - 1)
        draw, table = self._content(names, at)
        return partial(self._show, _Selection(groups, chosen, at, draw, table))

    def _content(
        self, names: Sequence[ArtefactName], at: int
    ) -> tuple[DrawFunction | None, dict[str, Any] | None]:
        """What draws the artefact, or the rows of a table."""
        kind = names[at].kind
        try:
            if kind == "histogram":
                first = max(min(at - _MAX_HISTOGRAMS // 2, len(names) - _MAX_HISTOGRAMS), 0)
                around = names[first : first + _MAX_HISTOGRAMS]
                data = [(name.step, self._data(name)) for name in around]
                return partial(_draw_histogram, data, at - first), None
            content = self._data(names[at])
            if kind == "image":
                return partial(_draw_image, content), None
            if self._draw is not None and self._draw[0] == names[at].id:
                return self._draw[1], None
            draw = (
                _draw_confusion_matrix
                if is_confusion_matrix(content)
                else _draw_class_scores
                if is_class_scores(content)
                else None
            )
            if draw is not None:
                self._draw = names[at].id, partial(draw, content)
                return self._draw[1], None
            table_rows(content)
            return None, content
        except PngError as error:
            return partial(_draw_message, str(error)), None
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            # Anybody may write into a run's file; what has another form than documented is said to have it.
            return partial(_draw_message, f"this {kind} has an unknown form: {error!r}"), None

    def _data(self, name: ArtefactName) -> Any:
        if name.id in self._read:
            self._read[name.id] = self._read.pop(name.id)  # the newest of the remembered
            return self._read[name.id][0]
        found: Artefact | None = self.view.artefact(name.id)
        if found is None:
            raise ValueError("it was superseded a moment ago")
        data = decode(found.data) if found.kind == "image" else found.data
        self._read[name.id] = data, _memory_bytes(data)
        used = sum(size for _, size in self._read.values())
        while used > _CACHE_BYTES and len(self._read) > 1:
            used -= self._read.pop(next(iter(self._read)))[1]
        return data

    # --- in the app's thread

    def _show(self, found: _Selection) -> None:
        names = self.query_one("#names", Table)
        names.show(
            [(key, (cell(key[1]), cell(f"{len(group)}", "$dim"))) for key, group in found.groups.items()]
        )
        if found.chosen is None:
            update_if_changed(self.query_one("#shown-name", Static), Content(""))
            self.query_one(Picture).show(partial(_draw_message, "metrics and trainings record them"))
            self.query_one(Slider).show(0, 0, "")
            return
        self._chosen = found.chosen
        names.move_to(found.chosen)
        group = found.groups[found.chosen]
        self._count = len(group)
        kind, name = found.chosen
        update_if_changed(
            self.query_one("#shown-name", Static),
            Content.assemble((clean(name), "bold"), (f"   {kind}", "$dim")),
        )
        self.set_class(found.table is not None, "table")
        if found.table is not None:
            columns, rows = table_rows(found.table)
            self.query_one("#table", Table).show(rows, columns=columns)
        elif found.draw is not None:
            self.query_one(Picture).show(found.draw)
        step = group[found.at].step
        self.query_one(Slider).show(found.at, len(group), "" if step is None else f"step {step:,}")

    @on(Table.Moved, "#names")
    def moved(self, message: Table.Moved) -> None:
        """Another name."""
        message.stop()
        if message.key != self._chosen and isinstance(message.key, tuple):
            self._chosen, self._at = message.key, None
            self.again()

    @on(Slider.Moved)
    def slid(self, message: Slider.Moved) -> None:
        """Another step."""
        message.stop()
        self._go(message.at)

    # --- keys

    def _go(self, at: int) -> None:
        self._at = None if at >= self._count - 1 else max(at, 0)
        self.again()

    def action_step(self, direction: int) -> None:
        """The step before, or the next."""
        self._go((self._count - 1 if self._at is None else self._at) + direction)

    def action_end(self, end: int) -> None:
        """The first step; or the last one, and those that come."""
        self._go(end if end == 0 else self._count)

    def action_scroll(self, direction: int) -> None:
        """Move what is shown."""
        self.query_one(Picture).scroll_relative(y=direction * 4, animate=False)


def _memory_bytes(data: Any) -> int:
    """About how much memory an artefact takes."""
    if isinstance(data, Image):
        return len(data.rgb)
    lists = [part for part in data.values() if isinstance(part, list)] if isinstance(data, dict) else []
    return 64 * sum(len(one) if isinstance(one, list) else 1 for part in lists for one in part)


def _draw_confusion_matrix(table: dict[str, Any], width: int, height: int, colors: bool) -> Lines:
    return draw_confusion_matrix(table, width, colors=colors)


def _draw_class_scores(table: dict[str, Any], width: int, height: int, colors: bool) -> Lines:
    return draw_class_scores(table, width)


def _draw_histogram(data: Sequence[Any], at: int, width: int, height: int, colors: bool) -> Lines:
    return draw_histogram(data, at, width, height, colors=colors)


def _draw_image(picture: Image, width: int, height: int, colors: bool) -> Lines:
    size = f"{picture.width} x {picture.height} pixels"
    return [*draw_image(picture, width, max(height - 1, 1), colors=colors), [StyledText(size, "$dim")]]


def _draw_message(text: str, width: int, height: int, colors: bool) -> Lines:
    return [[StyledText(clean(text)[:width], "$dim")]]
