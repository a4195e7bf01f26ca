"""`Chart`: a widget that shows a `TextChart`, with zoom, pan and crosshair by key and mouse; grids of charts.

The rest of the monitor draws curves through `Chart.show` only. It is a widget of our own because existing
ones cost too much (docs/decisions/training.md): six charts at 2 redraws per second take 3.8 % of a core, with
textual-plot or textual-plotext 16 % (``python benchmarks/chart_widgets.py``).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual import events, on
from textual.actions import SkipAction
from textual.binding import Binding, BindingType
from textual.color import Color, ColorParseError
from textual.containers import Grid
from textual.geometry import Region
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from burnt.errors import clean
from burnt.monitor.plotting.text_chart import ChartView, Range, Span, TextChart, XAxis
from burnt.monitor.ui.keymap import CHART, bindings

AXIS_NAMES: dict[XAxis, str] = {"step": "steps", "epoch": "epochs", "time": "training time"}
_SMOOTHING = (0.0, 0.6, 0.9, 0.97)
_ZOOM_FACTOR = 1.25  # per notch of the wheel; a key zooms by two notches
_MIN_CONTRAST = 3.0  # of a line to its background, as WCAG requires for graphics
_FAINT_BLEND = 0.6  # how far raw values below a smoothed line are blended towards the background


class Chart(Widget, can_focus=True):
    """A chart of curves over steps, epochs or time.

    Keys: `burnt.monitor.ui.keymap.CHART`. Mouse: the wheel zooms the x axis around the pointer (with ctrl the
    y axis), dragging pans, a double click resets the zoom, and the crosshair follows the pointer.
    """

    class CrosshairMoved(Message):
        """The crosshair moved to `x`; None if it is hidden."""

        def __init__(self, x: float | None) -> None:
            super().__init__()
            self.x = x

    class Zoomed(Message):
        """The x axis was zoomed or panned to a range; None if it shows everything."""

        def __init__(self, range: Range | None) -> None:
            super().__init__()
            self.range = range

    DEFAULT_CSS = """
    Chart {
        height: 1fr;
        min-height: 3;
        pointer: crosshair;
        &:focus > .chart--title { text-style: bold underline; }
        & > .chart--title { color: $foreground; text-style: bold; }
        & > .chart--axis { color: $foreground 35%; }
        & > .chart--label { color: $foreground 75%; }
        & > .chart--note { color: $foreground 60%; text-style: italic; }
        & > .chart--cross { color: $warning; text-style: bold; }
    }
    """
    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "chart--title",
        "chart--axis",
        "chart--label",
        "chart--note",
        "chart--cross",
    }
    BINDINGS: ClassVar[list[BindingType]] = [
        *bindings(CHART),
        Binding("escape", "hide_crosshair", "Hide crosshair", show=False),
    ]
    KEYS = CHART

    def __init__(self, *, name: str | None = None, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(name=name, id=id, classes=classes)
        self._view = ChartView()
        self._plot: TextChart | None = None
        self._strips: list[Strip] = []
        self._styles: dict[str, Style] = {}
        self._drag_start: tuple[int, int, Range, Range] | None = None

    # --- called by the app

    def show(self, view: ChartView) -> None:
        """Show curves; keeps zoom and crosshair unless the x axis changes, and redraws only what changed."""
        old = self._view
        is_same_x = view.x == old.x
        self._set_view(
            view._replace(
                curves=tuple(curve._replace(label=clean(curve.label)) for curve in view.curves),
                title=clean(view.title),
                range_x=old.range_x if is_same_x else None,
                range_y=old.range_y if view.log_y == old.log_y else None,
                crosshair=old.crosshair if is_same_x else None,
            )
        )

    @property
    def view(self) -> ChartView:
        return self._view

    def zoom(self, range: Range | None) -> None:
        """Show a range of the x axis, or all of it (None). Posts no message."""
        self._set_view(self._view._replace(range_x=range))

    def move_crosshair(self, x: float | None) -> None:
        """Move the crosshair, or hide it (None). Posts no message."""
        self._set_view(self._view._replace(crosshair=x))

    def _set_view(self, view: ChartView) -> None:
        if view == self._view:
            return
        self._view = view
        if self._plot is None or not self.is_on_screen:
            self._plot = None
            self.refresh()
            return
        old_strips = self._strips
        self._paint()
        # Repaint only lines that differ: over SSH, the number of bytes limits the speed.
        gutter = self.gutter
        for y, strip in enumerate(self._strips):
            if y >= len(old_strips) or strip != old_strips[y]:
                self.refresh(Region(gutter.left, gutter.top + y, self.size.width, 1))

    # --- drawing

    def render_line(self, y: int) -> Strip:
        _ = self.plot
        return self._strips[y] if y < len(self._strips) else Strip.blank(self.size.width, self.rich_style)

    @property
    def plot(self) -> TextChart:
        if self._plot is None or (self._plot.width, self._plot.height) != self.size:
            return self._paint()
        return self._plot

    def _paint(self) -> TextChart:
        width, height = self.size
        plot = self._plot = TextChart(self._view, width, height)
        # Recomputed on every paint: the background and the theme may change without notice.
        plain = self.rich_style
        self._styles = {"": plain}
        self._strips = [
            Strip([Segment(span.text, self._style(span)) for span in line]).adjust_cell_length(width, plain)
            for line in plot.lines
        ]
        return plot

    def _style(self, span: Span) -> Style:
        style = self._styles.get(span.style)
        if style is None:
            style = self._styles[span.style] = self._new_style(span.style)
        return style

    def _new_style(self, key: str) -> Style:
        if not key.lstrip("-").isdigit():
            return self.get_component_rich_style(f"chart--{key}")
        _, background = self.background_colors
        curve = self._view.curves[int(key.lstrip("-"))]
        color = ensure_contrast(curve.color, background)
        if key.startswith("-"):
            if background.ansi is not None:  # the terminal's default, whose colour is unknown
                return self._styles[""] + Style(color=color.rich_color, dim=True)
            color = color.blend(background, _FAINT_BLEND)
        return self._styles[""] + Style(color=color.rich_color)

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._plot = None

    # --- keys

    def action_zoom_x(self, direction: int) -> None:
        low, high = self.plot.range_x
        at = self._view.crosshair
        around = at if at is not None and low <= at <= high else (low + high) / 2
        self._zoom_x(around, _ZOOM_FACTOR ** (2 * direction))

    def action_zoom_y(self, direction: int) -> None:
        low, high = self.plot.range_y
        self._zoom_y(low / 2 + high / 2, _ZOOM_FACTOR ** (2 * direction))

    def action_pan(self, direction: int) -> None:
        low, high = self.plot.range_x
        self._pan((high - low) / 4 * direction)

    def action_crosshair(self, direction: int) -> None:
        """Move the crosshair by one cell; at the edge, pan the x axis."""
        low, high = self.plot.range_x
        at = self._view.crosshair
        if at is None:
            at = high if direction < 0 else low
        else:
            at += (high - low) / max(self.plot.columns, 1) * direction
        if not low <= at <= high:
            self._pan((high - low) / 4 * direction)
            low, high = self.plot.range_x
        self._set_crosshair(min(max(at, low), high))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return action != "hide_crosshair" or self._view.crosshair is not None

    def action_hide_crosshair(self) -> None:
        """Hide the crosshair; without one, pass escape on to the screen."""
        if self._view.crosshair is None:
            raise SkipAction
        self._set_crosshair(None)

    def action_reset(self) -> None:
        self._set_view(self._view._replace(range_y=None))
        self._set_range_x(None)

    def _set_crosshair(self, x: float | None) -> None:
        if x != self._view.crosshair:
            self.move_crosshair(x)
            self.post_message(self.CrosshairMoved(x))

    def _set_range_x(self, range: Range | None) -> None:
        if range != self._view.range_x:
            self.zoom(range)
            self.post_message(self.Zoomed(range))

    def _zoom_x(self, around: float, factor: float) -> None:
        """Zoom the x axis by a factor, limited to the range of the values."""
        low, high = self.plot.range_x
        low, high = around - (around - low) / factor, around + (high - around) / factor
        first, last = TextChart(self._view._replace(range_x=None), 0, 0).range_x
        if low <= first and high >= last:
            self._set_range_x(None)
        elif high - low > (last - first) * 1e-9:
            self._set_range_x((max(low, first), min(high, last)))

    def _zoom_y(self, around: float, factor: float) -> None:
        low, high = self.plot.range_y
        low, high = around - (around - low) / factor, around + (high - around) / factor
        if high - low > 1e-12 * max(abs(low), abs(high)) and abs(low) < 1e307 and abs(high) < 1e307:
            self._set_view(self._view._replace(range_y=(low, high)))

    def _pan(self, by: float) -> None:
        if self._view.range_x is None:
            return
        low, high = self._view.range_x
        first, last = TextChart(self._view._replace(range_x=None), 0, 0).range_x
        by = max(min(by, last - high), first - low)
        self._set_range_x((low + by, high + by))

    # --- mouse

    def _plot_position(self, event: events.MouseEvent) -> tuple[int, int] | None:
        """Return column and row of a mouse event in the content; None outside of the plot."""
        offset, plot = event.get_content_offset(self), self.plot
        if offset is None:
            return None
        x, y = offset
        if plot.left <= x < plot.left + plot.columns and plot.top <= y < plot.top + plot.rows:
            return x, y
        return None

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        self._zoom_by_wheel(event, _ZOOM_FACTOR)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        self._zoom_by_wheel(event, 1 / _ZOOM_FACTOR)

    def _zoom_by_wheel(self, event: events.MouseEvent, factor: float) -> None:
        at = self._plot_position(event)
        if at is None:
            return
        event.stop()
        if event.ctrl:
            self._zoom_y(self.plot.y_at(at[1]), factor)
        else:
            self._zoom_x(self.plot.x_at(at[0]), factor)

    def on_mouse_down(self, event: events.MouseDown) -> None:
        if self._plot_position(event) is not None:
            self.capture_mouse()
            self._drag_start = (event.screen_x, event.screen_y, self.plot.range_x, self.plot.range_y)

    def on_mouse_up(self, event: events.MouseUp) -> None:
        if self._drag_start is not None:
            self._drag_start = None
            self.release_mouse()

    def on_mouse_move(self, event: events.MouseMove) -> None:
        plot = self.plot
        if self._drag_start is None:
            at = self._plot_position(event)
            self._set_crosshair(None if at is None else plot.x_at(at[0]))
            return
        column, row, (low, high), (bottom, top) = self._drag_start
        if self._view.range_x is not None and self._view.range_x != (low, high):
            # The drag is measured from its start, so undo earlier moves first.
            self.zoom((low, high))
        if event.screen_x != column:
            self._pan((high - low) * (column - event.screen_x) / max(plot.columns, 1))
        if self._view.range_y is not None:
            by = (top - bottom) * (event.screen_y - row) / max(plot.rows, 1)
            self._set_view(self._view._replace(range_y=(bottom + by, top + by)))

    def on_click(self, event: events.Click) -> None:
        if event.chain == 2:
            self.action_reset()

    def on_leave(self, event: events.Leave) -> None:
        self._set_crosshair(None)


def ensure_contrast(color: str, background: Color) -> Color:
    """Blend a colour towards white or black until it contrasts with the background.

    >>> ensure_contrast("#4477aa", Color.parse("#000000")).hex
    '#4477AA'
    >>> ensure_contrast("#ccbb44", Color.parse("#ffffff")).hex
    '#A39536'
    """
    try:
        parsed = Color.parse(color)
    except ColorParseError:
        parsed = background.get_contrast_text(1.0)
    if background.ansi is not None:
        return parsed
    target = Color(255, 255, 255) if background.brightness < 0.5 else Color(0, 0, 0)
    for step in range(11):
        adjusted = parsed.blend(target, step / 10)
        if _contrast_ratio(adjusted, background) >= _MIN_CONTRAST:
            break
    return adjusted


def _contrast_ratio(one: Color, other: Color) -> float:
    """Return the contrast ratio defined by WCAG, from 1 to 21."""
    lighter, darker = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def _luminance(color: Color) -> float:
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in color.normalized)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


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

    def on_chart_zoomed(self, message: Chart.Zoomed) -> None:
        self.x_range = message.range
        self.request_read()

    @abstractmethod
    def has_epochs(self) -> bool:
        """Whether an epoch has finished in every run, so that the x axis can show epochs."""

    @abstractmethod
    def request_read(self) -> None:
        """Read again soon."""

    def action_axis(self) -> None:
        axes = list(AXIS_NAMES)
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
        return [f"x {AXIS_NAMES[self.axis]}", "log y" if self.log_y else "linear y"]
