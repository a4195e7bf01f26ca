"""`ChartGrid`: charts side by side that share zoom and crosshair; `CurveKeys`: keys for their axes."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import get_args

from textual import on
from textual.containers import Grid

from burnt.monitor.plotting.chart_widget import Chart
from burnt.monitor.plotting.text_chart import ChartView, Range, XAxis

AXIS_NAMES: dict[XAxis, str] = {"step": "steps", "epoch": "epochs", "time": "training time"}
_SMOOTHING = (0.0, 0.6, 0.9, 0.97)


class ChartGrid(Grid):
    """A grid of charts. `Chart.Zoomed` bubbles up, so that its parent can read the range in more detail."""

    @property
    def charts(self) -> list[Chart]:
        return list(self.query(Chart))

    async def show(self, views: Sequence[ChartView], num_columns: int, x_range: Range | None) -> None:
        """Show a chart for each view, in at most `num_columns` columns; `x_range` None shows everything."""
        for chart in self.charts[len(views) :]:
            await chart.remove()
        await self.mount_all(Chart() for _ in range(len(views) - len(self.charts)))
        num_columns = min(num_columns, len(views)) or 1
        self.styles.grid_size_columns = num_columns
        self.styles.grid_size_rows = -(-len(views) // num_columns) or None
        for chart, view in zip(self.charts, views, strict=True):
            chart.show(view)
            chart.zoom(x_range)

    @on(Chart.Zoomed)
    def zoom_all(self, message: Chart.Zoomed) -> None:
        for chart in self.charts:
            chart.zoom(message.range)

    @on(Chart.CrosshairMoved)
    def move_crosshairs(self, message: Chart.CrosshairMoved) -> None:
        message.stop()
        for chart in self.charts:
            chart.move_crosshair(message.x)


class CurveKeys:
    """The keys of `keymap.AXES` and for smoothing, for a screen or pane with a `ChartGrid`."""

    axis: XAxis = "step"
    log_y = False
    smoothing = 0.0
    x_range: Range | None = None

    @abstractmethod
    def has_epochs(self) -> bool:
        """Whether an epoch has finished in every run, so that the x axis can show epochs."""

    @abstractmethod
    def request_read(self) -> None:
        """Read again soon."""

    def action_axis(self) -> None:
        axes = get_args(XAxis)
        self.axis = axes[(axes.index(self.axis) + 1) % len(axes)]
        if self.axis == "epoch" and not self.has_epochs():
            self.axis = "time"
            self.notify("The x axis cannot show epochs: not every run has finished one.")  # type: ignore[attr-defined]
        self.x_range = None
        self.request_read()

    def action_log(self) -> None:
        self.log_y = not self.log_y
        self.request_read()

    def action_smooth(self) -> None:
        self.smoothing = _SMOOTHING[(_SMOOTHING.index(self.smoothing) + 1) % len(_SMOOTHING)]
        self.request_read()

    def axes_text(self) -> list[str]:
        """Return the units of the axes, for people."""
        return [f"x {AXIS_NAMES[self.axis]}", "log y" if self.log_y else "linear y"]
