"""A sweep: its trials by value, value by trial, parallel coordinates, and what the parameters explain."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from typing import Any, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal
from textual.content import Content
from textual.screen import Screen
from textual.widgets import Static

from burnt.errors import clean, quantity
from burnt.monitor.data.runs import RunLibrary
from burnt.monitor.data.sweeps import SweepView
from burnt.monitor.format import error_text
from burnt.monitor.plotting.chart_widget import Chart
from burnt.monitor.plotting.curves import Curve
from burnt.monitor.plotting.parallel import parallel_coordinates
from burnt.monitor.plotting.text_chart import ChartView
from burnt.monitor.ui.app_protocol import app_of
from burnt.monitor.ui.keybar import KeyBar, two_sided_line, update_if_changed
from burnt.monitor.ui.keymap import SWEEP, bindings
from burnt.monitor.ui.table import Cell, Column, Table, cell
from burnt.monitor.ui.theme import progress_bar, state_cell
from burnt.plot.braille import PALETTE
from burnt.store.search import setting_text, short_names
from burnt.store.sweeps import Trial, importance
from burnt.train.format import duration_text, value_text

_ALL_WIDTH, _ALL_HEIGHT = 90, 30  # from which on all plots are shown at once
_PLOTS = ("#values", "#parallel", "#importance")
_STATES = {"complete": ("✓", "$success"), "pruned": ("■", "$warning"), "failed": ("✗", "bold $error")}
_STYLES = {
    "best": "bold $success", "good": "$primary", "middle": "$dim", "bad": "$faint",
    "selected": "bold $accent", "axis": "$faint", "label": "$dim", "name": "bold",
}  # fmt: skip
_BAR_CELLS = 16


class SweepScreen(Screen[None]):
    """Shows a sweep, which it follows while it is open."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings(SWEEP)]
    KEYS = SWEEP
    DEFAULT_CSS = """
    SweepScreen #top { height: 1fr; margin-top: 1; }
    SweepScreen #values { width: 2fr; margin-left: 1; }
    SweepScreen #importance { width: 1fr; padding: 0 1 0 3; }
    SweepScreen #parallel { height: 1fr; padding: 0 1; margin-top: 1; }
    SweepScreen Table { height: 1fr; margin-top: 1; }
    """

    def __init__(self, folder: Path, library: RunLibrary) -> None:
        super().__init__()
        self.sweep_view, self.library = SweepView(folder), library
        self._plot = 0

    def compose(self) -> ComposeResult:
        yield Static(id="title")
        with Horizontal(id="top"):
            yield Chart(id="values")
            yield Static(id="importance")
        yield Static(id="parallel")
        yield Table([Column("trial")], empty_text="reading ...", id="trials")
        yield KeyBar()

    def on_mount(self) -> None:
        self.query_one(Chart).can_focus = False
        self.query_one(Table).focus()

    def on_screen_resume(self) -> None:
        app_of(self).read_for(self)

    def on_resize(self) -> None:
        shows_all = self.size.width >= _ALL_WIDTH and self.size.height >= _ALL_HEIGHT
        self.query_one("#top").display = shows_all or _PLOTS[self._plot] != "#parallel"
        for number, plot in enumerate(_PLOTS):
            self.query_one(plot).display = shows_all or number == self._plot
        self.call_after_refresh(self._show)

    def load(self, changed: bool) -> Callable[[], Any] | None:
        """In the reader thread: read the trials."""
        self.sweep_view.refresh(self.library.views)
        return self._show

    # --- showing

    def _show(self) -> None:
        view = self.sweep_view
        table = self.query_one(Table)
        if view.sweep is None:
            if view.error is not None:
                table.error_text = error_text(view.error)
                table.show([])
            return
        sweep, metric = view.sweep, view.sweep.metric or "value"
        facts = f"{view.num_ended} of {quantity(sweep.trials, 'trial')}"
        running = sum(view.views[t.number].is_live for t in view.trials if t.number in view.views)
        is_quiet = sweep.is_running() or view.num_ended >= sweep.trials
        facts += f", {running} running" if running else "" if is_quiet else ", not running"
        parts = [
            (f" {clean(str(view.folder))}", "bold $primary"),
            (f"  {clean(metric)}, {facts}", "$foreground"),
        ]
        if view.error is not None:
            parts.append((f"  {error_text(view.error)}", "$error"))
        how = f"{sweep.sampler}, pruning: {sweep.prune}"
        update_if_changed(
            self.query_one("#title", Static), two_sided_line(parts, [[(how, "$dim")]], self.size.width)
        )
        keys = [parameter.key for parameter in sweep.space]
        columns = [
            Column("trial"),
            Column("state"),
            Column(clean(metric), align_right=True),
            *(Column(clean(name), align_right=True, drop_priority=1) for name in short_names(keys).values()),
            Column("took", align_right=True, drop_priority=2),
            Column("", expands=True, min_width=0),
        ]
        table.empty_text = "No trial has started yet."
        same = columns == table.columns
        table.show([(t.number, self._cells(t, keys)) for t in view.trials], columns=None if same else columns)
        self._show_values()
        self._show_parallel()
        self._show_importance()

    def _cells(self, trial: Trial, keys: list[str]) -> list[Cell]:
        run = self.sweep_view.views.get(trial.number)
        if trial.state in _STATES:
            symbol, style = _STATES[trial.state]
            state = cell(f"{symbol} {trial.state}", style)
        else:
            state = cell("starting", "$dim") if run is None else (state_cell(run),)
        seconds = trial.seconds or (0.0 if run is None else run.active_seconds)
        value = "" if trial.value is None else value_text(trial.value)
        return [
            cell(trial.name),
            state,
            cell(value, "bold"),
            *(cell(setting_text(trial.params.get(key, ""))) for key in keys),
            cell(duration_text(seconds) if seconds else "", "$dim"),
            cell(trial.error or "", "$dim"),
        ]

    def _with_value(self) -> list[Trial]:
        return [trial for trial in self.sweep_view.trials if trial.value is not None]

    def _show_values(self) -> None:
        trials = sorted(self._with_value(), key=lambda trial: trial.number)
        complete = [trial for trial in trials if trial.state == "complete"]
        better = max if self.sweep_view.sweep and self.sweep_view.sweep.direction == "higher" else min
        bests = list(accumulate((trial.value or 0.0 for trial in complete), better))
        values = [trial.value or 0.0 for trial in trials]
        curves = [
            Curve("best so far", PALETTE[2], [t.number for t in complete], bests, "solid"),
            Curve("each trial", PALETTE[0], [t.number for t in trials], values, "points"),
        ]
        self.query_one(Chart).show(ChartView(curves, "trial", title="value by trial", markers=False))

    def _show_parallel(self) -> None:
        plot = self.query_one("#parallel", Static)
        sweep, trials = self.sweep_view.sweep, self._with_value()
        width, height = plot.content_size
        selected = self.query_one(Table).cursor_key
        lines = parallel_coordinates(
            sweep.space if sweep else (), trials, (sweep and sweep.metric) or "", width, height,
            selected if isinstance(selected, int) else None,
        )  # fmt: skip
        texts = [
            Content.assemble(*((text, _STYLES.get(style, "")) for text, style in line)) for line in lines
        ]
        update_if_changed(plot, Content("\n").join(texts or [Content("No trial has a value yet.")]))

    def _show_importance(self) -> None:
        sweep = self.sweep_view.sweep
        ended = [trial for trial in self._with_value() if trial.state != "running"]
        shares = importance(sweep.space, ended) if sweep else None
        lines = [Content.assemble(("importance", "bold"))]
        name_width = max((len(key) for key in shares or ()), default=0)
        for key, share in (shares or {}).items():
            done, left = progress_bar(share, _BAR_CELLS)
            lines.append(
                Content.assemble(
                    f"{clean(key):<{name_width}}  ", (done, "$primary"), (left, "$faint"), f" {share:>4.0%}"
                )
            )
        text = "Share of the variance of the trials' ranks that a setting explains on its own, without its "
        text += "combinations with others." if shares else "combinations: shown from 8 ended trials on."
        lines += [Content(""), Content.assemble((text, "$dim"))]
        update_if_changed(self.query_one("#importance", Static), Content("\n").join(lines))

    # --- keys

    @on(Table.CursorMoved)
    def cursor_moved(self) -> None:
        self._show_parallel()

    @on(Table.RowOpened)
    def row_opened(self) -> None:
        self.action_open()

    def action_open(self) -> None:
        number = self.query_one(Table).cursor_key
        if isinstance(number, int) and (run := self.sweep_view.views.get(number)) is not None:
            app_of(self).open_run(run)

    def action_next_plot(self) -> None:
        """Show the next plot, where there is room for one only."""
        self._plot = (self._plot + 1) % len(_PLOTS)
        self.on_resize()

    def action_back(self) -> None:
        self.app.pop_screen()
