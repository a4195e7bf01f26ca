"""Several runs in one plot, their values side by side, and in what their configurations differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, get_args

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.content import Content
from textual.screen import Screen
from textual.widgets import Static

from burnt.errors import BurntError
from burnt.monitor.data.runs import RunView
from burnt.monitor.format import better, clean, duration_text, label, main_metric, value_text
from burnt.monitor.plotting.braille import sample
from burnt.monitor.plotting.chart_widget import Chart, readable
from burnt.monitor.plotting.curves import LOOKS, STYLES, Curve
from burnt.monitor.plotting.plot import Range, XAxis
from burnt.monitor.plotting.run_curves import curve_on_axis, metrics_in_order
from burnt.monitor.screens.panes.config import flat
from burnt.monitor.ui.app_protocol import app_of
from burnt.monitor.ui.filter_input import FilterInput
from burnt.monitor.ui.keybar import KeyBar
from burnt.monitor.ui.keymap import COMPARE, bindings
from burnt.monitor.ui.status_line import update
from burnt.monitor.ui.table import Cell, Column, Table, cell
from burnt.monitor.ui.theme import state_cell
from burnt.train.store import Extreme, Series

__all__ = ["MOST", "CompareScreen", "differences", "looks", "metrics"]

MOST = 8  # runs in one plot: as many as there are colours that can be told apart

_SAMPLE = 3  # cells of a line, beside a run's name
_SMOOTHING = (0.0, 0.6, 0.9, 0.97)
_VALUES = (
    Column(""),
    Column("run", grows=True),
    Column("state", spare=3),
    Column("last", right=True),
    Column("at step", right=True, spare=2),
    Column("best", right=True),
    Column("at step ", right=True, spare=1),
    Column("took", right=True, spare=4),
)


class CompareScreen(Screen[None]):
    """Two to eight runs.

    Args:
        views: the runs; the screen follows them while it is open.
    """

    BINDINGS: ClassVar[list[BindingType]] = [*bindings(COMPARE)]
    KEYS = COMPARE
    DEFAULT_CSS = """
    CompareScreen Chart { height: 1fr; margin: 0 1; min-height: 6; }
    CompareScreen #configs { margin-top: 1; }
    CompareScreen.full Table { display: none; }
    """

    def __init__(self, views: Sequence[RunView]) -> None:
        super().__init__()
        self.views = list(views[:MOST])
        self.metric: Series | None = None
        self._looks = looks(self.views)
        self._axis: XAxis = "step"
        self._log = False
        self._smoothing = 0
        self._range: Range | None = None
        self._asked = 0
        self._seen: object = None
        for view in self.views:
            view.follow()

    def compose(self) -> ComposeResult:
        """What is compared, the chart, the tables, the keys."""
        yield Static(id="title")
        yield Chart()
        yield Table(_VALUES, id="values")
        yield Table([Column("")], empty="the configurations do not differ", id="configs")
        yield FilterInput("a part of a metric's name, or /regular expression/")
        yield KeyBar()

    def on_mount(self) -> None:
        """The chart has the keys."""
        self.query_one("#values").styles.height = len(self.views) + 1
        self.query_one(Chart).focus()

    def on_unmount(self) -> None:
        """The runs are no longer followed."""
        for view in self.views:
            view.unfollow()

    def on_screen_resume(self) -> None:
        """The screen is shown (again)."""
        self._again()

    # --- in the reading thread

    def load(self, changed: bool) -> Callable[[], Any] | None:
        """The curves, values and configurations, if something changed."""
        token = [view.version for view in self.views], self._asked
        if token == self._seen:
            return None
        self._seen = token
        known = metrics(self.views)
        if self.metric not in known:
            self.metric = main_metric(known, self.views[0].config)
        chosen, axis, zoomed = self.metric, self._axis, self._range
        curves, rows, troubles = [], [], []
        for number, view in enumerate(self.views):
            best = None
            color, style = self._looks[number]
            curve = Curve(clean(view.label), color, (), (), style, str(number + 1))
            if chosen is not None and chosen in view.heads:
                try:
                    points = view.points(*chosen)
                    xs, ys = curve_on_axis(view, points, view.points_between, chosen, axis, zoomed)
                    curve = curve._replace(xs=xs, ys=ys)
                    if self._smoothing:
                        means = view.means(*chosen)
                        curve = curve._replace(
                            means=curve_on_axis(view, means, view.means_between, chosen, axis, zoomed)
                        )
                    best = view.best(chosen)
                except BurntError as error:
                    troubles.append(f"{view.label}: {error.what}")
            curves.append(curve)
            rows.append((view, best))
        differing = differences([view.config or {} for view in self.views])
        return partial(self._show, known, chosen, axis, curves, rows, differing, troubles)

    # --- in the app's thread

    def _show(
        self,
        known: Sequence[Series],
        chosen: Series | None,
        axis: XAxis,
        curves: Sequence[Curve],
        rows: Sequence[tuple[RunView, Extreme | None]],
        differing: Mapping[str, Sequence[str | None]],
        troubles: Sequence[str],
    ) -> None:
        title = "no metric has been written yet" if chosen is None else label(chosen)
        self.query_one(Chart).show(
            curves, x=axis, log_y=self._log, smoothing=_SMOOTHING[self._smoothing], title=title
        )
        place = f"   metric {known.index(chosen) + 1} of {len(known)}" if chosen is not None else ""
        axes = {"step": "steps", "epoch": "epochs", "time": "time at work"}
        facts = f"{place}   x {axes[axis]}   {'log y' if self._log else 'linear y'}"
        parts = [(f" compare {len(self.views)} runs", "bold $primary"), (facts, "$dim")]
        parts += [(f"   {clean(trouble)}", "$error") for trouble in troubles]
        update(self.query_one("#title", Static), Content.assemble(*parts))
        self._show_values(chosen, rows)
        self._show_configs(differing)

    def _show_values(self, chosen: Series | None, rows: Sequence[tuple[RunView, Extreme | None]]) -> None:
        way = None if chosen is None else better(chosen.name, self.views[0].config)
        bests = [best.value for _, best in rows if best is not None]
        winner = (min(bests) if way == "lower" else max(bests)) if bests else None
        found: list[tuple[object, Sequence[Cell]]] = []
        for number, (view, best) in enumerate(rows):
            head = None if chosen is None else view.heads.get(chosen)
            wins = best is not None and best.value == winner
            state, style = state_cell(view)
            found.append(
                (
                    view,
                    (
                        self._tag(number),
                        cell(view.label),
                        cell(state, style),
                        cell("" if head is None else value_text(head.point.value), "bold"),
                        cell("" if head is None else f"{head.point.step:,}", "$dim"),
                        cell(
                            "" if best is None else f"{'★ ' if wins else ''}{value_text(best.value)}",
                            "bold $success" if wins else "",
                        ),
                        cell("" if best is None else f"{best.step:,}", "$dim"),
                        cell(duration_text(view.seconds), "$dim"),
                    ),
                )
            )
        self.query_one("#values", Table).show(found)

    def _show_configs(self, differing: Mapping[str, Sequence[str | None]]) -> None:
        columns = [Column("differs in", grows=True)]
        columns += [Column(str(number + 1), right=True) for number in range(len(self.views))]
        found: list[tuple[object, Sequence[Cell]]] = []
        for key, values in differing.items():
            usual = Counter(values).most_common(1)[0]
            cells = [cell(key, "$dim")]
            for value in values:
                # What most have is quiet, so that the exception is seen.
                quiet = value is None or (usual[1] > len(values) / 2 and value == usual[0])
                cells.append(cell("-" if value is None else _short(value), "$dim" if quiet else ""))
            found.append((key, cells))
        table = self.query_one("#configs", Table)
        if not any(view.config for view in self.views):
            table.empty = "no run has a configuration"
        table.show(found, columns=columns)
        table.styles.height = min(len(found) + 1, max(self.size.height // 4, 4)) if found else 2

    def _tag(self, number: int) -> Cell:
        _, background = self.background_colors
        name, style = self._looks[number]
        color = readable(name, background)
        line = sample(STYLES[style], _SAMPLE)
        return ((f"{line} ", color.hex if color.ansi is None else ""), (str(number + 1), "bold"))

    # --- keys

    def _again(self) -> None:
        self._asked += 1
        app_of(self).show_source(self)

    def action_back(self) -> None:
        """To the list."""
        self.app.pop_screen()

    def action_metric(self, direction: int) -> None:
        """The next metric, or the one before."""
        known = metrics(self.views)
        if known:
            at = known.index(self.metric) if self.metric in known else -1
            self._choose(known[(at + direction) % len(known)])

    def _choose(self, metric: Series) -> None:
        if metric != self.metric:
            self.metric = metric
            self._again()

    def action_choose(self) -> None:
        """Type a part of a metric's name."""
        self.query_one(FilterInput).open()

    @on(FilterInput.Changed)
    def changed(self, message: FilterInput.Changed) -> None:
        """The first metric that matches, while it is typed."""
        message.stop()
        field = self.query_one(FilterInput)
        matches = field.matches()
        if matches is None:
            return
        found = next((metric for metric in metrics(self.views) if matches(label(metric))), None)
        field.blame("no metric matches" if found is None else "")
        if found is not None and message.value:
            self._choose(found)

    @on(FilterInput.Closed)
    def closed(self, message: FilterInput.Closed) -> None:
        """Back to the chart."""
        message.stop()
        self.query_one(FilterInput).close()
        self.query_one(Chart).focus()

    @on(Chart.Zoomed)
    def zoomed(self, message: Chart.Zoomed) -> None:
        """The part that is shown is read in more detail."""
        message.stop()
        self._range = message.range
        self._again()

    def action_axis(self) -> None:
        """The next unit of the horizontal axis."""
        axes = get_args(XAxis)
        self._axis = axes[(axes.index(self._axis) + 1) % len(axes)]
        if self._axis == "epoch" and not all(view.epoch_ends for view in self.views):
            self._axis = axes[(axes.index(self._axis) + 1) % len(axes)]
            self.notify("not every run has finished an epoch, so there is no axis of epochs")
        self._range = None
        self._again()

    def action_log(self) -> None:
        """Linear or logarithmic."""
        self._log = not self._log
        self._again()

    def action_smooth(self) -> None:
        """More smoothing, in turn."""
        self._smoothing = (self._smoothing + 1) % len(_SMOOTHING)
        self._again()

    def action_full(self) -> None:
        """The chart alone, or with the tables."""
        self.toggle_class("full")
        self.query_one(Chart).focus()


def metrics(views: Sequence[RunView]) -> list[Series]:
    """All metrics that one of the runs has: by name, validation first."""
    found = {series for view in views for series in view.series()}
    names = metrics_in_order(list(found))
    return sorted(found, key=lambda series: (names.index(series.name), series.split != "valid", series.split))


def looks(views: Sequence[RunView]) -> list[tuple[str, str]]:
    """Colour and kind of line for each run: its own, unless one before it has the same."""
    found: list[tuple[str, str]] = []
    for view in views:
        own = LOOKS[view.colour % len(LOOKS)]
        found.append(own if own not in found else next(look for look in LOOKS if look not in found))
    return found


def differences(configs: Sequence[Mapping[str, Any]]) -> dict[str, list[str | None]]:
    """The values of the keys in which configurations differ, nested keys dotted; None where one has none.

    >>> differences([{"model": {"hidden": 64}, "seed": 1}, {"model": {"hidden": 32}, "seed": 1, "note": "a"}])
    {'model.hidden': ['64', '32'], 'note': [None, 'a']}
    """
    rows = [flat(dict(config)) for config in configs]
    keys = dict.fromkeys(key for row in rows for key in row)
    found = {key: [row.get(key) for row in rows] for key in keys}
    return {key: values for key, values in found.items() if len(set(values)) > 1}


def _short(value: str, width: int = 16) -> str:
    return value if len(value) <= width else value[: width - 1] + "…"
